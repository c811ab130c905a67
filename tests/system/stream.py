"""`graft run` with its text, its lines on standard error, and when each came."""
import os
import re
import select
import subprocess
import time

from harness import GRAFT, SLOW, TARGET, children

ROUND = re.compile(rb"round=(\d+) session=\d+ .*draft_tokens=(\d+) accepted_tokens=(\d+) committed_len=(\d+)")


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
        self.rounds = []   # (time, round, draft tokens, accepted tokens)
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
            self.rounds.append((now, int(m.group(1)), int(m.group(2)), int(m.group(3))))
            self.committed = int(m.group(4))

    def until(self, condition, limit=60.0):
        end = time.monotonic() + limit * SLOW
        while not condition(self) and self.open and time.monotonic() < end:
            self.pump(0.05)
        return condition(self)

    def finish(self):
        self.until(lambda r: False, 60.0)
        return self.p.wait()

    def child(self, name):
        found = [pid for pid, cmd in children(self.p.pid) if cmd.endswith(name)]
        return found[0] if found else None

    def said(self, words, since=0.0):
        return [line for t, line in self.lines if t >= since and words in line]

    def acceptance(self, n_last):
        """Accepted tokens a round and the share of rounds with a tree."""
        last = self.rounds[-n_last:]
        return sum(r[3] for r in last) / max(len(last), 1), sum(r[2] > 0 for r in last) / max(len(last), 1)

    def longest_pause_ms(self, since):
        """Text that was on its way at a fault is not the first further text: the largest pause is looked for."""
        times = [since] + [t for t, _ in self.chunks if t >= since]
        return 1e3 * max((b - a for a, b in zip(times, times[1:])), default=0.0)
