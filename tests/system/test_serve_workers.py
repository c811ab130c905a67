#!/usr/bin/env python3
"""`graft serve` and its workers as a user starts them: how they end, and workers that come, go and do not fit.

usage: test_serve_workers.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import signal
import sys
import time

from harness import DRAFT, ENDLESS, SLOW, alive, case, children, generate, is_plain, main, run, wait_for
from served import A_IDS, B_IDS, FIXED, PLAIN, PROMPT, Folder, Serve, free_port, one_line, worker
from weights import with_other_tokenizer


# ---- ends ----

@case
def interrupt_ends_serve():
    with Serve() as s:
        pids = [s.child("graft-target"), s.child("graft-draft")]
        s.generate("--max-tokens", "4", "--keep")
        s.end()
        assert not any(alive(p) for p in pids)


@contextlib.contextmanager
def a_turn_that_waits(tokens):
    """A server with a turn that no target takes until one is started: it lasts as long as the test likes."""
    with Serve("--drain-timeout", "120", "--queue-timeout", "120", spawn=False) as s:
        turn = s.start(tokens=tokens)
        wait_for(lambda: [x["state"] for x in s.sessions()] == ["waiting"])
        yield s, turn


def is_served(s, turn, tokens):
    """Its target comes when the server is ending already; the turn has its whole text."""
    with worker("graft-target", s.folder, s.address) as t:
        out, err = turn.communicate(timeout=60 * SLOW)
        assert turn.returncode == 0 and len(json.loads(out)["token_ids"]) == tokens, err
        assert s.p.wait(timeout=20 * SLOW) == 0, s.log()
        assert t.wait(timeout=20 * SLOW) == 0


@case
def a_stop_and_a_signal_are_no_haste():
    """Whichever comes first: the turn has its whole text."""
    for signal_first in (True, False):
        with a_turn_that_waits(600) as (s, turn):
            if signal_first:
                s.p.send_signal(signal.SIGTERM)
                wait_for(lambda: "finishing 1 turn" in s.log())
            stop = s.graft("stop", "--timeout", str(int(SLOW)), status=1)
            one_line(stop, "it is finishing its turns")  # it was heard
            if not signal_first:
                s.p.send_signal(signal.SIGTERM)
            is_served(s, turn, 600)


@case
def first_signal_drains_second_ends():
    with a_turn_that_waits(400) as (s, turn):
        s.p.send_signal(signal.SIGTERM)
        wait_for(lambda: "finishing 1 turn" in s.log())
        one_line(s.graft("run", "--connect", s.address, *PLAIN, "--prompt", "x", status=1), "shutting down")
        is_served(s, turn, 400)
    with Serve(draft=False) as s:
        target = s.child("graft-target")
        p = s.start(tokens=30000)
        s.wait_running()
        s.p.send_signal(signal.SIGINT)
        wait_for(lambda: "finishing 1 turn" in s.log())
        s.p.send_signal(signal.SIGINT)
        assert s.p.wait(timeout=20 * SLOW) == 1  # a turn was cut
        out, err = p.communicate(timeout=20 * SLOW)
        assert p.returncode == 1 and "told to end at once" in err, err
        assert not alive(target)


# ---- workers ----

@case
def killed_workers_change_nothing():
    with Serve() as s:
        for name, said in (("graft-target", "re-opening it as epoch 2"), ("graft-draft", "its draft worker is lost")):
            p = s.start(*FIXED, tokens=ENDLESS)
            s.wait_running()
            s.kill_child(name)
            wait_for(lambda: said in s.log())  # pylint: disable=cell-var-from-loop
            s.wait("--draft", DRAFT)
            s.wait_tokens(100)
            is_plain(s.interrupt(p)["token_ids"], prompt=PROMPT)
            assert s.log().count("re-opening") == 1, s.log()


@case
def workers_that_hang_come_back():
    """Silent for longer than pings are waited for, then alive again: the link is dropped, and they join once more."""
    with Serve() as s:
        want = s.turn(A_IDS, "--max-tokens", "10")["token_ids"]
        hung = [s.child(name) for name in ("graft-target", "graft-draft")]
        for pid in hung:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: s.list()["workers"] == [])
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: len(s.list()["workers"]) == 2)
        assert {w["pid"] for w in s.list()["workers"]} == set(hung)
        assert s.turn(A_IDS, "--max-tokens", "10")["token_ids"] == want


@case
def idle_session_survives_its_target():
    with Serve(draft=False) as s:
        first = s.turn(A_IDS, "--max-tokens", "10", "--keep")
        s.kill_child("graft-target")
        second = s.turn(B_IDS, "--max-tokens", "10", "--session", first["session"])
        want = s.turn(A_IDS + first["token_ids"] + B_IDS, "--max-tokens", "10")
        assert second["token_ids"] == want["token_ids"]
        assert [x["epoch"] for x in s.sessions()] == [2]


@case
def drafter_comes_between_turns():
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address):
        s.wait()
        first = s.turn(A_IDS, "--max-tokens", "10", "--keep", *FIXED)
        assert first["metrics"]["num_drafts"] == 0
        with worker("graft-draft", s.folder, s.address, model=DRAFT):
            s.wait("--draft", DRAFT)
            second = s.turn(B_IDS, "--max-tokens", "10", "--session", first["session"])
            assert second["metrics"]["num_drafts"] > 0
        third = s.turn(A_IDS, "--max-tokens", "10", "--session", first["session"])  # it is gone again
        ids = A_IDS + first["token_ids"] + B_IDS
        want = s.turn(ids, "--max-tokens", "10")
        assert second["token_ids"] == want["token_ids"]
        want = s.turn(ids + second["token_ids"] + A_IDS, "--max-tokens", "10")
        assert third["token_ids"] == want["token_ids"]


@case
def wait_and_ping():
    with Serve(spawn=False) as s:
        one_line(s.graft("wait", "--timeout", "0", status=1), "no target worker")
        with worker("graft-target", s.folder, s.address):
            s.wait()
            one_line(s.graft("wait", "--timeout", "0", "--draft", DRAFT, status=1), "no draft worker")
            rows = json.loads(s.graft("ping", "--count", "5", "--json").stdout)
            assert [r["peer"] for r in rows] == ["orchestrator", "target"], rows
            assert all(0 < r["min_ms"] <= r["median_ms"] <= r["max_ms"] for r in rows), rows
            assert "median of 10" in s.graft("ping").stdout
    one_line(run("ping", "--connect", "127.0.0.1:1", env={"GRAFT_KEY": "00" * 32}), "127.0.0.1:1")


@case
def timeouts_bound_a_silent_server():
    """It is stopped, so that the kernel takes connections and nobody answers: neither HELLO's own time-out of ten seconds nor
    that of an answer is waited for."""
    with Serve(spawn=False) as s:
        os.kill(s.p.pid, signal.SIGSTOP)
        try:
            for what, limit in (("wait", 2), ("stop", 2), ("wait", 11)):
                begin = time.monotonic()
                one_line(s.graft(what, "--timeout", str(limit), status=1), s.address)
                took = time.monotonic() - begin
                assert limit - 0.1 < took < limit + 4 * SLOW, (what, limit, took)
        finally:
            os.kill(s.p.pid, signal.SIGCONT)


@case
def a_long_wait_is_told():
    """Once, by who waits for longer than two seconds and so long alone."""
    address = f"127.0.0.1:{free_port()}"
    key = {"GRAFT_KEY": "00" * 32}
    lines = run("wait", "--timeout", "3", "--connect", address, env=key).stderr.splitlines()
    assert len(lines) == 2 and f"waiting for {address} ..." in lines[0] and "within 3 s" in lines[1], lines
    one_line(run("wait", "--timeout", "1", "--connect", address, env=key), "within 1 s")


@case
def workers_may_come_first():
    folder = Folder()
    address = f"127.0.0.1:{free_port()}"
    with worker("graft-target", folder, address, "--join-timeout", "8") as t:
        with worker("graft-draft", folder, address, model=DRAFT):
            with Serve(spawn=False, control=address, folder=folder) as s:
                s.wait("--draft", DRAFT)
                assert s.generate("--max-tokens", "8", *FIXED)["metrics"]["num_drafts"] > 0
                s.p.kill()
                s.p.wait()
        assert t.wait(timeout=20 * SLOW) == 3  # the orchestrator stays away
    with worker("graft-target", folder, address, "--join-timeout", "0") as t:
        _, err = t.communicate(timeout=20 * SLOW)
        assert t.returncode == 1 and address in err, err


def ends_in_a_pass_and_is_started_again(said, *args):
    """A supervised target that ends in its 40th pass says so, and the text goes on as it must."""
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, "--supervise", *args) as t:
        s.wait()
        want = generate("--max-tokens", "60", "--ignore-eos")["token_ids"]
        assert s.generate("--max-tokens", "60", "--method", "none")["token_ids"] == want
        assert t.poll() is None
        t.send_signal(signal.SIGTERM)
        _, err = t.communicate(timeout=20 * SLOW)
    assert said in err and "its device or its group failed, or a pass hung; starting it again" in err, err


@case
def worker_whose_device_fails_is_started_again():
    ends_in_a_pass_and_is_started_again("the device failed in a pass", "--test-fail-pass", "40")


@case
def worker_whose_pass_hangs_is_started_again():
    """It answers pings all the while, from another thread: only its own watch can tell that no pass ends any more."""
    limit = str(int(1 * SLOW))
    ends_in_a_pass_and_is_started_again("it is taken to have hung", "--test-hang-pass", "40", "--pass-timeout", limit)


@case
def worker_whose_pass_hangs_can_be_told_to_end():
    hangs = ("--test-hang-pass", "40", "--pass-timeout", "0", "--drain-timeout", "1")
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, *hangs) as t:
        s.wait()
        turn = s.start("--method", "none")
        s.wait_running(0)
        t.send_signal(signal.SIGTERM)
        _, err = t.communicate(timeout=60 * SLOW)
        assert t.returncode == 1 and "the pass that runs has not ended either" in err, err
        turn.kill()
        turn.communicate()


@case
def a_supervised_server_that_was_told_to_stop_stays_away():
    """Its turn outlasts the limit, so that it ends with status 1: that is an ordered end all the same. No target takes the
    turn, which therefore lasts."""
    with Serve("--supervise", "--drain-timeout", "1", "--queue-timeout", "600", spawn=False) as s:
        turn = s.start(tokens=4)
        wait_for(lambda: len(s.sessions()) == 1)
        assert run("stop", "--timeout", "60", env=s.env()).returncode in (0, 1)
        _, err = turn.communicate(timeout=60 * SLOW)
        assert turn.returncode == 1 and "there is no target" in err, err
        assert s.p.wait(timeout=60 * SLOW) == 1
        assert "starting it again" not in s.log() and "is back" not in s.log(), s.log()


@case
def supervised_worker_comes_back():
    folder = Folder()
    address = f"127.0.0.1:{free_port()}"
    with worker("graft-target", folder, address, "--supervise") as t:
        real = lambda: [pid for pid, cmd in children(t.pid) if cmd.endswith("graft-target")]
        with Serve(spawn=False, control=address, folder=folder) as s:
            s.wait()
            first = real()
            os.kill(first[0], signal.SIGKILL)
            wait_for(lambda: real() and real() != first)
            wait_for(lambda: len(s.list()["workers"]) == 1 and s.list()["workers"][0]["pid"] == real()[0])
            s.p.kill()
            s.p.wait()
        with Serve(spawn=False, control=address, folder=folder) as s:
            s.wait()
            s.generate("--max-tokens", "4")
            last = real()
            t.send_signal(signal.SIGTERM)
            assert t.wait(timeout=20 * SLOW) == 0
            assert not alive(last[0])


@case
def misfits_are_told():
    with Serve(draft=False) as s, with_other_tokenizer(DRAFT) as other:
        with worker("graft-draft", s.folder, s.address, model=other):
            wait_for(lambda: "is for none of the targets that are here; target worker 1: its tokenizer has fingerprint" in s.log())
            assert "is for its model" in s.generate(*FIXED, "--max-tokens", "4")["undrafted"]
        with worker("graft-target", s.folder, s.address, "--served-model-name", "target", model=DRAFT) as w:
            _, err = w.communicate(timeout=20 * SLOW)
            assert w.returncode == 1 and "refused" in err and "model `target'" in err and "fingerprint" in err, err
            assert "of this target has fingerprint" in s.log()
        done = s.graft("run", "--connect", s.address, "--model", other, "--prompt", "x", status=1)
        one_line(done, "tokenizer", "fingerprint")
        assert len(s.generate("--max-tokens", "4")["token_ids"]) == 4  # the others go on


sys.exit(main())
