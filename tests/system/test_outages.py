#!/usr/bin/env python3
"""Workers that cannot come back: a drafter is missed by nobody, a target that always dies is given up.

usage: test_outages.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

from harness import (AFTER_FAILURE, DRAFT, ENDLESS, GRAFT, HEAD, ROOT, SLOW, TARGET, alive, case, children, interrupt,
                     is_plain, main, wait_for)
from served import FIXED, Folder, Serve, worker

PROMPT = "import os"


def lines_with(text, words):
    return [x for x in text.splitlines() if words in x]


class Copy:
    """A copy of a draft model's folder that can be taken away."""

    def __init__(self, model):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "draft")
        self.hidden = os.path.join(self.dir.name, "hidden")
        shutil.copytree(model, self.path)

    def take_away(self):
        os.rename(self.path, self.hidden)

    def bring_back(self):
        os.rename(self.hidden, self.path)


class Run:
    """A `graft run --json` with workers of its own."""

    def __init__(self, *args, tokens=ENDLESS, limits=None, env=None, base=os.environ):
        self.err = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([GRAFT, "run", "--json", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos",
                                   "--max-tokens", str(tokens), *args], stdout=subprocess.PIPE, stderr=self.err, text=True,
                                  env=dict(base, GRAFT_DEBUG="round", **(env or {})), preexec_fn=limits)
        AFTER_FAILURE.append(self.p.kill)

    def said(self):
        return os.pread(self.err.fileno(), 1 << 22, 0).decode(errors="replace")

    def child(self, name):
        found = self.child_if_any(name)
        assert found, self.said()
        return found

    def child_if_any(self, name):
        """None: the run is over."""
        found = []

        def look():
            found[:] = [pid for pid, cmd in children(self.p.pid) if cmd.endswith(name)]
            return found or self.p.poll() is not None
        wait_for(look)
        return found[0] if found else None

    def reach(self, n_round, since=0):
        """Until so many rounds are done. since: the place in what it says from which they count."""
        wait_for(lambda: self.said().count(" accepted_tokens=", since) >= n_round or self.p.poll() is not None)
        assert self.p.poll() is None, self.said()[-2000:]

    def hears(self, words):
        wait_for(lambda: words in self.said() or self.p.poll() is not None)
        assert words in self.said(), self.said()[-2000:]

    def kill(self, name):
        """Returns where its words end: rounds that are told after that are another process's."""
        pid = self.child(name)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid))
        return len(self.said())

    def end(self):
        out, _ = self.p.communicate(timeout=120 * SLOW)
        return self.p.returncode, out, self.said()


def ends_well(r, since):
    """It goes on for some rounds, and all that it told by then is plain decoding's. Its metrics, and what it said."""
    r.reach(50, since)
    told, _ = interrupt(r.p)
    is_plain(told[0]["token_ids"], prompt=PROMPT)
    return told[0]["metrics"], r.said()


def promised(sentence):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        assert sentence in " ".join(f.read().split()), sentence


@case
def drafter_that_cannot_come_back():
    for model in (HEAD, DRAFT):
        copy = Copy(model)
        r = Run("--draft", copy.path, *FIXED)
        r.reach(20)
        copy.take_away()
        r.kill("graft-draft")
        r.hears("trying again without further lines")
        m, err = ends_well(r, len(r.said()))
        assert m["num_accepted_tokens"] > 0, m
        assert len(lines_with(err, "[spec][fallback]")) >= 1, err[-2000:]
        assert len(lines_with(err, "was killed by signal 9")) == 1, err[-2000:]
        assert len(lines_with(err, "trying again without further lines")) == 1, err[-2000:]
        assert len(lines_with(err, "draft: error:")) == 1, lines_with(err, "draft: error:")


