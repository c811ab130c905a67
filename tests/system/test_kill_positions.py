#!/usr/bin/env python3
"""Targets that are killed at each position of a text, and that are started again before they are missed: text, reason and
usage are those of an answer that nothing has cut. Few times in the short form, 200 of each in the long one.

usage: test_kill_positions.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import os
import signal
import sys
import threading

from harness import DRAFT, TARGET, case, main, wait_for
from endpoint import PROMPT, Endpoint
from kept import Answer, Kept
from served import worker

N_TIME = 200 if os.environ.get("GRAFT_TEST_LONG", "") else 3
N_TOKEN = 200 if N_TIME > 3 else 400  # of few kills each must meet its turn
COMPLETIONS = "/v1/completions"
BODY = {"prompt": PROMPT, "temperature": 1, "seed": 11, "max_tokens": N_TOKEN, "ignore_eos": True,
        "repetition_penalty": 1.05, "num_speculative_tokens": 7}


class Acting(Answer):
    """Does something once, when so many tokens have come."""

    def __init__(self, position, act):
        super().__init__()
        self.position, self.act = position, act

    def take_id(self, name):
        super().take_id(name)
        if self.act is not None and self.at >= self.position:
            act, self.act = self.act, None
            act()


def answered(s, body, position=0, act=None):
    k = Kept(s, COMPLETIONS, body)
    k.answer = Acting(position, act)
    got = k.read()
    assert got.n_break == 0 and got.done and k.answer.act is None, (got.n_break, position)
    return got


def same(got, want, where):
    for name in ("text", "finish", "usage"):
        assert getattr(got, name) == getattr(want, name), (where, name, getattr(got, name), getattr(want, name))


@contextlib.contextmanager
def fleet(n_target, *args):
    """An endpoint, its drafter, and targets by name, which start() makes anew."""
    with Endpoint("--quarantine", "0", "--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        targets = {}

        def start(name):
            targets[name] = stack.enter_context(worker("graft-target", s.folder, s.address, "--log-level", "error", *args,
                                                        GRAFT_SEAT=name))
        for i in range(n_target):
            start(f"t{i}")
        stack.enter_context(worker("graft-draft", s.folder, s.address, "--supervise", "--log-level", "error",
                                   model=DRAFT))
        s.wait("--draft", DRAFT)
        wait_for(lambda: len(s.list()["workers"]) == n_target + 1)
        yield s, targets, start


def in_the_midst_of_its_end(text):
    """Twelve characters near the end of a text, which come there first: some tokens, whichever they are."""
    end = len(text) - 4
    return next(text[at:at + 12] for at in range(end - 12, 0, -1) if text.find(text[at:at + 12]) == at)


@case
def a_target_killed_at_each_position():
    """The turn goes on at another target, by max_tokens and by a stop string that tokens on both sides of a cut make up."""
    with fleet(2) as (s, targets, start):
        whole = answered(s, BODY)
        assert whole.finish == "length", whole.finish
        bodies = (BODY, dict(BODY, stop=[in_the_midst_of_its_end(whole.text)]))
        want = (whole, answered(s, bodies[1]))
        assert want[1].finish == "stop" and whole.text.startswith(want[1].text), want[1].text

        def kill():
            for p in targets.values():  # or the turn may be over before it is known who has it
                p.send_signal(signal.SIGSTOP)
            there = s.list()
            its = [x["target"] for x in there["sessions"]]  # none where the turn is over, and its last tokens are on their way
            pids = [w["pid"] for w in there["workers"] if w["worker"] in its]
            name = next((n for n, p in targets.items() if p.pid in pids), "t0")
            targets[name].kill()
            targets[name].wait()
            for p in targets.values():
                p.send_signal(signal.SIGCONT)
            killed.append(name)

        killed = []
        last = want[1].usage["completion_tokens"] - 12
        positions = sorted({max(1, round(i * last / N_TIME)) for i in range(1, N_TIME + 1)})
        for i, position in enumerate(positions):
            same(answered(s, bodies[i % 2], position, kill), want[i % 2], position)
            start(killed[-1])
            wait_for(lambda: len([w for w in s.list()["workers"] if w["role"] == "target"]) == 2)
        n_reopen = s.metrics()["graft_reopens_total"]
        assert len(killed) == len(positions) and n_reopen >= len(killed) // 2, (killed, n_reopen)
        print(f"# {len(killed)} kills at {len(positions)} positions of {last}: {killed.count('t0')} and {killed.count('t1')}", flush=True)


@case
def a_target_that_is_back_before_it_is_missed():
    """Under the load of three streams: its seat is taken by its next process at once, and nobody waits for a silence."""
    with fleet(1, "--max-model-len", "2048") as (s, targets, start):
        bodies = [dict(BODY, seed=i, max_tokens=300) for i in range(3)]
        want = [answered(s, b) for b in bodies]
        over, seen, wrong = threading.Event(), [0] * len(bodies), []

        def stream_on(i):
            try:
                while not over.is_set():
                    same(answered(s, bodies[i]), want[i], i)
                    seen[i] += 1
            except Exception as e:  # pylint: disable=broad-exception-caught
                wrong.append(e)
        streams = [threading.Thread(target=stream_on, args=(i,)) for i in range(len(bodies))]
        for t in streams:
            t.start()
        try:
            for n in range(1, N_TIME + 1):
                wait_for(lambda: wrong or len([x for x in s.sessions() if x["state"] == "running" and x["rounds"] > 0]) == 3)
                targets["t0"].kill()
                start("t0")
                wait_for(lambda: s.metrics()["graft_workers_joined_total{role=\"target\"}"] == n + 1)
                assert not wrong, wrong[0]
        finally:
            over.set()
            for t in streams:
                t.join()
        assert not wrong, wrong[0]
        m, log = s.metrics(), s.log()
        assert min(seen) > 0 and m["graft_reopens_total"] >= N_TIME and "has been silent" not in log, (seen, m, log[-2000:])
        wait_for(s.is_quiet)
        print(f"# {N_TIME} restarts, {sum(seen)} answers, {m['graft_reopens_total']:.0f} re-opens", flush=True)


sys.exit(main())
