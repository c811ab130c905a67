#!/usr/bin/env python3
"""`graft-bench transport`: what it prints, both ends apart, and what goes wrong in one line.

usage: test_transport_bench.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import signal
import subprocess
import sys

from harness import BUILD, SLOW, case, children, main, wait_for

BENCH = os.path.join(BUILD, "graft-bench")
ROUND_BYTES = (40 + 4 + 6 * 63) + (40 + 20 + 6) + (40 + 12 + 6 * 8192)  # docs/frames.md
KEY = "ab" * 32


def environment(key=None):
    env = {k: v for k, v in os.environ.items() if k not in ("GRAFT_KEY", "GRAFT_KEY_FILE")}
    return env if key is None else dict(env, GRAFT_KEY=key)


def bench(*args, key=None):
    return subprocess.run([BENCH, "transport", *args], capture_output=True, text=True, timeout=60 * SLOW, check=False,
                          env=environment(key))


def rows_of(text, transports, sizes, n):
    """The rows are exactly these, in order, and each makes sense."""
    rows = json.loads(text)["rows"]
    expected = [(t, test, size) for t in transports for test, size in [("ping", s) for s in sizes] +
                [("round", ROUND_BYTES)]]
    assert [(r["transport"], r["test"], r["bytes"]) for r in rows] == expected, rows
    for r in rows:
        assert r["n"] == n and 0 < r["min_us"] <= r["median_us"] <= r["p99_us"] and r["per_s"] > 0, r
    return rows


def one_line(done, status, *words):
    assert done.returncode == status, (done.returncode, done.stderr)
    lines = [x for x in done.stderr.splitlines() if not x.startswith("#")]
    assert len(lines) == 1 and all(w in lines[0] for w in words), done.stderr


class Listener:
    def __init__(self, key=KEY):
        self.p = subprocess.Popen([BENCH, "transport", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=environment(key))
        self.address = self.p.stdout.readline().split()[-1]

    def end(self):
        _, err = self.p.communicate(timeout=60 * SLOW)
        return subprocess.CompletedProcess([], self.p.returncode, "", err)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()


@case
def rows_of_every_transport():
    for busy in ((), ("--busy",)):
        done = bench("--json", "--sizes", "8,8192,8193,1048576", "--iters", "60", "--warmup", "3", *busy)
        assert done.returncode == 0, done.stderr
        rows_of(done.stdout, ("loop", "shm", "tcp"), (8, 8192, 8193, 1048576), 60)
        assert "RTT/2" in done.stderr and ("busy-polled" in done.stderr) == bool(busy), done.stderr


@case
def one_frame_is_enough():
    done = bench("--json", "--transport", "tcp,loop", "--sizes", "64", "--iters", "1", "--warmup", "0")
    assert done.returncode == 0, done.stderr
    for r in rows_of(done.stdout, ("tcp", "loop"), (64,), 1):
        assert r["min_us"] == r["median_us"] == r["p99_us"], r


@case
def markdown_by_default():
    done = bench("--transport", "shm", "--sizes", "64", "--iters", "5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7 and "RTT/2" in lines[2], lines
    assert [x.strip() for x in lines[3].split("|")[1:4]] == ["transport", "rows", "test"], lines


@case
def rows_on_a_device():
    """Where there is none, one line; what cannot be is refused before anything is started."""
    one_line(bench("--device", "cuda:99", "--transport", "tcp"), 1, "cuda:99")
    one_line(bench("--device", "cuda:0", "--transport", "loop"), 2, "loop", "--device")
    one_line(bench("--require-gpudirect"), 2, "--require-gpudirect", "--device")
    one_line(bench("--listen", "127.0.0.1:0", "--device", "cuda:99", key=KEY), 1, "cuda:99")
    done = bench("--json", "--transport", "shm", "--sizes", "64", "--iters", "5")
    assert {r["rows"] for r in json.loads(done.stdout)["rows"]} == {"host"}, done


@case
def two_programs():
    with Listener() as far:
        done = bench("--peer", far.address, "--transport", "tcp,shm,tcp", "--json", "--sizes", "64", "--iters", "20",
                     key=KEY)
        assert done.returncode == 0, done.stderr
        rows_of(done.stdout, ("tcp", "shm", "tcp"), (64,), 20)
        ended = far.end()
        assert ended.returncode == 0 and ended.stderr == "", ended


@case
def a_stranger_does_not_end_a_listener():
    with Listener() as far:
        one_line(bench("--peer", far.address, "--iters", "5", key="cd" * 32), 1, "GRAFT_KEY")
        done = bench("--peer", far.address, "--json", "--sizes", "64", "--iters", "5", key=KEY)
        assert done.returncode == 0, done.stderr
        ended = far.end()
        one_line(ended, 0, "shared key")


@case
def wrong_options():
    for args, *words in ((("--sizes", "7"), "--sizes", "8"), (("--sizes", "64,"), "--sizes"),
                         (("--sizes", "1048577"), "1048576"), (("--iters", "0"), "--iters"),
                         (("--iters", "x"), "--iters"), (("--warmup", "-1"), "--warmup"),
                         (("--row-bytes", "1"), "--row-bytes"), (("--tests", "pong"), "pong"),
                         (("--transport", "carrier"), "carrier"),
                         (("--transport", "loop", "--peer", "127.0.0.1:1"), "loop"),
                         (("--transport", "tcp,tcp,tcp,tcp,tcp"), "more than"),
                         (("--listen", "127.0.0.1:0", "--sizes", "64"), "--listen"), (("--bogus",), "--bogus"),
                         (("--sizes", ",".join(["64"] * 17)), "16")):
        one_line(bench(*args, key=KEY), 2, *words)


@case
def no_way_to_the_other_end():
    one_line(bench("--peer", "127.0.0.1:1"), 1, "--peer", "key")
    one_line(bench("--listen", "127.0.0.1:0"), 1, "--listen", "key")
    one_line(bench("--peer", "127.0.0.1:1", key=KEY), 1, "127.0.0.1:1", "refused")
    one_line(bench("--peer", "nonsense", key=KEY), 2, "nonsense")
    one_line(bench("--peer", "x" * 80 + ":1", key=KEY), 2, "--peer")


@case
def verbs_without_a_device():
    done = bench("--transport", "verbs", "--iters", "5")
    assert done.returncode in (1, 2)  # not in this build, or no device
    one_line(done, done.returncode, "verbs")


@case
def the_far_end_dies():
    with subprocess.Popen([BENCH, "transport", "--transport", "tcp", "--sizes", "64", "--iters", "4000000"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        found = []

        def look():
            found[:] = [pid for pid, _ in children(p.pid)]
            return found
        wait_for(look)
        wait_for(lambda: connected(p.pid))
        os.kill(found[0], signal.SIGKILL)
        _, err = p.communicate(timeout=60 * SLOW)
        one_line(subprocess.CompletedProcess([], p.returncode, "", err), 1, "closed")


def connected(pid):
    """It does rounds: its context switches go up with each."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(f.read().split("\nvoluntary_ctxt_switches:")[1].split()[0]) > 200


@case
def the_near_end_dies():
    with Listener() as far:
        with subprocess.Popen([BENCH, "transport", "--peer", far.address, "--sizes", "64", "--iters", "4000000"],
                              stdout=subprocess.DEVNULL, env=environment(KEY)) as p:
            wait_for(lambda: connected(p.pid))
            p.kill()
        one_line(far.end(), 1, "closed")


if __name__ == "__main__":
    sys.exit(main())