@case
def target_comes_back_without_its_heads_folder():
    """GR_FALLBACK_HEAD_GONE."""
    copy = Copy(HEAD)
    r = Run("--draft", copy.path, *FIXED)
    r.reach(20)
    copy.take_away()
    _, err = ends_well(r, r.kill("graft-target"))
    assert len(lines_with(err, "cannot be made with the head")) == 1, err[-2000:]


def ignore_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@case
def an_ignored_end_of_children_is_seen_all_the_same():
    for name in ("graft-draft", "graft-target"):
        r = Run("--draft", HEAD, *FIXED, limits=ignore_children)
        r.reach(20)
        since = r.kill(name)
        r.hears("was killed by signal 9")
        _, err = ends_well(r, since)
        assert len(lines_with(err, "was killed by signal 9")) == 1, err[-2000:]


@case
def drafter_that_comes_back_after_all():
    copy = Copy(DRAFT)
    with Serve("--spawn", "--model", TARGET, "--draft", copy.path, spawn=False) as s:
        s.wait("--draft", copy.path)
        want = s.generate("--max-tokens", "60", "--method", "none")["token_ids"]
        copy.take_away()
        s.kill_child("graft-draft")
        wait_for(lambda: "trying again without further lines" in s.log())
        out = s.generate("--max-tokens", "60", *FIXED)
        assert out["token_ids"] == want and out["metrics"]["num_drafts"] == 0, out["metrics"]
        copy.bring_back()
        s.wait("--draft", copy.path)
        out = s.generate("--max-tokens", "60", *FIXED)
        assert out["token_ids"] == want and out["metrics"]["num_accepted_tokens"] > 0, out["metrics"]
        wait_for(lambda: "the draft worker is back" in s.log())
        assert len(lines_with(s.log(), "draft: error:")) == 1, lines_with(s.log(), "draft: error:")


@case
def drafter_killed_while_it_starts():
    """By a signal, before it has joined: the run goes on."""
    r = Run("--draft", DRAFT, *FIXED)
    for _ in range(3):
        since = r.kill("graft-draft")
    _, err = ends_well(r, since)
    assert lines_with(err, "was killed by signal 9"), err[-2000:]


@case
def supervised_drafter_that_cannot_come_back():
    """Its supervisor stays, tries again, and the drafter is back when it can be."""
    folder, copy = Folder(), Copy(DRAFT)
    with Serve(spawn=False, folder=folder) as s, worker("graft-target", folder, s.address), \
            worker("graft-draft", folder, s.address, "--supervise", model=copy.path) as d:
        s.wait("--draft", DRAFT)
        real = lambda: [pid for pid, cmd in children(d.pid) if cmd.endswith("graft-draft")]
        copy.take_away()
        os.kill(real()[0], signal.SIGKILL)
        wait_for(lambda: len(s.list()["workers"]) == 1)
        first = s.generate("--max-tokens", "40", *FIXED)
        assert first["metrics"]["num_drafts"] == 0 and d.poll() is None, first["metrics"]
        copy.bring_back()
        wait_for(lambda: len(s.list()["workers"]) == 2, 40)
        again = s.generate("--max-tokens", "40", *FIXED)
        assert again["token_ids"] == first["token_ids"] and again["metrics"]["num_accepted_tokens"] > 0


@case
def drafter_that_never_worked():
    with tempfile.TemporaryDirectory() as empty:
        shutil.copy(os.path.join(DRAFT, "config.json"), empty)  # no weights: only the drafter finds that out
        done = subprocess.run([GRAFT, "run", "--model", TARGET, "--draft", empty, "--prompt", PROMPT, "--max-tokens",
                               "8"], capture_output=True, text=True, timeout=60 * SLOW)
        assert done.returncode == 1 and done.stdout == "" and empty in done.stderr, done
        folder = Folder()
        s = subprocess.run([GRAFT, "serve", "--control", "127.0.0.1:0", "--http", "off", "--spawn", "--model", TARGET,
                            "--draft", empty],
                           capture_output=True, text=True, timeout=60 * SLOW, env=folder.env())
        assert s.returncode == 1 and "the draft worker ended with status 1" in s.stderr, s


