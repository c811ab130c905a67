#!/usr/bin/env python3
"""Times that something ends at are CLOCK_MONOTONIC's, which no step of the wall clock moves: who reads the wall clock is
named here, with what for; and calls that take a time of the wall clock are not used. Prints TAP.

usage: check_clocks.py ROOT"""
import os
import re
import sys

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
ROOMS = ("common", "transport", "model", "kernels", "target_worker", "draft_worker", "orchestrator")
READS = re.compile(r"\bCLOCK_REALTIME\w*|\b(?:time|gettimeofday|timespec_get|ftime)\(")
# File: how often, and what for.
MAY_READ = {
    "common/base/log.c": (1, "the time of a line"),
    "orchestrator/cli/serve.c": (1, "where numbers of workers begin: D-244"),
    "orchestrator/http/readers.c": (1, "`created' of a response"),
    "orchestrator/http/served.c": (1, "`created' of a model"),
    "orchestrator/launch/job_dir.c": (1, "the age of a folder, by its time on disk"),
}
# Their deadlines are the wall clock's, except a condition's of condition.h.
BY_WALL = re.compile(r"\b(?:pthread_timedjoin_np|pthread_mutex_timedlock|pthread_rwlock_timed\w+|sem_timedwait|mtx_timedlock|"
                     r"cnd_timedwait|mq_timed\w+)\(")
CONDITION = re.compile(r"\bpthread_cond_timedwait\(")


def code(path):
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", f.read(), flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def sources():
    for room in ROOMS:
        for folder, _, names in os.walk(os.path.join(ROOT, room)):
            for name in names:
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    yield os.path.join(folder, name)


def main():
    wrong, seen = [], {}
    for path in sources():
        name, text = os.path.relpath(path, ROOT), code(path)
        n = len(READS.findall(text))
        if n != MAY_READ.get(name, (0, ""))[0]:
            wrong.append(f"{name} reads the wall clock {n} times: a deadline is gr_clock_ns()'s; else name it in tests/unit/check_clocks.py")
        seen[name] = n
        wrong += [f"{name}: {x}...) waits by the wall clock" for x in BY_WALL.findall(text)]
        if CONDITION.search(text) and "gr_condition_init(" not in text:
            wrong.append(f"{name}: a condition is waited for by the wall clock (gr_condition_init)")
    wrong += [f"{name} is not there any more, but named in tests/unit/check_clocks.py" for name in MAY_READ if name not in seen]
    print("1..1")
    print(f"{'not ' if wrong else ''}ok 1 - clocks of {len(seen)} files")
    for line in wrong:
        print(f"# {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
