#!/usr/bin/env python3
"""Several answers to one prompt (--n) by real processes: answer k is what --choice k gives alone, by plain decoding,
whoever drafts, over whatever transport, with a tree of whatever size, and when a worker is killed. Prompts are longer
than a block and than a chunk, so that sessions share whole blocks and copy a part of one.

usage: test_answers.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

from harness import (DRAFT, ENDLESS, GRAFT, HEAD, ROOT, TARGET, Running, case, generate, is_plain, main, refused, run,
                     wait_busy, wait_for)
from served import Serve, one_line

N = 4
with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    SHORT = json.load(f)
FOLDER = tempfile.TemporaryDirectory()


def prompt_file(first, end):
    path = os.path.join(FOLDER.name, f"prompt{first}-{end}")
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n\n".join(SHORT[first:end]))
    return path


PROMPT = ("--prompt-file", prompt_file(0, 1))
LONG = ("--prompt-file", prompt_file(0, 4))
COMMON = ("--ignore-eos", "--max-tokens", "64", "--seed", "7", "--temperature", "1")
METHODS = {"none": (), "draft": ("--draft", DRAFT), "head": ("--draft", HEAD)}
ALONE = {}


def alone(prompt, *more):
    """What each choice is by itself, by plain decoding: objects of JSON."""
    key = (prompt, *more)
    if key not in ALONE:
        ALONE[key] = [generate(*prompt, *COMMON, *more, "--choice", str(k)) for k in range(N)]
    return ALONE[key]


def parse(out):
    found = [json.loads(line) for line in out.splitlines()]
    assert [o["choice"] for o in found] == list(range(len(found))), found
    return found


def answers(*args, n=N):
    done = run("run", "--json", "--model", TARGET, "--n", str(n), *args, timeout=120)
    assert done.returncode == 0, done.stderr
    found = parse(done.stdout)
    assert len(found) == n, done.stdout
    for o in found:
        m = o["metrics"]
        assert m["num_draft_tokens"] == m["num_accepted_tokens"] + m["num_rewound_tokens"], m
        assert m["completion_tokens"] == len(o["token_ids"]), m
        assert m["desyncs"] + m["fallbacks"] == 0, m
    return found


def shared(said):
    """Tokens in whole blocks that targets have said they share, a number a fork."""
    return [int(x) for x in re.findall(r"shares KV of (\d+) tokens", said)]


def ids(found):
    return [o["token_ids"] for o in found]


@case
def texts_over_methods_transports_and_trees():
    want = ids(alone(PROMPT))
    assert len({tuple(w) for w in want}) == N, want
    assert want[0] == generate(*PROMPT, *COMMON)["token_ids"]  # choice 0 is what there is without
    assert ids(answers(*PROMPT, *COMMON)) == want
    for method, transport, tree in (("draft", "shm", ("8", "--tree-shape", "chain")), ("draft", "tcp", ("15",)),
                                    ("draft", "loop", ("63",)), ("head", "shm", ("15",)), ("head", "tcp", ("63",)),
                                    ("head", "loop", ("8", "--tree-shape", "chain")), ("head", "shm", ("auto",))):
        found = answers(*PROMPT, *COMMON, *METHODS[method], "--transport", transport, "--num-speculative-tokens",
                        *tree)
        assert ids(found) == want, (method, transport, tree)
        if tree != ("auto",):
            assert sum(o["metrics"]["num_accepted_tokens"] for o in found) > 0, (method, tree)


@case
def texts_of_a_long_prompt():
    want = ids(alone(LONG))
    assert len({tuple(w) for w in want}) == N
    for method in METHODS:
        assert ids(answers(*LONG, *COMMON, *METHODS[method])) == want, method


@case
def the_prompt_is_read_once():
    """All whole blocks below its last token are shared, and with the copied part only that token runs again."""
    for prompt, ways in ((PROMPT, (("draft", "tcp"), ("head", "loop"))), (LONG, (("none", "shm"), ("head", "loop")))):
        for method, transport in ways:
            done = run("run", "--json", "--model", TARGET, "--n", str(N), *prompt, *COMMON, *METHODS[method],
                       "--transport", transport, "--log-level", "info")
            assert done.returncode == 0, done.stderr
            n_prompt = parse(done.stdout)[0]["metrics"]["prompt_tokens"]
            assert shared(done.stderr) == [(n_prompt - 1) // 16 * 16] * (N - 1), done.stderr
            assert n_prompt > 17


@case
def texts_under_exact_specpv():
    view = ("--specpv", "exact", "--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks", "1",
            "--specpv-n-sink-blocks", "1", "--specpv-partial-threshold", "1000", "--num-speculative-tokens", "12",
            "--draft-depth", "5", "--draft-top-k", "4")
    for method in ("draft", "head"):
        found = answers(*LONG, *COMMON, *view, *METHODS[method])
        assert ids(found) == ids(alone(LONG)), method
        assert all(o["metrics"]["partial_rounds"] > 0 for o in found), [o["metrics"] for o in found]


@case
def logprobs_of_each():
    more = ("--logprobs", "3")
    want = [o["logprobs"] for o in alone(PROMPT, *more)]
    found = answers(*PROMPT, *COMMON, *more, *METHODS["head"], "--num-speculative-tokens", "15")
    assert [o["logprobs"] for o in found] == want


@case
def lossless_of_each():
    done = run("run", "--model", TARGET, "--n", "3", *PROMPT, *COMMON, *METHODS["head"], "--verify-lossless")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("equal plain decoding's") == 3, done.stderr


@case
def as_text_in_order():
    want = [o["text"] for o in alone(PROMPT)]
    done = run("run", "--model", TARGET, "--n", str(N), *PROMPT, *COMMON, *METHODS["draft"])
    assert done.returncode == 0, done.stderr
    shown = ""
    for k, text in enumerate(want):
        before = "" if k == 0 else "\n" if want[k - 1].endswith("\n") else "\n\n"
        shown += f"{before}==> answer {k} <==\n{text}"
    assert done.stdout == shown, done.stdout
    cut = ", ".join(str(k) for k in range(N))
    assert f"; answers {cut} cut after --max-tokens 64\n" in done.stderr, done.stderr
    assert f"{N} answers: " in done.stderr and f" {64 * N} generated tokens" in done.stderr, done.stderr


@case
def more_than_once_the_same_choice():
    """--choice is the first of --n."""
    found = run("run", "--json", "--model", TARGET, "--n", "2", "--choice", "2", *PROMPT, *COMMON)
    out = [json.loads(line) for line in found.stdout.splitlines()]
    assert [o["choice"] for o in out] == [2, 3]
    assert ids(out) == ids(alone(PROMPT))[2:]


@case
def a_killed_worker():
    args = ("--temperature", "1", "--seed", "5")
    for name in ("graft-target", "graft-draft"):
        r = Running("--n", "3", "--draft", DRAFT, "--num-speculative-tokens", "7", *args, tokens=ENDLESS, log="info",
                    rounds=True)
        pid = r.child(name)
        wait_for(lambda: len(shared(r.said())) == 2)  # pylint: disable=cell-var-from-loop
        os.kill(pid, signal.SIGKILL)
        r.wait_rounds(150, after="was killed by signal 9")  # all three are opened again by then
        found, said = r.interrupt()
        assert said.count("was killed by signal 9") == 1, said
        for k, o in enumerate(found):
            is_plain(o["token_ids"], *args, "--choice", str(k))
        assert said.count("re-opening it as epoch ") == (3 if name == "graft-target" else 0), said


@case
def interrupted():
    """Each tells what there is of it, which may be nothing yet, and one line that it was interrupted."""
    how = ("--temperature", "1", "--seed", "5")
    whole = [generate("--prompt", "import os", "--ignore-eos", "--max-tokens", "600", *how, "--choice", str(k))
             ["token_ids"] for k in range(3)]
    r = Running("--n", "3", *how, tokens=8000, log="info")
    target = r.child("graft-target")
    wait_for(lambda: len(shared(r.said())) == 2)
    wait_busy(target, 10)
    r.p.send_signal(signal.SIGINT)
    status, out, said = r.end()
    assert status == 128 + signal.SIGINT, (status, said)
    found = parse(out)
    assert [o["error"] for o in found] == ["interrupted"] * 3, [o["error"] for o in found]
    for k, o in enumerate(found):
        n = min(len(o["token_ids"]), len(whole[k]))
        assert o["token_ids"][:n] == whole[k][:n], (k, n)
    assert said.count("error: interrupted") == 1, said


@case
def interrupted_as_text():
    """What has been shown of the first answer is a part of it."""
    args = ("--prompt", "import os", "--ignore-eos", "--max-tokens")
    whole = generate(*args, "2000")["text"]
    with subprocess.Popen([GRAFT, "run", "--n", "2", "--model", TARGET, *args, "8000"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as p:
        begin = b""
        while len(begin) < 40:  # the client has had tokens; communicate() knows nothing of what a buffer read ahead
            more = os.read(p.stdout.fileno(), 4096)
            assert more, p.communicate()
            begin += more
        p.send_signal(signal.SIGINT)
        out, said = p.communicate(timeout=120)
    shown = (begin + out).decode().removeprefix("==> answer 0 <==\n").split("==> answer 1 <==")[0].rstrip("\n")
    assert p.returncode == 128 + signal.SIGINT, (p.returncode, said)
    assert len(shown) > 10 and whole.startswith(shown[:len(whole)]), shown
    assert said.count(b"error: interrupted") == 1, said


@case
def at_a_server():
    want = ids(alone(PROMPT))
    with Serve("--sessions", str(N)) as s:
        args = ("run", "--json", "--connect", s.address, "--model", TARGET, *PROMPT, *COMMON)
        forks = []  # of each run: fewer where its client was kept waiting, so that the first answer was over
        while len(forks) < 2 or N - 1 not in forks:
            assert len(forks) < 7, s.log()
            assert ids(parse(s.graft(*args, "--n", str(N)).stdout)) == want
            forks.append(len(shared(s.log())) - sum(forks))
        assert max(forks) == N - 1, s.log()
        assert ids([json.loads(s.graft(*args, "--choice", "3").stdout)]) == want[3:]
        assert ids(parse(s.graft(*args, "--n", str(N + 1)).stdout))[:N] == want  # one of them waits for a slot
        assert ids(parse(s.graft(*args, "--n", str(N)).stdout)) == want
        assert not s.sessions()


@case
def slots_that_others_have_used():
    """A fork's slot has summaries of the blocks of who was there before: under a lossy view they would show."""
    view = ("--specpv", "lossy", "--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks", "1",
            "--specpv-n-sink-blocks", "1", "--specpv-partial-threshold", "1000")
    other = ("--prompt-file", prompt_file(8, 12))
    # As many partial rounds as there are tokens between refreshes, by plain decoding: the same each time.
    want = ids(answers(*LONG, *COMMON, *view))
    assert want != ids(alone(LONG))  # or this would say nothing
    with Serve("--sessions", str(N), "--specpv", "on", "--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks",
               "1", "--specpv-n-sink-blocks", "1", draft=False) as s:
        for prompt in (other, LONG):
            args = ("run", "--json", "--connect", s.address, "--model", TARGET, *prompt, *COMMON, *view, "--n", str(N))
            found = parse(s.graft(*args).stdout)
            assert all(o["metrics"]["partial_rounds"] > 0 for o in found)
        assert ids(found) == want


@case
def bad_input():
    common = ("--model", TARGET, "--prompt", "import os", "--temperature", "1")
    refused((*common, "--n", "0"), 2, "--n", "from 1 to 16")
    refused((*common, "--n", "17"), 2, "--n", "from 1 to 16")
    refused((*common, "--n", "2", "--choice", "65535"), 2, "65536", "65535")
    refused((*common, "--choice", "-1"), 2, "--choice", "from 0 to 65535")
    refused((*common, "--n", "2", "--trace"), 2, "--trace", "--choice")
    refused((*common, "--n", "2", "--trace-file", os.path.join(FOLDER.name, "t")), 2, "--trace-file", "--choice")
    refused((*common, "--n", "2", "--connect", "127.0.0.1:1", "--keep"), 2, "--keep")
    done = run("run", "--json", *common[:-2], "--n", "3", "--max-tokens", "8")
    assert done.returncode == 0
    one_line(done, "--temperature", "equal")
    assert len({tuple(o["token_ids"]) for o in parse(done.stdout)}) == 1


sys.exit(main())