@case
def a_drafter_is_optional_at_every_moment():
    """Missing, late, dead, never back: README's sentence."""
    promised("A drafter is optional at every moment.** A missing, late or dead drafter means single-token rounds, not an "
             "error.")
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address):
        s.wait()
        want = s.generate("--max-tokens", "80", "--method", "none")["token_ids"]
        missing = s.generate("--max-tokens", "80", *FIXED)
        assert missing["token_ids"] == want and missing["metrics"]["num_drafts"] == 0
        with worker("graft-draft", s.folder, s.address, "--test-delay-us", "300000", model=DRAFT) as d:
            s.wait("--draft", DRAFT)
            late = s.generate("--max-tokens", "80")
            assert late["token_ids"] == want, late["metrics"]
            d.kill()
            dead = s.generate("--max-tokens", "80", *FIXED)
            assert dead["token_ids"] == want, dead["metrics"]


# ---- a target that always dies ----

def small_stack():
    """Enough for graft, which takes some 90 KiB, too little for graft-target, which takes more than 160."""
    resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, 128 << 10))


@case
def target_that_always_dies():
    """Each start ends by a signal: five times, then the reason."""
    # The environment lies on the stack: this one is the same on every machine. A sanitizer would make the signal an
    # exit status.
    r = Run(limits=small_stack, base={"PATH": os.environ["PATH"]}, env={"ASAN_OPTIONS": "handle_segv=0"})
    status, out, err = r.end()
    assert status == 1, (status, err)
    assert len(lines_with(err, "the target worker was killed by signal")) == 4, err
    last = lines_with(err, "5 times in a row without a token")
    assert len(last) == 1 and "signal" in last[0] and "ulimit -s" in last[0], err
    assert "5 times in a row" in json.loads(out)["error"], out


@case
def target_that_is_killed_before_every_token():
    """As by an out-of-memory killer, with a drafter that lives."""
    r = Run("--draft", DRAFT, tokens=100000)
    for _ in range(60):  # those that bring a token do not count
        pid = r.child_if_any("graft-target")
        if not pid:
            break
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid))  # pylint: disable=cell-var-from-loop
    status, _, err = r.end()
    assert status == 1, (status, err)
    last = lines_with(err, "5 times in a row without a token")
    assert len(last) == 1 and "signal 9" in last[0] and "out of memory" in last[0], err


@case
def target_killed_after_tokens_is_never_given_up():
    r, since = Run(), 0
    for _ in range(6):
        r.reach(60, since)
        since = r.kill("graft-target")
    _, err = ends_well(r, since)
    assert len(lines_with(err, "the target worker was killed by signal 9")) == 6, err[-2000:]
    assert len(lines_with(err, "re-opening it as epoch ")) == 6, err[-2000:]


@case
def server_whose_target_always_dies():
    """The client that waits is told why, and the server ends with status 1."""
    with Serve(draft=False) as s:
        with tempfile.TemporaryFile("w+") as err:
            p = subprocess.Popen([GRAFT, "run", "--json", "--connect", s.address, "--model", TARGET, "--prompt", PROMPT,
                                  "--max-tokens", "100000", "--ignore-eos"], stdout=subprocess.DEVNULL, stderr=err,
                                 env=s.env())
            wait_for(lambda: s.sessions())
            for _ in range(60):  # those that bring a token do not count
                wait_for(lambda: s.child_if_any("graft-target") or s.p.poll() is not None)
                pid = s.child_if_any("graft-target")
                if not pid:
                    break
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda: not alive(pid))  # pylint: disable=cell-var-from-loop
            assert s.p.wait(timeout=30 * SLOW) == 1, s.log()
            assert p.wait(timeout=30 * SLOW) == 1
            err.seek(0)
            told = err.read()
        assert "5 times in a row without a token" in s.log() and "5 times in a row" in told, (s.log()[-1500:], told)


sys.exit(main())
