"""What the system tests share: the programs, ways to start and watch them, and the TAP loop.

A test file: usage: NAME.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

BUILD, ROOT = sys.argv[1], sys.argv[2]
GRAFT = os.path.join(BUILD, "graft")
MODELS = os.environ.get("GRAFT_TEST_MODELS", os.path.join(ROOT, "models/demo"))
TARGET, DRAFT, HEAD = (os.path.join(MODELS, name) for name in ("target", "draft", "eagle3"))
SLOW = float(os.environ.get("GRAFT_TEST_SLOW", "1"))
CASES = []
AFTER_FAILURE = []  # what a case that fails would leave running, as functions that end it
ENDLESS = 30000  # tokens of a turn that a test ends by a signal when it has seen what it was to see


class Skip(Exception):
    """What a case raises that cannot run here: why."""


def case(fn):
    CASES.append(fn)
    return fn


def run(*args, timeout=240, env=None, stdin=None):
    return subprocess.run([GRAFT, *args], capture_output=True, text=True, timeout=timeout * SLOW, input=stdin,
                          env=dict(os.environ, **(env or {})))


def generate(*args, **kw):
    """Runs `graft run --json` on the demo target and returns the object."""
    if not any(a.startswith("--prompt") for a in args):
        args = ("--prompt", "def fibonacci(n):", *args)
    done = run("run", "--json", "--model", TARGET, *args, **kw)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    m = out["metrics"]
    assert m["num_draft_tokens"] == m["num_accepted_tokens"] + m["num_rewound_tokens"], m
    assert m["completion_tokens"] == len(out["token_ids"]), m
    return out


def is_plain(ids, *args, prompt="import os"):
    """A turn that was ended by a signal has told the tokens that plain decoding begins with."""
    assert ids, "no token was told"
    want = generate("--prompt", prompt, "--ignore-eos", "--method", "none", "--max-tokens", str(len(ids)), *args)
    n = next((i for i, (a, b) in enumerate(zip(ids, want["token_ids"])) if a != b), len(ids))
    assert n == len(ids), f"{n} of {len(ids)} tokens are plain decoding's"


def interrupt(p, timeout=60):
    """Ends a client of an endless turn. What it has told, a line of JSON an answer, and what it said."""
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=timeout * SLOW)
    assert p.returncode == 128 + signal.SIGINT, (p.returncode, out[-300:], err)
    told = [json.loads(line) for line in out.splitlines()]
    assert told and all(o["error"] == "interrupted" for o in told), told
    return told, err


def refused(args, status, *words, **kw):
    """The command fails with this status, one line on standard error that holds the words, and no output."""
    done = run("run", *args, **kw)
    assert done.returncode == status, (done.returncode, done.stderr)
    lines = [x for x in done.stderr.splitlines() if x.strip()]
    assert len(lines) == 1, lines
    for w in words:
        assert w in lines[0], (w, lines[0])
    assert done.stdout == "", done.stdout


def stat_of(pid):
    """The fields of /proc/PID/stat after the program's name: the state, the parent, and more."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rsplit(")", 1)[1].split()


def parent_of(pid):
    return int(stat_of(pid)[1])


def busy(pid):
    """CPU time of a process, in ticks: how a test sees that rounds are going on."""
    fields = stat_of(pid)
    return int(fields[11]) + int(fields[12])


def wait_busy(pid, ticks=10):
    """Until it has used so much more."""
    begin = busy(pid)
    wait_for(lambda: busy(pid) >= begin + ticks)


def children(pid):
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state, parent, *_ = stat_of(name)
                if int(parent) == pid and state != "Z":
                    with open(f"/proc/{name}/cmdline", encoding="utf-8") as c:
                        out.append((int(name), c.read().split("\0")[0]))
            except (OSError, IndexError):
                pass
    return out


def alive(pid):
    try:
        return stat_of(pid)[0] != "Z"
    except OSError:
        return False


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.005)
    raise AssertionError("waited in vain")


class Running:
    """A `graft run` that streams a long text, so that something can be done to it meanwhile."""

    def __init__(self, *args, tokens=3000, log=None, rounds=False):
        self.err = tempfile.TemporaryFile("w+")  # not a pipe: said() looks at it while the run goes on
        self.p = subprocess.Popen([GRAFT, "run", "--json", "--model", TARGET, "--prompt", "import os", "--ignore-eos",
                                   "--max-tokens", str(tokens), *args],
                                  stdout=subprocess.PIPE, stderr=self.err, text=True,
                                  env=dict(os.environ, **({"GRAFT_LOG": log} if log else {}),
                                           **({"GRAFT_DEBUG": "round"} if rounds else {})))
        AFTER_FAILURE.append(self.p.kill)

    def said(self):
        return os.pread(self.err.fileno(), 1 << 22, 0).decode(errors="replace")

    def wait_said(self, words):
        """Until it has said them, or is over, which is a failure at once."""
        wait_for(lambda: words in self.said() or self.p.poll() is not None)
        assert words in self.said(), (words, self.said()[-2000:])

    def wait_rounds(self, n, after="", kind=""):
        """Until it has said that n rounds are done, all after the last of these words. kind: a pattern of their lines."""
        pattern = re.compile(rf"\bround=\d+ session=.*{kind}")

        def look():
            said = self.said()
            at = said.rfind(after) if after else 0
            return at >= 0 and len(pattern.findall(said, at)) >= n
        wait_for(lambda: look() or self.p.poll() is not None)
        assert look(), self.said()[-2000:]

    def child(self, name):
        found = []

        def look():
            found[:] = [pid for pid, cmd in children(self.p.pid) if cmd.endswith(name)]
            return found
        wait_for(look)
        return found[0]

    def end(self, timeout=120):
        out, _ = self.p.communicate(timeout=timeout * SLOW)
        return self.p.returncode, out, self.said()

    def interrupt(self):
        """Ends an endless run. What it has told, a line of JSON an answer, and what it said."""
        return interrupt(self.p)[0], self.said()


class Background:
    """Threads beside a `with` block; each runs its function until self.stop is set, at the block's end."""

    def __init__(self, *functions):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=f) for f in functions]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        for t in self.threads:
            t.join()


def main(n_more=0):
    """Runs the cases; n_more: how many others the caller will print after them."""
    print(f"1..{len(CASES) + n_more}", flush=True)
    only = os.environ.get("GRAFT_TEST_ONLY", "")
    n_failed = 0
    for i, fn in enumerate(CASES, 1):
        if only not in fn.__name__:
            print(f"ok {i} - {fn.__name__} # SKIP not chosen")
            continue
        begin = time.monotonic()
        AFTER_FAILURE.clear()
        try:
            fn()
            print(f"ok {i} - {fn.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        except Skip as why:
            print(f"ok {i} - {fn.__name__} # SKIP {why}", flush=True)
        except Exception as e:  # pylint: disable=broad-except
            n_failed += 1
            for end in AFTER_FAILURE:
                with contextlib.suppress(OSError):
                    end()
            text = f"{type(e).__name__}: {e}".replace("\n", "\n# ")
            line = e.__traceback__.tb_next.tb_lineno if e.__traceback__ and e.__traceback__.tb_next else 0
            print(f"not ok {i} - {fn.__name__} ({time.monotonic() - begin:.1f} s)\n# line {line}: {text}", flush=True)
            print(f"{fn.__name__}: line {line}: {text}", file=sys.stderr, flush=True)  # a log of meson's shows this one alone
    return 1 if n_failed else 0

