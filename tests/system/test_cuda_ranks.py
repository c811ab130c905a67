#!/usr/bin/env python3
"""A target that several GPUs share out: texts are those of one GPU, whatever drafts, over peer memory and over NCCL; a
rank that is killed or stopped ends its group, which comes back as a whole, and the text goes on; what cannot be is one
line. Skipped where there are fewer than two GPUs that the build can use; what needs four says so.

usage: test_cuda_ranks.py BUILD_DIR SOURCE_ROOT      prints TAP
GRAFT_TEST_TOKENS: tokens of the long comparison (20000).
GRAFT_TEST_WAYS: ways of the exchange that are tried (auto,nccl).
"""
import json
import os
import signal
import subprocess
import sys
import time

from gpus import N_GPU, SOFT, WHY
from harness import BUILD, HEAD, ROOT, TARGET, Running, alive, case, generate, main, refused, wait_for
from ranks import interrupt_a_run, ranks_of, stop_a_rank, texts_of_llama31, wait_for_ranks
from served import Serve

TOKENS = int(os.environ.get("GRAFT_TEST_TOKENS", "20000"))
WAYS = os.environ.get("GRAFT_TEST_WAYS", "auto,nccl").split(",")
TP8 = ("--geometry", "test-tp8", "--max-model-len", "4096")
TREE = ("--num-speculative-tokens", "16")
GROUP_S = 120  # until a group of GPUs computes
MARGIN = 0.06  # bf16 against f32: a pick may differ where the best two logits are that close

with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    PROMPTS = json.load(f)
with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as f:
    GOLDEN = json.load(f)["cases"]


def group(n, way=None):
    """The list of GPUs says how many ranks there are; with a way -tp does, too."""
    devices = ",".join(f"cuda:{i}" for i in range(n))
    return ("--target-device", devices, *(("-tp", str(n), "--tp-transport", way) if way is not None and n > 1 else ()))


def sizes(most=8):
    return [n for n in (2, 4, 8) if n <= min(N_GPU, most)]


# ---- sums ----

@case
def sums_between_processes():
    """tests/ranks/check_ranks: joins, graphs, logits, and a rank that does not come."""
    check = os.path.join(BUILD, "tests/ranks/check_ranks")
    for n in sizes():
        for way in WAYS:
            done = subprocess.run([check, str(n), way], capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, (n, way, done.stdout, done.stderr[-3000:])


# ---- texts ----

@case
def golden_tokens_of_two_ranks():
    """The demo target has two KV heads."""
    n = 8 if SOFT else 64
    for i, c in enumerate(GOLDEN[:2 if SOFT else len(GOLDEN)]):
        args = ("--prompt-ids", "-", "--max-tokens", str(min(n, len(c["greedy_ids"]))), "--ignore-eos")
        stdin = json.dumps(c["prompt_ids"])
        one = generate(*args, *group(1), stdin=stdin, timeout=300)["token_ids"]
        two = generate(*args, *group(2), stdin=stdin, timeout=300)["token_ids"]
        assert one == two, i
        k = next((k for k, (a, b) in enumerate(zip(two, c["greedy_ids"])) if a != b), -1)
        assert k < 0 or c["margins"][k] < MARGIN, (i, k)


def long_texts(n, way, method, n_token):
    """Token ids after each prompt."""
    with Serve(*group(n, way), *TP8, "--model", TARGET, "--spawn", "--sessions", "4", *method, spawn=False) as s:
        s.wait()
        each = min(2000, n_token)
        return [s.generate("--prompt", PROMPTS[i % len(PROMPTS)], "--max-tokens", str(each),
                           *(TREE if method else ()), timeout=600)["token_ids"]
                for i in range((n_token + each - 1) // each)]


@case
def long_texts_are_those_of_one_gpu():
    """Plainly, and with trees of a head, which is on rank 0's GPU: equal ids for every size and way."""
    n_token = 8 if SOFT else TOKENS
    want = long_texts(1, "auto", (), n_token)
    n = sum(len(t) for t in want)
    print(f"# one GPU: {n} tokens", flush=True)
    for size in sizes():
        for way in WAYS:
            for method in ((), ("--draft", HEAD, "--draft-device", "cuda:0")):
                begin = time.monotonic()
                got = long_texts(size, way, method, n_token)
                k = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), -1)
                assert got == want, (size, way, method, "text", k)
                print(f"# {size} ranks, {way}, {'trees' if method else 'plain'}: {n} tokens equal, "
                      f"{time.monotonic() - begin:.0f} s", flush=True)


@case
def a_large_geometry():
    """Heads of 64, eight KV heads, a vocabulary of 128256."""
    args = ("--geometry", "llama-3.2-1b", "--max-model-len", "2048", "--ignore-eos", "--max-tokens", "300")
    if SOFT:
        return
    want = generate(*args, *group(1), timeout=300)["token_ids"]
    for size in sizes():
        for more in ((), ("--draft", HEAD, "--draft-device", "cuda:0", *TREE)):
            assert generate(*args, *group(size), *more, timeout=300)["token_ids"] == want, (size, more)


@case
def sampled_texts_penalties_and_views():
    wishes = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "3", "--repetition-penalty", "1.2", "--logprobs", "2")
    views = ("--prompt", "\n\n".join(PROMPTS[:4]), "--specpv", "exact", "--specpv-n-retrieval-blocks", "8",
             "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1", "--specpv-partial-threshold", "1000")
    head = ("--draft", HEAD, "--draft-device", "cuda:0", *TREE)
    if SOFT:
        return
    for args in (wishes, wishes + head, views + head):
        args += (*TP8, "--max-tokens", "150", "--ignore-eos")
        want = generate(*args, *group(1), timeout=300)
        for size in sizes():
            out = generate(*args, *group(size), timeout=300)
            assert out["token_ids"] == want["token_ids"], (size, args)
            assert out.get("logprobs") == want.get("logprobs"), (size, args)


