#!/usr/bin/env python3
"""The EAGLE-3 head on a draft worker of its own: how much of its trees the target accepts, what that costs on the wire,
how fast trees are back after the drafter was lost, and heads that do not fit.

Prompts: tests/golden/prompts.json, the beginnings of 16 files of trio and jedi that the demo models never saw.
GRAFT_TEST_LONG=1: all of them at temperature 1 too, with four seeds, and a context of 16k tokens.

usage: test_eagle3.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from harness import BUILD, HEAD, ROOT, SLOW, TARGET, case, generate, main, refused, run
from served import Serve, worker
from stream import Stream, killed

N_TOKEN = 128
WIDTH = 384  # of a fused feature, bf16
LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    PROMPTS = json.load(f)

CHAIN_6 = ("--num-speculative-tokens", "6", "--tree-shape", "chain")
TREE_15 = ("--num-speculative-tokens", "15", "--draft-depth", "6", "--draft-top-k", "6")
TREE_59 = ("--num-speculative-tokens", "59", "--draft-depth", "8", "--draft-top-k", "10")
PLAIN = {}


def text_of(prompt, *args):
    key = (prompt, *args)
    if key not in PLAIN:
        PLAIN[key] = generate("--prompt", prompt, *args, timeout=120)["token_ids"]
    return PLAIN[key]


class Sum:
    """Over many runs: mean acceptance length over all rounds, rounds that accepted more than i tokens, bytes."""

    def __init__(self):
        self.accepted = self.drafts = self.tokens = 0
        self.wire_bytes = 0.0
        self.depth = []

    def add(self, m):
        assert m["desyncs"] + m["fallbacks"] == 0, m
        self.accepted += m["num_accepted_tokens"]
        self.drafts += m["num_drafts"]
        self.tokens += m["completion_tokens"] - 1
        self.wire_bytes += m["wire_bytes_per_token"] * (m["completion_tokens"] - 1)
        per_depth = m["accepted_per_position"]
        self.depth += [0] * (len(per_depth) - len(self.depth))
        for i, n in enumerate(per_depth):
            self.depth[i] += n

    def length(self):
        return 1 + self.accepted / self.drafts

    def bytes_per_token(self):
        return self.wire_bytes / self.tokens

    def say(self, what):
        print(f"# {what}: mean acceptance length {self.length():.3f} over {self.drafts} drafts, "
              f"{self.bytes_per_token():.0f} bytes a token, accepted by depth "
              + " ".join(f"{n / self.drafts:.3f}" for n in self.depth), flush=True)


def run_prompts(prompts, shape, *sampling):
    total = Sum()
    for prompt in prompts:
        args = ("--max-tokens", str(N_TOKEN), "--ignore-eos", *sampling)
        out = generate("--prompt", prompt, "--draft", HEAD, *shape, *args, timeout=120)
        assert out["token_ids"] == text_of(prompt, *args), prompt[:40]
        total.add(out["metrics"])
    return total


# ---- acceptance ----

# Mean acceptance length at least: of all 16 prompts, of the first four. The head's reference implementation has 3.71,
# 4.50 and 5.79 where rounds are not cut at the token limit, which costs 1 to 2 %.
SHAPES = (("chain of 6", CHAIN_6, 3.5, 4.0), ("tree of 15", TREE_15, 4.25, 4.45), ("tree of 59", TREE_59, 5.45, 6.1))


@case
def greedy_acceptance():
    prompts = PROMPTS if LONG else PROMPTS[:4]
    for name, shape, all_16, first_4 in SHAPES:
        total = run_prompts(prompts, shape)
        total.say(f"{name}, {len(prompts)} prompts, greedy")
        wanted = all_16 if prompts == PROMPTS else first_4
        assert total.length() >= wanted, (name, total.length(), wanted)
        # Every committed token's feature crosses once; trees and verdicts are small beside it.
        assert WIDTH * 2 <= total.bytes_per_token() < WIDTH * 2 + 100, (name, total.bytes_per_token())


# Temperature 1, the drafter knows the target's noise. A numpy model of head and target, with other noise too, has
# 3.64 +- 0.10 over six seeds where rounds are not cut, and 2.73 without the noise.
@case
def sampled_acceptance():
    prompts, n_seed, wanted = (PROMPTS, 4, 3.45) if LONG else (PROMPTS[:4], 1, 3.2)
    total = Sum()
    for seed in range(1, n_seed + 1):
        one = run_prompts(prompts, TREE_59, "--temperature", "1", "--seed", str(seed))
        one.say(f"tree of 59, {len(prompts)} prompts, temperature 1, seed {seed}")
        total.accepted += one.accepted
        total.drafts += one.drafts
    print(f"# tree of 59, {len(prompts)} prompts, temperature 1, {n_seed} seeds: mean acceptance length "
          f"{total.length():.3f}", flush=True)
    assert total.length() >= wanted, (total.length(), wanted)


# ---- a drafter that comes late ----

# The context: the prompts one after another, 5k tokens, or three times as many; or a file, for measuring.
@case
def how_far_a_head_looks_back():
    """The same text, and drafts that are as good, with the end of the prompt alone."""
    prompt = "\n\n".join(PROMPTS[:4])
    want = generate("--prompt", prompt, "--max-tokens", str(N_TOKEN))["token_ids"]
    length = {}
    for context in ("0", "96", "2"):
        out = generate("--prompt", prompt, "--max-tokens", str(N_TOKEN), "--draft", HEAD, *TREE_15,
                       "--draft-context", context)
        assert out["token_ids"] == want
        m = out["metrics"]
        assert m["desyncs"] + m["fallbacks"] == 0, m
        length[context] = m["mean_acceptance_length"]
    print(f"# of all: {length['0']:.2f} tokens a round; of 96 positions: {length['96']:.2f}", flush=True)
    assert length["96"] > 0.9 * length["0"] > 2.0
    assert length["2"] > 1.2, length  # even the last two bring something
    for bad in ("-1", "1", "2.0", "16777217"):
        refused(["--model", TARGET, "--prompt", "a", "--draft-context", bad], 2, "--draft-context", "0 or", "2 to 16777216")
    refused(["--model", TARGET, "--prompt", "a"], 2, "GRAFT_DRAFT_CONTEXT", "2 to 16777216", env={"GRAFT_DRAFT_CONTEXT": "1"})
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "one.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("draft:\n  context: 1\n")
        done = run("run", "--model", TARGET, "--prompt", "a", "--config", path)
        assert done.returncode != 0 and "2 to 16777216" in done.stderr and "one.yaml:2" in done.stderr, done.stderr
    for program, more in (("graft-draft", ()), ("graft-target", ()), ("graft-bench", ("e2e",))):
        done = subprocess.run([os.path.join(BUILD, program), *more, "--draft-context", "1"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 2 and "2 to 16777216" in done.stderr, (program, done.stderr)


def killed_in_mid_text(args, base):
    """Where the drafter was lost, and how the text recovered."""
    r, at_len, since = killed(args, 5, "graft-draft")
    assert r.text == base.text, args
    return at_len, r.recovery(since, base)


@case
def drafter_killed_at_a_long_context():
    """The new drafter gets the features of the last 2,048 positions only, and drafts as well as the old one. How soon it is
    there the machine's other work has a say in: the best of some kills counts."""
    prompt = "\n\n".join(PROMPTS * (3 if LONG else 1))
    with tempfile.TemporaryDirectory() as d:
        path = os.environ.get("GRAFT_TEST_PROMPT_FILE", os.path.join(d, "prompt"))
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as out:
                out.write(prompt)
        for transport in ("shm", "tcp") if LONG else ("tcp",):
            args = ("--draft", HEAD, "--prompt-file", path, "--transport", transport, "--max-tokens", "300", *TREE_15,
                    "--temperature", "0.6", "--seed", "3", "--round-deadline-ms", "200")
            with Stream(*args) as base:
                assert base.finish() == 0, base.lines[-3:]
            seen = []
            while not any(recovery is not None and recovery.ms_attached < 1000 * SLOW and recovery.n_tree <= 8 * SLOW
                          and recovery.mean >= 0.75 * recovery.same for recovery in seen):
                assert len(seen) < 3, seen
                at_len, recovery = killed_in_mid_text(args, base)
                print(f"# {transport}: drafter lost at {at_len} tokens: {recovery}", flush=True)
                assert at_len > (14000 if LONG else 4000), at_len
                seen.append(recovery)


