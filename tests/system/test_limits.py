#!/usr/bin/env python3
"""Limits of the machine that a run meets: the size of files, room for shared memory, what killed processes have left.

usage: test_limits.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

from harness import DRAFT, GRAFT, SLOW, TARGET, case, generate, main, wait_for
from served import FIXED, Serve

RUN = (GRAFT, "run", "--json", "--model", TARGET, "--prompt", "def fibonacci(n):", "--max-tokens", "64", "--ignore-eos",
       "--num-speculative-tokens", "7")
TEXT = ("--max-tokens", "64", "--ignore-eos")


def is_held(path):
    """The living hold theirs, of which other tests have some."""
    try:
        with open(path, "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except (FileNotFoundError, BlockingIOError):
        return True  # the first: until now


def left_behind():
    """Segments of the dead."""
    return {x for x in os.listdir("/dev/shm") if x.startswith("graft-") and not is_held(os.path.join("/dev/shm", x))}


def run_limited(*args, before=(), **kw):
    """`graft run` with a draft model; its JSON and standard error."""
    done = subprocess.run([*before, *RUN, "--draft", DRAFT, *args], capture_output=True, text=True, timeout=60 * SLOW,
                          check=False, **kw)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout), done.stderr


def falls_back(out, err, word):
    """GR_FALLBACK_TRANSPORT."""
    lines = err.splitlines()
    assert len(lines) == 1 and "[transport][fallback] a transport did not open: shm: " in lines[0] and word in lines[0], lines
    assert out["metrics"]["transport"] == "tcp" and out["metrics"]["fallbacks"] == 1, out["metrics"]
    assert out["metrics"]["num_accepted_tokens"] > 0, out["metrics"]


def no_large_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))


@case
def limit_on_file_sizes():
    """`ulimit -f` below a segment (the signal SIGXFSZ): the transport falls back, nobody dies, nothing is left.
    README: "every fall-back is one log line and a counter"."""
    plain = generate(*TEXT)
    before = left_behind()
    out, err = run_limited(preexec_fn=no_large_files)
    falls_back(out, err, "ulimit -f")
    assert out["token_ids"] == plain["token_ids"]
    wait_for(lambda: left_behind() <= before)  # others make some as well, for a moment


@case
def limit_on_file_sizes_with_shm_forced():
    """With shm as the only transport that is allowed an error line says what is wrong; the text is complete."""
    plain = generate(*TEXT)
    out, err = run_limited("--transport", "shm", preexec_fn=no_large_files)
    assert out["token_ids"] == plain["token_ids"]
    assert out["metrics"]["num_accepted_tokens"] == 0
    assert any("error" in x and "shm" in x and "ulimit -f" in x for x in err.splitlines()), err
    assert "killed by signal" not in err, err


@case
def full_shared_memory():
    """/dev/shm without room: the same, and no SIGBUS later."""
    private = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh")
    try:
        able = subprocess.run([*private, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        able = False
    if not able:
        print("# skipped: no mount namespace can be had here")
        return
    out, err = run_limited(before=private)
    falls_back(out, err, "enlarge /dev/shm")


@case
def segments_of_the_dead():
    """What a killed process has left goes with the next start; what a living one holds stays."""
    held, left = (f"/dev/shm/graft-{digit * 32}" for digit in "ab")
    with open(held, "w", encoding="ascii") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        maker = subprocess.Popen([sys.executable, "-c", "import fcntl, signal, sys\n"
                                  "f = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
                                  "print('made', flush=True)\nsignal.pause()", left], stdout=subprocess.PIPE)
        assert maker.stdout.readline() == b"made\n"
        try:
            generate("--draft", DRAFT, *TEXT)
            assert os.path.exists(left)
        finally:
            maker.send_signal(signal.SIGKILL)
            maker.wait()
            maker.stdout.close()
        generate("--draft", DRAFT, *TEXT)
        assert not os.path.exists(left)
        assert os.path.exists(held)
        os.remove(held)


@case
def kills_in_every_phase_leave_nothing():
    """Thirty pairs, each killed as a whole at another moment, from before its segment is made until it decodes: who comes next
    removes what they have left, and a pair beside them goes on. [F3]"""
    with Serve() as s:
        want = s.generate("--max-tokens", "6000", "--ignore-eos")["token_ids"]
        living = s.start(tokens=6000)
        before = left_behind()
        for i in range(30):
            p = subprocess.Popen([*RUN, "--draft", DRAFT, "--max-tokens", "20000"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(0.01 * i * SLOW)
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
        wait_for(lambda: generate("--draft", DRAFT, *TEXT) and left_behind() <= before)
        out, err = living.communicate(timeout=60 * SLOW)
        assert living.returncode == 0 and json.loads(out)["token_ids"] == want, err


def strangers(address, n):
    """Connections that say nothing."""
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=20) for _ in range(n)]


@case
def strangers_keep_no_client_away():
    """Idle connections at the clients' door and at the target's data path: clients and a drafter that starts anew get in."""
    with Serve() as s:
        data = next(w["address"] for w in s.list()["workers"] if w["role"] == "target")
        idle = strangers(s.address, 16)
        s.generate("--max-tokens", "8")
        begin = time.monotonic()
        idle += strangers(s.address, 200) + strangers(data, 200)
        s.generate("--max-tokens", "8")
        assert time.monotonic() - begin < 20 * SLOW  # a second; sixteen of them in three seconds are 75
        s.kill_child("graft-draft")
        wait_for(lambda: s.generate("--max-tokens", "32", *FIXED)["metrics"]["num_accepted_tokens"] > 0, 30)
        for x in idle:
            x.close()


if __name__ == "__main__":
    sys.exit(main())
