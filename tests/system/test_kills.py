#!/usr/bin/env python3
"""Workers are killed at random moments of a real run; the text must be the undisturbed one's, and the pauses short.

GRAFT_TEST_KILLS=N: kills per worker and transport (default 2; the long form has 20). GRAFT_TEST_SEED=N draws the moments.
GRAFT_TEST_METHOD=eagle3: with the head instead of the stand-alone draft model.
What is measured: how long the orchestrator takes to notice, when the first further text comes, how many rounds a lost
drafter is missed for, and whether its successor's trees are as good. TAP output.
"""
import os
import random
import signal
import sys
import time

from harness import DRAFT, HEAD, SLOW
from stream import Stream

N_KILL = int(os.environ.get("GRAFT_TEST_KILLS", "2"))
SEED = int(os.environ.get("GRAFT_TEST_SEED", str(int(time.time()))))
MODEL = HEAD if os.environ.get("GRAFT_TEST_METHOD") == "eagle3" else DRAFT
# Under sanitizers one of the two is dear enough.
TRANSPORTS = ("shm", "tcp") if SLOW == 1 else ("tcp",) if MODEL == HEAD else ("shm",)
N_TOKEN = 1400
CONTEXT_SHORT = 512
NOTICE_MS = 100 * SLOW
PAUSE_MS = 500 * SLOW
DEADLINE_MS = 200
N_TRY = 5  # other load on the machine makes a pause longer, or a drafter late, now and then; a slow restart is slow each time
OF_LOAD = ("the longest pause", "noticed after", "acceptance did not come back", "no tree came",
           "the new drafter's trees", "no such child")  # the last: the run was over before it was seen
PROMPT = "def main(argv):\n    \"\"\"Reads the file and counts its words.\"\"\"\n"


def start(transport):
    return Stream("--draft", MODEL, "--prompt", PROMPT, "--max-tokens", str(N_TOKEN), "--num-speculative-tokens", "4",
                  "--transport", transport, "--temperature", "0.8", "--seed", "7", "--round-deadline-ms", str(DEADLINE_MS))


n_case = 0
n_bad = 0


def case(name, problems):
    global n_case, n_bad
    n_case += 1
    if problems:
        n_bad += 1
    print(f"{'not ok' if problems else 'ok'} {n_case} - {name}", flush=True)
    for p in problems:
        print(f"# {p}", flush=True)


def one_kill(worker, transport, at_len, want):
    """Kills the worker when committed_len reaches at_len. Returns problems and (notice, pause) in ms."""
    r = start(transport)
    problems = []
    if not r.until(lambda r: r.committed >= at_len):
        r.p.kill()
        return [f"the run did not reach {at_len} tokens: {r.lines[-3:]}"], None
    pid = r.child(f"graft-{worker}")
    if pid is None:
        r.p.kill()
        return ["no such child"], None
    n_line = len(r.lines)
    os.kill(pid, signal.SIGKILL)
    t0 = time.monotonic()
    status = r.finish()
    if status != 0:
        problems.append(f"exit status {status}: {[x for _, x in r.lines[-3:]]}")
    if r.text != want:
        problems.append(f"the text differs: {len(r.text)} bytes, {len(want)} wanted")
    notice = [t for t, line in r.lines[n_line:] if b"was killed by signal 9" in line]
    pause = r.longest_pause_ms(t0)
    noticed = 1e3 * (notice[0] - t0) if notice else None
    if noticed is None or noticed > NOTICE_MS:
        problems.append(f"noticed after {noticed} ms, the limit is {NOTICE_MS}")
    limit = PAUSE_MS if worker == "target" else DEADLINE_MS * SLOW + 50
    if pause > limit:
        problems.append(f"the longest pause was {pause:.0f} ms, the limit is {limit:.0f}")
    if not problems:
        accepted, with_tree = r.acceptance(100)
        base, _ = BASE[transport].acceptance(100)
        if with_tree < 0.9 or accepted < 0.7 * base:
            problems.append(f"acceptance did not come back: {accepted:.2f} a round, {base:.2f} undisturbed, "
                            f"{100 * with_tree:.0f} % of rounds with a tree")
    recovery = r.recovery(t0, BASE[transport]) if worker == "draft" else None
    if worker == "draft" and not problems:
        problems += recovery_problems(transport, recovery)
    return problems, (noticed, pause, at_len)


def recovery_problems(transport, recovery):
    if recovery is None:
        return ["no tree came from the new drafter"]
    print(f"# {transport}: {recovery}", flush=True)
    good = recovery.n_tree <= 20 and recovery.mean >= 0.5 * recovery.same
    return [] if good else [f"the new drafter's trees are worse: {recovery}"]


BASE = {}


def main():
    random.seed(SEED)
    print(f"# GRAFT_TEST_SEED={SEED}")
    for transport in TRANSPORTS:
        base = start(transport)
        status = base.finish()
        BASE[transport] = base
        case(f"{transport}: the undisturbed run", [] if status == 0 and len(base.text) > N_TOKEN else ["it failed"])
        for worker in ("draft", "target"):
            figures = []
            for i in range(N_KILL):
                at_len = random.randint(30, CONTEXT_SHORT)
                for _ in range(N_TRY):
                    problems, figure = one_kill(worker, transport, at_len, base.text)
                    if not problems or not all(p.startswith(OF_LOAD) for p in problems):
                        break
                    print(f"# {transport}: {worker} killed at {at_len} tokens: {problems[0]}", flush=True)
                case(f"{transport}: {worker} killed at {at_len} tokens", problems)
                if figure and not problems:
                    figures.append(figure)
            if figures:
                notice = sorted(f[0] for f in figures)
                pause = sorted(f[1] for f in figures)
                print(f"# {transport} {worker}: noticed after {notice[len(notice) // 2]:.1f} ms (most {notice[-1]:.1f}), "
                      f"longest pause {pause[len(pause) // 2]:.0f} ms (most {pause[-1]:.0f}), {len(figures)} kills")
    print(f"1..{n_case}")
    sys.exit(1 if n_bad else 0)


main()