# ---- heads that do not fit ----

def edit_tensor(path, name, change):
    """Changes the bytes of one tensor in a safetensors file."""
    with open(path, "r+b") as file:
        n = struct.unpack("<Q", file.read(8))[0]
        begin, end = json.loads(file.read(n))[name]["data_offsets"]
        file.seek(8 + n + begin)
        data = change(bytearray(file.read(end - begin)))
        file.seek(8 + n + begin)
        file.write(data)


def edit_config(path, **keys):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update(keys)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def copy_head(folder, source=HEAD):
    path = os.path.join(folder, "head")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), 0o644)
    return path


def flip_fc(path):
    def change(data):
        data[0] ^= 1
        return data
    edit_tensor(os.path.join(path, "model.safetensors"), "fc.weight", change)


@case
def head_of_another_target_is_refused_once():
    """Before any worker starts, so one line and not one of each worker."""
    with tempfile.TemporaryDirectory() as d:
        head = copy_head(d)
        edit_config(head, hidden_size=512)
        refused(["--model", TARGET, "--prompt", "x", "--draft", head], 1, "512", "384")
        head = copy_head(d)
        edit_config(head, vocab_size=5000)
        refused(["--model", TARGET, "--prompt", "x", "--draft", head], 1, "5000", "4096")
        head = copy_head(d)
        edit_config(head, draft_vocab_size=3071)
        refused(["--model", TARGET, "--prompt", "x", "--draft", head], 1, "graft: error:", "d2t", "3071", "3072")
        head = copy_head(d)
        edit_tensor(os.path.join(head, "model.safetensors"), "d2t", lambda data: bytearray(b"\xff" * len(data)))
        refused(["--model", TARGET, "--prompt", "x", "--draft", head], 1, "graft: error:", "d2t[0]")
        head = copy_head(d)
        os.truncate(os.path.join(head, "model.safetensors"), 100000)
        refused(["--model", TARGET, "--prompt", "x", "--draft", head], 1, "graft: error:", "model.safetensors", "100000")
    refused(["--model", TARGET, "--prompt", "x", "--draft", HEAD, "--capture-layers", "1,3"], 1, "graft: error:",
            "fc.weight takes 1152 values", "768")


@case
def other_head_than_the_drafters_is_told():
    """The server tells with both fingerprints, and so does the session, whose text comes all the same."""
    args = ("--max-tokens", "32", "--num-speculative-tokens", "4")
    want = generate("--prompt", "def fibonacci(n):", "--max-tokens", "32", "--ignore-eos")["token_ids"]
    with tempfile.TemporaryDirectory() as d:
        other = copy_head(d)
        flip_fc(other)
        with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, "--head", HEAD):
            s.wait()
            with worker("graft-draft", s.folder, s.address, "--target", TARGET, model=other):
                s.wait("--draft", other)
                out = s.generate(*args)
                assert out["token_ids"] == want and out["metrics"]["num_accepted_tokens"] == 0, out
                assert "is for its model" in out["undrafted"], out
            told = re.search(r"its head's fc has fingerprint (\w+), the drafter's (\w+)", s.log())
            assert told and told.group(1) != told.group(2), s.log()


sys.exit(main())
