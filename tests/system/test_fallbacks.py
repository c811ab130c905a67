#!/usr/bin/env python3
"""One fall-back is one line and one count, and what was asked for is none.

usage: test_fallbacks.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import resource
import subprocess
import sys

from harness import DRAFT, GRAFT, HEAD, SLOW, TARGET, case, generate, main
from served import FIXED, Serve, worker

PROMPT = ("--prompt", "class Reader:\n", "--ignore-eos", "--max-tokens", "400")


def run_with_draft(*args, **kw):
    """`graft run`; its JSON, and its lines on standard error."""
    done = subprocess.run([GRAFT, "run", "--json", "--model", TARGET, "--draft", DRAFT, *PROMPT, *args],
                          capture_output=True, text=True, timeout=60 * SLOW, check=False, **kw)
    assert done.returncode == 0, done
    return json.loads(done.stdout), done.stderr.splitlines()


def is_told_once(out, lines, word):
    """The text is plain decoding's, and one line with the word and one fall-back tell why."""
    assert out["token_ids"] == generate(*PROMPT)["token_ids"]
    assert len([x for x in lines if word in x]) == 1, lines
    assert len([x for x in lines if "[fallback]" in x]) == 1 and out["metrics"]["fallbacks"] == 1, (lines, out["metrics"])


@case
def a_transport_that_can_never_open():
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    out, lines = run_with_draft("--transport", "shm", preexec_fn=small)
    is_told_once(out, lines, "transport shm is the only one that is allowed, and did not open")
    assert out["metrics"]["num_drafts"] == 0 and "ulimit -f" in " ".join(lines), lines


@case
def verbs_without_a_device():
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        return  # there is one
    out, lines = run_with_draft("--transport", "verbs")
    is_told_once(out, lines, "draft: error: verbs: this machine has no RDMA device")
    without = subprocess.run([GRAFT, "run", "--model", TARGET, "--transport", "verbs", "--prompt", "x", "--max-tokens", "2"],
                             capture_output=True, text=True, timeout=60 * SLOW, check=False)
    assert without.returncode == 0 and len(without.stderr.strip().splitlines()) == 1, without  # the statistics


@case
def a_head_at_a_target_that_feeds_none():
    """Nothing is tried in vain: the server says why once, and each session that a drafter was there."""
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address):
        s.wait()
        with worker("graft-draft", s.folder, s.address, "--target", TARGET, model=HEAD):
            s.wait("--draft", HEAD)
            for _ in range(2):
                out = s.generate("--max-tokens", "40")
                assert out["metrics"]["fallbacks"] == 0 and out["metrics"]["num_drafts"] == 0, out["metrics"]
                assert "is for its model" in out["undrafted"], out
            assert s.log().count("it serves no head: start it with --head") == 1, s.log()


@case
def single_tokens_are_no_fall_back():
    out, lines = run_with_draft("--force-single-token", *FIXED)
    assert out["metrics"]["fallbacks"] == 0 and out["metrics"]["num_drafts"] == 0 and lines == [], (out["metrics"], lines)


@case
def a_client_is_told_that_there_is_no_target():
    with Serve(spawn=False) as s:
        p = s.start(tokens=4)
        line = p.stderr.readline()
        assert "no target worker has joined" in line and s.address in line, line
        with worker("graft-target", s.folder, s.address):
            out, err = p.communicate(timeout=60 * SLOW)
            assert p.returncode == 0 and len(json.loads(out)["token_ids"]) == 4 and err == "", err


sys.exit(main())
