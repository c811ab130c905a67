#!/usr/bin/env python3
"""The engine on a GPU in software (tests/soft_gpu): golden tokens, the same text with drafts, on two devices, under
partial views; devices that cannot be used; a CUDA error in mid-session. Times mean nothing there, and texts are short: a
pass takes half a second. What a real GPU runs is test_cuda.py.

usage: test_soft_gpu.py BUILD_DIR SOURCE_ROOT [I N]      prints TAP; every N-th case, from the I-th on
SOFT_GPU_SEED: another schedule.
"""
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import CASES, GRAFT, HEAD, ROOT, TARGET, case, generate, main, refused, run
from served import Serve
from weights import copy_of, widened

CUDA = ("--target-device", "cuda:0")
HEAD_ON = ("--draft", HEAD, "--draft-device")
# A pass waits for its tree: in software one may take longer than the usual deadline.
TREES = ("--num-speculative-tokens", "8", "--round-deadline-ms", "600000")

with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as golden:
    GOLDEN = json.load(golden)["cases"]


def text(i, n, *args, env=None):
    """n tokens after golden prompt i, and the run's metrics."""
    out = generate("--prompt-ids", "-", "--max-tokens", str(n), "--ignore-eos", *args, stdin=json.dumps(GOLDEN[i]["prompt_ids"]),
                   timeout=600, env=env)
    return out["token_ids"], out["metrics"]


def golden_ids(i, n, *args, env=None):
    """With margins that bf16 does not turn."""
    want = GOLDEN[i]["greedy_ids"][:n]
    assert min(GOLDEN[i]["margins"][:n]) > 0.04, "another prompt is needed"
    got, metrics = text(i, n, *args, env=env)
    assert got == want, (got, want)
    return metrics


@case
def golden_tokens():
    golden_ids(2, 8, *CUDA)


@case
def head_on_the_same_device():
    m = golden_ids(2, 16, *CUDA, *HEAD_ON, "cuda:0", *TREES)
    assert m["transport"] == "loop" and m["num_accepted_tokens"] > 6, m


@case
def what_is_asked_of_logits_is_the_hosts():
    """Rows of a request with bans, penalties and log-probabilities are picked from on the host: the same text and the
    same bits with trees, whoever ranks their children."""
    wishes = ("--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--logit-bias", "10=1.5,11=ban",
              "--min-tokens", "5", "--logprobs", "3")
    runs = [generate("--prompt-ids", "-", "--max-tokens", "6", "--ignore-eos", "--seed", "3", "--temperature", "0.8",
                     *wishes, *CUDA, *drafts, stdin=json.dumps(GOLDEN[2]["prompt_ids"]), timeout=600)
            for drafts in ((), (*HEAD_ON, "cuda:0", *TREES))]
    plain, drafted = runs
    assert plain["token_ids"] == drafted["token_ids"] and plain["logprobs"] == drafted["logprobs"], runs
    assert 11 not in plain["token_ids"] and drafted["metrics"]["num_accepted_tokens"] > 0, runs


def asked_rows(stderr):
    """(rows that were adjusted where the model picks, and on the host) of a run at --log-level info."""
    found = re.search(r"what was asked of logits: (\d+) rows where the model picks, (\d+) on the host", stderr)
    assert found, stderr
    return int(found[1]), int(found[2])


def asked(*args):
    """What 6 tokens with bans, a bias and penalties are, and whose rows they were."""
    wishes = ("--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.2", "--logit-bias",
              "10=1.5,11=ban", "--min-tokens", "5")
    done = run("run", "--json", "--model", TARGET, "--prompt-ids", "-", "--max-tokens", "6", "--ignore-eos", "--log-level", "info",
               *wishes, *CUDA, *args, stdin=json.dumps(GOLDEN[2]["prompt_ids"]), timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["token_ids"], asked_rows(done.stderr)


@case
def what_is_asked_of_logits_goes_along_as_lists():
    """The model adjusts and picks, with noise and trees; the text is that of the host, which picks where log-probabilities
    are wanted. (Each of these runs takes 20 seconds; test_cuda.py has greedy ones and plain ones, too.)"""
    noise = ("--temperature", "0.8", "--seed", "3")
    host, rows = asked(*noise, "--logprobs", "1")
    assert rows[0] == 0 and rows[1] >= 6, rows
    got, rows = asked(*noise, *HEAD_ON, "cuda:0", *TREES)
    assert got == host and rows[0] >= 6 and rows[1] == 0, (got, host, rows)


@case
def answers_share_a_prompt():
    """Blocks of one prompt, and a copied part of one: each answer is what its choice alone gives."""
    args = ("--max-tokens", "3", "--ignore-eos", "--temperature", "1", "--seed", "7", "--prompt-ids", "-", *CUDA)
    prompt = (GOLDEN[2]["prompt_ids"] * 4)[:38]
    want = [generate(*args, "--choice", str(k), stdin=json.dumps(prompt), timeout=600)["token_ids"] for k in range(2)]
    done = run("run", "--json", "--model", TARGET, "--n", "2", *args, *HEAD_ON, "cuda:0", *TREES, "--log-level", "info",
               stdin=json.dumps(prompt), timeout=600)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["token_ids"] for line in done.stdout.splitlines()] == want, (done.stdout, want)
    assert want[0] != want[1] and "shares KV of 32 tokens" in done.stderr, done.stderr


