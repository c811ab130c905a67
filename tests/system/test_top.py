#!/usr/bin/env python3
"""`graft top` at a running orchestrator: one look as text and JSON, and a terminal that is driven by keys.

usage: test_top.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import sys

from harness import TARGET, Skip, case, main, wait_for
from served import Serve
from terminal import Terminal

LEAVES = b"\x1b[?1049l"  # xterm's word for going back to the screen that was there before


def top(s, **more):
    return Terminal("top", env={k: v for k, v in s.env(**more).items() if k.startswith("GRAFT_") or k in more})


def needs_a_screen(s):
    if "without ncurses" in s.graft("top", status=2).stderr:
        raise Skip("this build has no ncurses")


def press(t, keys):
    os.write(t.lead, keys)


def workers(s):
    return {w["worker"]: w for w in s.list()["workers"]}


@case
def one_look():
    with Serve(draft=False) as s:
        session = s.graft("session", "open", "--model", TARGET, "--prompt", "import os").stdout.strip()
        seen = json.loads(s.graft("top", "--once", "--json").stdout)
        assert seen["summary"]["targets"] == 1 and seen["summary"]["idle"] == 1, seen
        row, = seen["sessions"]
        assert row["id"] == session and row["tokens_per_second"] == 0, row
        w, = seen["workers"]
        assert 0 <= w["free_kv_blocks"] <= w["kv_blocks"] and w["kv_blocks"] > 0, w
        text = s.graft("top", "--once").stdout
        assert session in text and "targets 1, drafters 0; sessions 1" in text, text
        assert session not in s.graft("top", "--once", "--filter", "serving").stdout
        refused = s.graft("top", status=2).stderr
        assert "terminal" in refused or "without ncurses" in refused, refused
        assert "--once" in s.graft("top", "--json", status=2).stderr


@case
def keys_at_a_terminal():
    with Serve(draft=False) as s:
        needs_a_screen(s)
        session = s.graft("session", "open", "--model", TARGET, "--prompt", "import os").stdout.strip()
        with top(s, COLUMNS="120", LINES="30") as t:
            t.until("targets 1, drafters 0; sessions 1")
            t.until(session)
            press(t, b"jdn")  # asked about, and not done
            press(t, b"dy")
            wait_for(lambda: workers(s)[1]["state"] == "drained" and t.read(0) is not None)
            press(t, b"uy")
            wait_for(lambda: workers(s)[1]["state"] == "serving" and t.read(0) is not None)
            press(t, b"jcy")
            wait_for(lambda: s.sessions() == [] and t.read(0) is not None)
            press(t, b"q")
            assert t.end() == 0, t.out
            assert LEAVES in t.raw, t.raw


@case
def the_orchestrator_goes_away():
    """The terminal is given back, and one line says why."""
    with Serve(draft=False) as s:
        needs_a_screen(s)
        with top(s) as t:
            t.until("targets 1")
            s.graft("stop", "--now")
            assert t.end() == 1, t.out
            assert b"is gone" in t.raw.split(LEAVES)[-1], t.raw
        s.p.wait()


sys.exit(main())
