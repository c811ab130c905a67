#!/usr/bin/env python3
"""A real `graft serve' at its limits: 64 workers, 512 clients, 4,096 sessions, and those that only look, by graft-bench server.

usage: test_scale.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import subprocess
import time

from harness import BUILD, DRAFT, SLOW, TARGET, case, main, wait_for
from served import Folder, Serve, free_port, worker

BENCH = os.path.join(BUILD, "graft-bench")
# A sanitized build takes ten times as long, and its memory several times as much.
WORKERS, CLIENTS, SESSIONS = (64, 512, 4096) if SLOW < 10 else (16, 64, 512)
LIMIT_MS = 10000  # the time that a client has for its hello alone


def server(*args, status=0):
    done = subprocess.run([BENCH, "server", "-o", "json", *args], capture_output=True, text=True, timeout=240 * SLOW, check=False)
    assert done.returncode == status, (args, done.returncode, done.stdout[-500:], done.stderr[-1000:])
    return json.loads(done.stdout)["rows"] if status == 0 else done.stderr


@case
def all_workers_clients_and_sessions_that_there_may_be():
    """The program itself checks every token, that the client after the last is told so, and that those that look have no turns."""
    row, = server("--targets", str(WORKERS), "--clients", str(CLIENTS), "--sessions", str(SESSIONS), "--seconds", "1",
                  "--rate", str(10000 / SLOW))
    assert row["answered"] == row["listed"] == SESSIONS and row["clients"] == CLIENTS, row
    assert max(row["ping ms"], row["list ms"], row["client ms"]) < LIMIT_MS * SLOW, row
    assert 0 < row["us/COMMIT"] and 0 < row["us/opening"], row


@case
def more_than_there_may_be_is_refused():
    assert "--targets" in server("--targets", "65", status=2)
    assert "--clients" in server("--clients", "513", status=2)
    assert "--sessions" in server("--sessions", "4097", status=2)


@case
def all_workers_come_back_at_once():
    """The orchestrator is killed with as many workers as it takes, and another one starts: five seconds later all are there,
    and none was turned away or hung up on. [F5]"""
    folder, control = Folder(), f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        def begin():
            return Serve(spawn=False, control=control, folder=folder)

        def all_joined(s):
            wait_for(lambda: len(s.list()["workers"]) == WORKERS)
        s = begin()
        for i in range(WORKERS):
            program, model = ("graft-draft", DRAFT) if i > 0 else ("graft-target", TARGET)
            stack.enter_context(worker(program, folder, control, "--supervise", "--threads", "1", model=model))
        all_joined(s)
        for pause in (0, 3):  # for as long as their pauses are short, and until they are long
            s.p.kill()
            s.p.wait()
            s.err.close()
            time.sleep(pause)
            s, began = begin(), time.monotonic()
            all_joined(s)
            assert time.monotonic() - began < 5 * SLOW, time.monotonic() - began
            other = [x for x in s.log().splitlines() if "joined" not in x and not x.startswith("serving on")]
            assert not other or SLOW > 1, other[:5]  # the time for a hand-shake is the same on a slow machine
        s.end()


if __name__ == "__main__":
    main()
