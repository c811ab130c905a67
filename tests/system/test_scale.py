#!/usr/bin/env python3
"""A real `graft serve' at its limits: 64 workers, 512 clients, 4,096 sessions, and those that only look, by graft-bench server.

usage: test_scale.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import subprocess

from harness import BUILD, SLOW, case, main

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


if __name__ == "__main__":
    main()
