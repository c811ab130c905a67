"""`graft run` with its text, its lines on standard error, and when each came; turns that are closed in their midst."""
import contextlib
import json
import os
import re
import select
import signal
import statistics
import subprocess
import time
from typing import NamedTuple

from harness import GRAFT, SLOW, TARGET, children, wait_for

ROUND = re.compile(rb"round=(\d+) session=[0-9a-f]+ .*draft_tokens=(\d+) accepted_tokens=(\d+) committed_len=(\d+)")


def running_again(sessions, n=1, n_more=30):
    """Waits until so many sessions of those that sessions() tells have gone on elsewhere, each for some tokens."""
    def reopened():
        return {x["id"]: x["tokens"] for x in sessions() if x["state"] == "running" and x["epoch"] > 1}
    wait_for(lambda: len(reopened()) >= n)
    begin = reopened()
    wait_for(lambda: sum(tokens >= begin.get(i, tokens) + n_more for i, tokens in reopened().items()) >= n)


def closed(s, turn, session=None):
    """What there is of an endless turn, the server's only one if none is named, once it has shown what it had to."""
    s.graft("session", "close", session or s.sessions()[0]["id"])
    out, err = turn.communicate(timeout=60 * SLOW)
    out = json.loads(out)
    assert out["finish_reason"] == "closed", (out["finish_reason"], err)
    return out


class Recovery(NamedTuple):
    ms: float           # from the fault to the first tree of the new drafter
    ms_attached: float  # from its connection to that tree
    n_alone: int        # rounds without a tree in that time
    n_tree: int         # number of the first tree that accepts what the median one does
    mean: float         # accepted tokens of its first 20 trees
    same: float         # of the undisturbed run's trees over the same tokens

    def __str__(self):
        return (f"trees again after {self.ms:.0f} ms, {self.ms_attached:.0f} ms and {self.n_alone} rounds after the "
                f"new drafter's connection; tree {self.n_tree} accepts what the median one does; the first 20 accept "
                f"{self.mean:.2f}, undisturbed {self.same:.2f}")


class Stream:
    def __init__(self, *args):
        argv = [GRAFT, "run", "--model", TARGET, "--ignore-eos", *args]
        env = dict(os.environ, GRAFT_DEBUG="round", GRAFT_LOG="info")
        self.p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        os.set_blocking(self.p.stdout.fileno(), False)
        os.set_blocking(self.p.stderr.fileno(), False)
        self.text, self.err = b"", b""
        self.chunks = []   # (time, bytes of text)
        self.lines = []    # (time, line)
        self.rounds = []   # (time, round, draft tokens, accepted tokens, committed_len)
        self.committed = 0
        self.open = {self.p.stdout.fileno(), self.p.stderr.fileno()}

    def __enter__(self):
        return self

    def __exit__(self, *rest):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        self.p.stdout.close()
        self.p.stderr.close()

    def pump(self, timeout):
        for fd in select.select(list(self.open), [], [], timeout)[0]:
            data = os.read(fd, 1 << 16)
            now = time.monotonic()
            if not data:
                self.open.discard(fd)
            elif fd == self.p.stdout.fileno():
                self.text += data
                self.chunks.append((now, len(data)))
            else:
                self.err += data
                *whole, self.err = self.err.split(b"\n")
                for line in whole:
                    self.take_line(now, line)

    def take_line(self, now, line):
        self.lines.append((now, line))
        m = ROUND.search(line)
        if m:
            self.rounds.append((now, *(int(x) for x in m.groups())))
            self.committed = int(m.group(4))

    def until(self, condition, limit=60.0):
        end = time.monotonic() + limit * SLOW
        while not condition(self) and self.open and time.monotonic() < end:
            self.pump(0.05)
        return condition(self)

    def finish(self):
        """Exit status; a run that is not over in time is killed, so that its text is not taken for a whole one."""
        if not self.until(lambda r: not r.open, 60.0):
            self.p.kill()
        return self.p.wait()

    def child(self, name):
        found = [pid for pid, cmd in children(self.p.pid) if cmd.endswith(name)]
        return found[0] if found else None

    def kill(self, name):
        """False: the run is over, or about to be, and its worker is gone."""
        pid = self.child(name)
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def said(self, words, since=0.0):
        return [line for t, line in self.lines if t >= since and words in line]

    def acceptance(self, n_last):
        """Accepted tokens a round and the share of rounds with a tree."""
        last = self.rounds[-n_last:]
        return sum(r[3] for r in last) / max(len(last), 1), sum(r[2] > 0 for r in last) / max(len(last), 1)

    def recovery(self, since, base):
        """How trees come back after a drafter was lost, against the undisturbed run of the text. None: they do not."""
        after = [r for r in self.rounds if r[0] >= since]
        while after and after[0][2] > 0:
            after.pop(0)  # trees that were on their way
        trees = [r for r in after if r[2] > 0]
        attached = [t for t, line in self.lines if t >= since and b"draft: info: data connection" in line]
        if not trees or not attached:
            return None
        median = statistics.median(r[3] for r in base.rounds if r[2] > 0)
        mean = lambda rounds: sum(r[3] for r in rounds) / max(len(rounds), 1)
        first, last = trees[0][4] - trees[0][3] - 1, trees[:20][-1][4]
        return Recovery(
            ms=1e3 * (trees[0][0] - since), ms_attached=1e3 * (trees[0][0] - attached[0]),
            n_alone=sum(attached[0] <= r[0] < trees[0][0] for r in after),
            n_tree=next((i for i, r in enumerate(trees, 1) if r[3] >= median), len(trees) + 1), mean=mean(trees[:20]),
            same=mean([r for r in base.rounds if r[2] > 0 and first < r[4] <= last]))

    def longest_pause_ms(self, since):
        """Text that was on its way at a fault is not the first further text: the largest pause is looked for."""
        times = [since] + [t for t, _ in self.chunks if t >= since]
        return 1e3 * max((b - a for a, b in zip(times, times[1:])), default=0.0)


def killed(args, n_round, name):
    """A run to its end, one of whose workers was killed after some rounds; the tokens that it had then, and when that
    was. It is begun again where it was over before it could be killed."""
    for _ in range(3):
        with Stream(*args) as r:
            assert r.until(lambda r: len(r.rounds) >= n_round), r.lines[-3:]
            at_len, since = r.committed, time.monotonic()
            found = r.kill(name)
            assert r.finish() == 0, r.lines[-3:]
        if found and r.said(b"was killed by signal 9"):
            return r, at_len, since
    raise AssertionError((args, "was over before the kill each time", r.lines[-3:]))
