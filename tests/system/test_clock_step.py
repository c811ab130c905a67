#!/usr/bin/env python3
"""A wall clock that is set, an hour on and an hour back, ends, expires and condemns nothing.

usage: test_clock_step.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import time

from endpoint import Endpoint
from harness import BUILD, DRAFT, SLOW, TARGET, Skip, case, generate, main, wait_for
from served import Folder, worker

HOUR = 3600
PROMPT = "import os"
TOKENS = 300


class Stepped(Folder):
    """All that is started in it sees the clock jump."""

    def __init__(self):
        super().__init__()
        self.step = self.path("step")

    def env(self, **more):
        return super().env(LD_PRELOAD=os.path.join(BUILD, "tests/system/libclock_step.so"), GRAFT_CLOCK_STEP=self.step,
                           **more)


def hours_on(s):
    """What the server's clock shows, a turn of it being answered."""
    return round((s.complete(prompt="class A:", max_tokens=2)["created"] - time.time()) / HOUR)


@contextlib.contextmanager
def an_hour_on(folder):
    with open(folder.step, "w", encoding="utf-8"):
        pass
    yield
    os.remove(folder.step)


def ends_with(turn, want):
    out, err = turn.communicate(timeout=120 * SLOW)
    assert turn.returncode == 0 and json.loads(out)["token_ids"] == want, err


@case
def a_step_of_the_wall_clock_changes_nothing():
    if SLOW >= 10:
        raise Skip("a sanitizer comes before what is preloaded")
    want = generate("--prompt", PROMPT, "--ignore-eos", "--max-tokens", str(TOKENS), "--method", "none")["token_ids"]
    folder = Stepped()
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(Endpoint("--journal", folder.path("journal"), "--model", TARGET, "--session-ttl", "1800",
                                         "--queue-timeout", "1800", "--journal-keep", "1800", spawn=False, folder=folder))
        turn = s.start(prompt=PROMPT, tokens=TOKENS)
        wait_for(lambda: len(s.sessions()) == 1)
        waited = s.sessions()[0]["id"]
        with an_hour_on(folder):  # a turn that waits for a target goes on waiting
            assert [x["id"] for x in s.sessions()] == [waited] and turn.poll() is None
        t = stack.enter_context(worker("graft-target", folder, s.address, "--max-model-len", "4096"))
        d = stack.enter_context(worker("graft-draft", folder, s.address, "--target", TARGET, model=DRAFT))
        s.wait("--draft", DRAFT)
        ends_with(turn, want)
        kept = s.graft("session", "open", "--model", TARGET, "--prompt", PROMPT, "--max-tokens", "8").stdout.strip()
        assert hours_on(s) == 0
        turn = s.start(prompt=PROMPT, tokens=TOKENS)
        wait_for(lambda: turn.poll() is not None or any(x["rounds"] > 2 for x in s.sessions() if x["id"] != kept))
        with an_hour_on(folder):
            assert hours_on(s) == 1
        assert hours_on(s) == 0
        ends_with(turn, want)
        with an_hour_on(folder):  # an idle session, and an answer that is over
            assert hours_on(s) == 1
            assert json.loads(s.graft("session", "show", waited, "--text", "--json").stdout)["token_ids"] == want
            s.graft("session", "send", kept, "--model", TARGET, "--prompt", "\nclass A:", "--max-tokens", "8")
        assert {x["pid"] for x in s.list()["workers"]} == {t.pid, d.pid}, s.log()
        lost = {k: v for k, v in s.metrics().items() if "workers_lost" in k}
        assert lost and not any(lost.values()), (lost, s.log())


if __name__ == "__main__":
    raise SystemExit(main())