@case
def a_prompt_from_the_cache():
    """Its last block is whole, or one token is left: text from blocks that another session computed is what was computed."""
    prompt = GOLDEN[2]["prompt_ids"] * 4
    with Serve(*CUDA, "--model", TARGET, "--spawn", "--prefix-cache", "on", "--sessions", "2", "--max-model-len", "128",
               spawn=False) as s:
        s.wait()
        for n, begin in ((33, 0), (32, 5)):
            got = [s.generate("--prompt-ids", "-", "--max-tokens", "2", "--ignore-eos", "--seed", "7", "--temperature", "1",
                              input=json.dumps(prompt[begin:begin + n]), timeout=600) for _ in range(2)]
            assert [g["metrics"]["cached_tokens"] for g in got] == [0, (n - 1) // 16 * 16], got
            assert got[0]["token_ids"] == got[1]["token_ids"], got


@case
def head_on_another_device_and_noise():
    """Two processes."""
    noise = ("--temperature", "0.8", "--seed", "3")
    plain, _ = text(0, 4, *CUDA, *noise)
    drafted, m = text(0, 4, *CUDA, *HEAD_ON, "cuda:1", *TREES, *noise, env={"SOFT_GPU_DEVICES": "2"})
    assert plain == drafted and m["num_drafts"] > 0 and m["transport"] != "loop", (plain, drafted, m)


@case
def partial_views():
    view = ("--specpv", "exact", "--specpv-partial-threshold", "32", "--specpv-n-retrieval-blocks", "1",
            "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1")
    m = golden_ids(2, 14, *CUDA, *view)
    assert m["partial_rounds"] > 4 and m["full_refreshes"] > 0, m


@case
def devices_that_cannot_be_used():
    base = ["--model", TARGET, "--prompt", "x", *CUDA]
    refused(base, 1, "cuda:0", "no GPU", env={"SOFT_GPU_DEVICES": "0"})
    refused(base, 1, "cuda:0", "capability 8.0", "9.0", env={"SOFT_GPU_CAPABILITY": "8.0"})
    refused(base[:-1] + ["cuda:7"], 1, "cuda:7", "1 GPU")
    refused(base, 1, "cuda:0", "needs", "MiB", "free", env={"SOFT_GPU_MEMORY": str(40 << 20)})
    refused([*base, "--kv-blocks", "100000"], 1, "cuda:0", "MiB", "free", env={"SOFT_GPU_MEMORY": str(1 << 30)})


@case
def one_worker_at_a_time_takes_memory():
    """Somebody has the lock of cuda:1: a worker that starts there waits, says so, and goes on when it is given back."""
    with open("/dev/shm/graft.gpu-" + "00" * 15 + "01", "a+", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--target-device", "cuda:1", "--prompt-ids", "-", "--max-tokens",
                              "1", "--ignore-eos", "--log-level", "info"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=dict(os.environ, SOFT_GPU_DEVICES="2"))
        p.stdin.write(json.dumps(GOLDEN[2]["prompt_ids"]))
        p.stdin.close()
        before = []
        for line in p.stderr:
            before.append(line)
            if "cuda:1: another worker is taking memory" in line:
                break
        assert "another worker" in before[-1] and not any("MiB free" in x for x in before), before
    after = p.stderr.read()
    p.stderr.close()
    p.stdout.close()
    assert p.wait(timeout=120) == 0 and "cuda:1: loading" in after, after


@case
def weights_of_more_than_bf16():
    """A GPU takes bf16: what an F32 file loses nothing by, and what --dtype bf16 rounds; else the tensor is named."""
    with tempfile.TemporaryDirectory() as d:
        exact, wide = widened(copy_of(d, TARGET, "exact")), widened(copy_of(d, TARGET, "wide"), "layers.3.mlp.up_proj")
        ids, _ = text(2, 2, "--model", exact, *CUDA)
        assert ids == GOLDEN[2]["greedy_ids"][:2], ids
        refused(["--model", wide, "--prompt", "x", *CUDA], 1, "layers.3.mlp.up_proj", "--dtype bf16")
        refused(["--model", exact, "--prompt", "x", "--dtype", "f32", *CUDA], 1, "model.embed_tokens", "--dtype f32")


@case
def a_cuda_error_in_mid_session():
    """The target's launches fail one day, and so do those of the one that is started instead; the text is complete."""
    args = ("run", "--json", "--model", TARGET, *CUDA, "--prompt-ids", "-", "--max-tokens", "14", "--ignore-eos")
    done = run(*args, stdin=json.dumps(GOLDEN[2]["prompt_ids"]), timeout=600, env={"SOFT_GPU_FAIL_AFTER": "400"})
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["token_ids"] == GOLDEN[2]["greedy_ids"][:14], out
    assert out["metrics"]["reopens"] >= 1 and "launch failure" in done.stderr, (out["metrics"], done.stderr)


if len(sys.argv) > 4:
    CASES[:] = CASES[int(sys.argv[3])::int(sys.argv[4])]
sys.exit(main())