@case
def ncclAllReduce_is_another_numerics():  # pylint: disable=invalid-name
    """Close to the same text, under a name of its own."""
    if "nccl" not in WAYS:
        return
    with Serve(*group(2), "--tp-allreduce", "nccl", *TP8, "--model", TARGET, "--spawn", spawn=False) as s:
        s.wait()
        assert len(s.generate("--max-tokens", "40")["token_ids"]) == 40
        assert "in NCCL's order" in s.log(), s.log()


@case
def a_model_with_eight_kv_heads():
    texts_of_llama31(group, sizes(), 4 if SOFT else 200)


# ---- ends ----

@case
def a_killed_rank_ends_the_group_and_the_text_goes_on():
    tokens = 12 if SOFT else 3000
    want = json.loads(Running(*TP8, *group(1), tokens=tokens).end(600)[1])["token_ids"]
    for size in sizes():
        for way in WAYS:
            for which in (0, -1) if size > 2 else (0,):
                r = Running(*TP8, *group(size, way), tokens=tokens, log="info")
                target = wait_for_ranks(r, size, GROUP_S)
                ranks = ranks_of(target)
                begin = time.monotonic()
                os.kill(ranks[which], signal.SIGKILL)
                wait_for(lambda: not any(alive(pid) for pid in (target, *ranks)), 30)
                took = time.monotonic() - begin
                status, out, said = r.end(600)
                assert status == 0, said
                out = json.loads(out)
                assert out["token_ids"] == want and out["metrics"]["reopens"] == 1, out["metrics"]
                assert f"of {size} was killed by signal 9" in said, said
                print(f"# {size} ranks, {way}: all gone after {took:.2f} s", flush=True)


@case
def a_stopped_rank_ends_the_group_within_the_limit():
    tokens = 12 if SOFT else 3000
    want = json.loads(Running(*TP8, *group(1), tokens=tokens).end(600)[1])["token_ids"]
    for way in WAYS:
        said, took = stop_a_rank((*TP8, *group(2, way)[2:]), tokens, "5s" if SOFT else "2s", want, GROUP_S)
        assert "the group ends" in said, said
        assert took < (60 if SOFT else 10), took
        print(f"# {way}: the group ended after {took:.1f} s", flush=True)


@case
def an_interrupted_run_leaves_nobody():
    interrupt_a_run((*TP8, *group(2)), 2, GROUP_S)


# ---- what cannot be ----

@case
def what_cannot_be_is_one_line():
    base = ("--model", TARGET, "--prompt", "x")
    refused((*base, "-tp", "2", "--target-device", f"cuda:0,cuda:{N_GPU}"), 1, f"cuda:{N_GPU}: there are")
    refused((*base, "-tp", "2", "--target-device", "cuda:0,cuda:0"), 2, "cuda:0 is there twice")
    refused((*base, "-tp", "2", "--target-device", "cuda:0"), 2, "1 GPU for 2 ranks")
    refused((*base, *group(2), "--tp-transport", "peer", "--tp-allreduce", "nccl"), 1, "need NCCL")


if __name__ == "__main__":
    if N_GPU < 2:
        print(f"1..0 # SKIP two GPUs are needed: {WHY}")
        sys.exit(0)
    print(f"# {N_GPU} GPUs" + ("" if N_GPU >= 4 else ": groups of four are not tried"))
    sys.exit(main())
