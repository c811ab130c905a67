#!/usr/bin/env python3
"""Workers that keep failing, and workers whose seat another process has taken: no text changes, and each is told.

usage: test_seats.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import signal
import sys
import time
import urllib.request

from harness import DRAFT, ENDLESS, SLOW, TARGET, case, children, generate, main, wait_for
from served import FIXED, PROMPT, Serve, worker
from stream import closed, running_again


def workers(s):
    return json.loads(s.graft("worker", "list", "--json").stdout)["workers"]


def as_plain(out):
    """The metrics of a turn whose text is plain's, as far as it goes."""
    ids = out["token_ids"]
    assert ids == generate("--prompt", PROMPT, "--max-tokens", str(len(ids)), "--ignore-eos")["token_ids"]
    return out["metrics"]


def metric(s, name):
    port = re.search(r"at http://127\.0\.0\.1:(\d+)/v1", s.log()).group(1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20 * SLOW) as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).rsplit(" ", 1)[1])


def event(s, name):
    return metric(s, f'graft_quarantine_events_total{{event="{name}"}}')


def pid_under(supervisor):
    return next((pid for pid, _ in children(supervisor.pid)), 0)


def turn_at_the_only(s, other, freeze=None):
    """A turn that has begun elsewhere than at this worker, and stands where the one that has it is frozen."""
    s.graft("worker", "drain", other)
    turn = s.start(*FIXED, tokens=ENDLESS)
    s.wait_running()
    if freeze:
        os.kill(freeze, signal.SIGSTOP)
    s.graft("worker", "undrain", other)
    return turn


@case
def a_target_that_keeps_dying_is_passed_over():
    """Two supervised targets, of which one is killed, and killed again when it is back: its turn goes on at the other one; it
    is in quarantine for 1 s, then for 2 s, is tried with one session, and is back. One failure is enough here, since a slow
    machine takes long for a start."""
    with Serve("--quarantine", "1", "--http", "127.0.0.1:0", "--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        steady = stack.enter_context(worker("graft-target", s.folder, s.address, "--supervise"))
        dying = stack.enter_context(worker("graft-target", s.folder, s.address, "--supervise"))

        def its():
            """The dying one, by what it is at present."""
            return next((w for w in workers(s) if w["pid"] == pid_under(dying)), None)

        wait_for(lambda: len(workers(s)) == 2 and its())
        seat = its()["seat"]
        other = str(next(w["worker"] for w in workers(s) if w["seat"] != seat))
        turn = turn_at_the_only(s, other, freeze=pid_under(dying))
        numbers = [its()["number"]]
        for i in range(2):
            os.kill(pid_under(dying), signal.SIGKILL)
            n_lost = i + 1
            wait_for(lambda: metric(s, 'graft_workers_lost_total{role="target"}') == n_lost)  # pylint: disable=cell-var-from-loop
            wait_for(its)
            assert its()["seat"] == seat
            numbers.append(its()["number"])
            time.sleep(0.11)  # what comes within 100 ms counts once
        assert numbers == sorted(set(numbers)), numbers
        running_again(s.sessions)
        assert as_plain(closed(s, turn))["reopens"] >= 1
        assert its()["state"] in ("quarantine", "trial"), its()
        log = s.log()
        for pause in ("1.0", "2.0"):
            assert log.count(f"is in quarantine for {pause} s") == 1, log
        assert event(s, "begun") == 2 and event(s, "ended") == 0
        wait_for(lambda: its()["state"] == "trial", 60)
        as_plain(closed(s, turn_at_the_only(s, other)))
        wait_for(lambda: its()["state"] == "serving")
        assert event(s, "ended") == 1 and "is out of quarantine" in s.log(), s.log()
        assert steady.poll() is None and dying.poll() is None


def freeze_and_replace(s, stack, old, program, model, seat):
    """A worker is frozen, another process takes its seat, and it goes on: it ends by itself, with status 0."""
    old.send_signal(signal.SIGSTOP)
    new = stack.enter_context(worker(program, s.folder, s.address, model=model, GRAFT_SEAT=seat))
    wait_for(lambda: any(w["pid"] == new.pid for w in workers(s)))
    assert all(w["pid"] != old.pid for w in workers(s))
    n_refused = s.log().count("belongs to a newer process")
    old.send_signal(signal.SIGCONT)
    _, err = old.communicate(timeout=60 * SLOW)
    assert old.returncode == 0 and "this worker ends: its seat" in err, (old.returncode, err)
    wait_for(lambda: s.log().count("belongs to a newer process") == n_refused + 1)
    return new


@case
def a_frozen_worker_whose_seat_is_taken():
    with Serve("--http", "127.0.0.1:0", "--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        target = stack.enter_context(worker("graft-target", s.folder, s.address, GRAFT_SEAT="t1"))
        draft = stack.enter_context(worker("graft-draft", s.folder, s.address, "--seat", "d1", model=DRAFT))
        wait_for(lambda: len(workers(s)) == 2)
        turn = s.start(*FIXED, tokens=ENDLESS)
        s.wait_running()
        freeze_and_replace(s, stack, target, "graft-target", TARGET, "t1")
        draft = freeze_and_replace(s, stack, draft, "graft-draft", DRAFT, "d1")
        running_again(s.sessions)
        assert as_plain(closed(s, turn))["reopens"] == 1
        assert [w["state"] for w in workers(s)] == 2 * ["serving"] and draft.poll() is None
        log = s.log()
        if "taken as lost" not in log:  # a process may take longer to start than a worker may be silent
            assert log.count("another process has taken its seat") == 2, log
            assert metric(s, "graft_workers_replaced_total") == 4


@case
def a_frozen_orchestrator_loses_nobody():
    """Five seconds in the midst of a turn: its judgement of silence begins anew, and so does its workers'."""
    with Serve() as s:
        pids = sorted(w["pid"] for w in workers(s))
        turn = s.start(*FIXED, tokens=ENDLESS)
        s.wait_running()
        s.p.send_signal(signal.SIGSTOP)
        time.sleep(5)
        s.p.send_signal(signal.SIGCONT)
        begin = s.sessions()[0]["tokens"]
        wait_for(lambda: s.sessions()[0]["tokens"] > begin + 50)
        out = closed(s, turn)
        assert out["metrics"]["reopens"] == 0, out["metrics"]
        # Workers went on meanwhile, for thousands of tokens: plain decoding, with which others compare, takes too long.
        assert out["token_ids"] == s.generate(*FIXED, "--max-tokens", str(len(out["token_ids"])))["token_ids"]
        log = s.log()
        assert sorted(w["pid"] for w in workers(s)) == pids
        assert not any(word in log for word in ("gone", "silent", "lost", "[fallback]", "quarantine")), log


if __name__ == "__main__":
    sys.exit(main())
