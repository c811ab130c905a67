#!/usr/bin/env python3
"""Models on a GPU, as a user starts them: golden tokens, the same text whatever is drafted, with whom a pass is shared,
and what happens to a worker; what cannot run is one line. Skipped where there is no GPU that the build can use.

usage: test_cuda.py BUILD_DIR SOURCE_ROOT      prints TAP
GRAFT_TEST_TOKENS: tokens of each identity case (default 600). GRAFT_TEST_PROMPTS: a file of prompts, a JSON object with
"text" a line, instead of the golden ones.
"""
import concurrent.futures
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile

from harness import BUILD, DRAFT, HEAD, ROOT, TARGET, case, main, refused, run
from served import Serve
from weights import NAN, copy_of, find_tensor, put, with_own_lm_head

TOKENS = int(os.environ.get("GRAFT_TEST_TOKENS", "600"))
CUDA = ("--target-device", "cuda:0")
BOTH = CUDA + ("--draft", HEAD, "--draft-device", "cuda:0")
MARGIN = 0.06  # bf16 against f32: a pick may differ where the best two logits are that close

with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as golden:
    GOLDEN = json.load(golden)["cases"]


def prompts():
    """Arguments that give a prompt, and standard input."""
    path = os.environ.get("GRAFT_TEST_PROMPTS")
    if path is None:
        return [(("--prompt-ids", "-"), json.dumps(c["prompt_ids"])) for c in GOLDEN]
    with open(path, encoding="utf-8") as f:
        return [(("--prompt-file", "-"), json.loads(line)["text"]) for line in f]


def serve(*args):
    return Serve(*args, "--model", TARGET, "--spawn", "--sessions", "16", "--max-model-len", "32768", spawn=False)


def text_of(s, prompt, *args, tokens=None):
    where, stdin = prompt
    return s.generate(*where, "--max-tokens", str(tokens or TOKENS), *args, input=stdin, timeout=300)


@case
def golden_tokens():
    n_same = n_token = 0
    with serve(*CUDA) as s:
        s.wait()
        for i, c in enumerate(GOLDEN):
            want = c["greedy_ids"]
            got = text_of(s, (("--prompt-ids", "-"), json.dumps(c["prompt_ids"])), tokens=len(want))["token_ids"]
            first = next((k for k, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
            n_same += first == len(want)
            n_token += first
            if first < len(want):
                print(f"# golden {i}: differs at {first} of {len(want)}, margin {c['margins'][first]:.4f}")
                assert c["margins"][first] < MARGIN, (i, first, c["margins"][first])
    print(f"# golden: {n_same} of {len(GOLDEN)} texts equal, {n_token} tokens before first differences")


def same_text(first, second, *args, nodes="auto"):
    """Plain decoding against drafts, prompt by prompt; returns what the drafts brought."""
    n_token = n_accepted = n_draft = 0
    with serve(*first) as plain, serve(*second) as drafted:
        plain.wait()
        drafted.wait("--draft", HEAD)
        for i, prompt in enumerate(prompts()):
            a = text_of(plain, prompt, *args)
            b = text_of(drafted, prompt, *args, "--num-speculative-tokens", nodes)
            k = next((k for k, (x, y) in enumerate(zip(a["token_ids"], b["token_ids"])) if x != y), -1)
            assert a["token_ids"] == b["token_ids"], (i, "first difference at", k, b["metrics"])
            n_token += len(a["token_ids"])
            n_accepted += b["metrics"]["num_accepted_tokens"]
            n_draft += b["metrics"]["num_drafts"]
    print(f"# {n_token} tokens equal; mean acceptance length {1 + n_accepted / max(n_draft, 1):.2f}")
    assert n_draft > 0
    return 1 + n_accepted / n_draft


@case
def prompts_from_the_cache():
    """Hits of all lengths around blocks, on a pool that turns over, with and without noise: the text is that of a target that
    computes every prompt."""
    rng = random.Random(int(os.environ.get("GRAFT_TEST_SEED", "1")))
    source = [i for c in GOLDEN for i in c["prompt_ids"] + c["greedy_ids"]]
    with serve(*CUDA, "--prefix-cache", "on", "--kv-blocks", "512") as warm, serve(*CUDA, "--prefix-cache", "off") as cold:
        warm.wait()
        cold.wait()
        n_cached = 0
        for i in range(40):
            n = 16 * rng.randrange(1, 60) + rng.choice((-1, 0, 1))
            begin = rng.randrange(len(source) - n)
            noise = ("--temperature", "1", "--seed", str(i)) if i % 2 else ()
            ask = ("--prompt-ids", "-"), json.dumps(source[begin:begin + n])
            want = text_of(cold, ask, *noise, tokens=40)["token_ids"]
            for first in (True, False):
                got = text_of(warm, ask, *noise, tokens=40)
                assert got["token_ids"] == want, (i, n, first, got, want)
            assert got["metrics"]["cached_tokens"] == (n - 1) // 16 * 16, (n, got["metrics"])
            n_cached += got["metrics"]["cached_tokens"]
    print(f"# {n_cached} tokens from the cache")


@case
def head_on_the_same_gpu():
    assert same_text(CUDA, BOTH, nodes="16") > 2.0


@case
def head_on_the_same_gpu_with_noise():
    same_text(CUDA, BOTH, "--temperature", "0.8", "--seed", "5", nodes="16")


@case
def picks_that_the_host_makes():
    same_text(CUDA, BOTH, "--temperature", "0.9", "--top-p", "0.9", "--seed", "7", nodes="8")


@case
def head_on_the_cpu():
    assert same_text(CUDA, CUDA + ("--draft", HEAD), nodes="32") > 2.0


@case
def automatic_trees():
    same_text(CUDA, BOTH)


@case
def least_temperatures_are_greedy():
    with serve(*BOTH) as s:
        s.wait("--draft", HEAD)
        for prompt in prompts()[:2]:
            want = text_of(s, prompt, "--method", "none", tokens=48)["token_ids"]
            for t in ("1e-38", "7e-38", "9.9e-6"):
                for how in (("--method", "none"), ("--num-speculative-tokens", "8")):
                    assert text_of(s, prompt, "--temperature", t, *how, tokens=48)["token_ids"] == want, (t, how)


@case
def rows_that_are_not_finite():
    """The token at which plain decoding would read a NaN ends the text with an error, with drafts as without."""
    where, stdin = prompts()[0]
    run_on = lambda path, *args: run("run", "--model", path, *where, "--ignore-eos", "--max-tokens", "32", *args,
                                     stdin=stdin, timeout=300)
    good = run_on(TARGET, "--json", *CUDA)
    assert good.returncode == 0, good.stderr
    good = json.loads(good.stdout)
    ids = good["token_ids"]
    seen = set(json.loads(stdin) if stdin.startswith("[") else ids[:8]) | set(ids[:5])
    at = next(i for i, t in enumerate(ids) if i >= 5 and t not in seen)
    with tempfile.TemporaryDirectory() as d:
        path = copy_of(d, TARGET)
        with_own_lm_head(path)
        put(path, "model.embed_tokens.weight", ids[at] * find_tensor(path, "model.embed_tokens.weight")[1][1], [NAN])
        plain = run_on(path, *CUDA)
        position = f"position {good['metrics']['prompt_tokens'] + at} "
        assert plain.returncode == 1 and position in plain.stderr and path in plain.stderr, plain.stderr
        assert good["text"].startswith(plain.stdout.rstrip("\n")) and plain.stdout, (plain.stdout, good["text"])
        for nodes in ("8", "63", "auto"):
            done = run_on(path, *BOTH, "--num-speculative-tokens", nodes)
            assert done.returncode == 1 and position in done.stderr, (nodes, done.stderr)
            assert done.stdout == plain.stdout, (nodes, done.stdout, plain.stdout)
        head = copy_of(d, HEAD, "head")
        put(head, "fc.weight", 0, [NAN] * 8)
        done = run_on(TARGET, "--json", *CUDA, "--draft", head, *BOTH[4:], "--num-speculative-tokens", "8")
        assert done.returncode == 0 and json.loads(done.stdout)["token_ids"] == ids, done.stderr
        said = [x for x in done.stderr.splitlines() if "[spec][fallback]" in x and "NaN" in x]
        assert len([x for x in said if "times by now" not in x]) == 1, done.stderr  # then with its count, now and then


@case
def sessions_share_passes():
    """Texts of sessions that run together are those of sessions that run alone."""
    few = [c for i, c in enumerate(prompts()) if i < 12]
    with serve(*BOTH) as s:
        s.wait("--draft", HEAD)

        def text(p):
            return text_of(s, p, "--num-speculative-tokens", "12", tokens=200)["token_ids"]
        alone = [text(p) for p in few]
        with concurrent.futures.ThreadPoolExecutor(len(few)) as pool:
            together = list(pool.map(text, few))
        assert alone == together, [i for i, (a, b) in enumerate(zip(alone, together)) if a != b]


# ---- what is asked of logits ----

# Of the demo model: no end of the text, two frequent ids less likely, a ban, a bad word, all three penalties.
ASKED = ("--repetition-penalty", "1.2", "--frequency-penalty", "0.3", "--presence-penalty", "0.4", "--logit-bias", "10=1.5,12=-2,11=ban",
         "--bad-words", "self", "--min-tokens", "40")


def asked_text(prompt, *args, tokens="120"):
    """(ids, metrics, rows that were adjusted on the GPU, and on the host)"""
    where, stdin = prompt
    done = run("run", "--json", "--model", TARGET, *where, "--max-tokens", tokens, "--ignore-eos", "--log-level", "info", *ASKED,
               *args, stdin=stdin, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = re.search(r"what was asked of logits: (\d+) rows where the model picks, (\d+) on the host", done.stderr)
    assert rows, done.stderr
    out = json.loads(done.stdout)
    return out["token_ids"], out["metrics"], int(rows[1]), int(rows[2])


@case
def what_is_asked_of_logits_goes_along_as_lists():
    """The ids are those of the host, which picks where log-probabilities are wanted: plain, with a head, with a draft
    model (whose shapes are for the CPU); greedy and with noise."""
    model = (*CUDA, "--draft", DRAFT)
    for prompt in prompts()[:3]:
        for how in ((), NOISE):
            host, _, n_list, n_host = asked_text(prompt, *how, *CUDA, "--logprobs", "1")
            assert n_list == 0 and n_host >= 120, (n_list, n_host)
            for first in (CUDA, (*BOTH, *TREE), (*model, *TREE)):
                got, metrics, n_list, n_host = asked_text(prompt, *how, *first)
                k = next((k for k, (a, b) in enumerate(zip(got, host)) if a != b), -1)
                assert got == host, (prompt, how, first, "first difference at", k)
                assert n_list >= 120 and n_host == 0 and metrics["fallbacks"] == 0, (n_list, n_host, metrics)
                assert first == CUDA or metrics["num_accepted_tokens"] > 0, metrics


@case
def longer_lists_are_the_hosts():
    """A penalty over more ids than a list may have, then over as many: the text goes on where it can."""
    rows = lambda n, *how: asked_text((("--prompt-ids", "-"), json.dumps(list(range(300, 300 + n)))), *CUDA, *how, tokens="48")
    for n in (2200, 1900):
        host, got = rows(n, "--logprobs", "1"), rows(n)
        assert got[0] == host[0] and got[1]["fallbacks"] == (48 if n > 2048 else 0), (n, host, got)
        assert got[2:] == ((0, 48) if n > 2048 else (48, 0)), got


# ---- SpecPV ----

with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    SHORT = json.load(f)
# 2.5k tokens each, and 15k
LONG = [(("--prompt-file", "-"), "\n\n".join(texts)) for texts in (SHORT[:8], SHORT[8:], SHORT * 3)]
EARLY = ("--specpv-partial-threshold", "1000")
VIEW = ("--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1")
TREE = ("--num-speculative-tokens", "12")
NOISE = ("--temperature", "0.9", "--seed", "5")


def specpv_text(s, prompt, mode, *args):
    """A text with SpecPV, and its metrics; partial rounds were run, and nobody lost anything."""
    out = text_of(s, prompt, "--specpv", mode, *EARLY, *TREE, *args, tokens=250)
    m = out["metrics"]
    print(f"# {mode}: {m['partial_rounds']} partial rounds, {m['full_refreshes']} refreshes, "
          f"{m['drift_mismatches']} of {m['drift_checked']} judged tokens were others; "
          f"{m['mean_acceptance_length']:.2f} a round", flush=True)
    assert m["partial_rounds"] > 10 and m["full_refreshes"] > 1 and m["drift_checked"] > 0, m
    assert m["fallbacks"] + m["desyncs"] == 0, m
    return out["token_ids"], m


@case
def specpv_exact_is_full_verification():
    """Views far too small: what they accept is often void."""
    n_other = 0
    for reduce in ("mean", "max"):
        view = (*VIEW, "--specpv-score-reduce", reduce)
        with serve(*CUDA) as plain, serve(*BOTH, "--specpv", "exact", *view) as s:
            plain.wait()
            s.wait("--draft", HEAD)
            for prompt in LONG:
                for sampling in ((), NOISE):
                    got, m = specpv_text(s, prompt, "exact", *VIEW, *sampling)
                    assert got == text_of(plain, prompt, *sampling, tokens=250)["token_ids"], (sampling, reduce, m)
                    n_other += m["drift_mismatches"]
    assert n_other > 10, n_other


@case
def specpv_without_drafts():
    with serve(*CUDA, "--specpv", "exact", *VIEW) as s:
        s.wait()
        for prompt in LONG:
            assert specpv_text(s, prompt, "exact", *VIEW)[0] == text_of(s, prompt, tokens=250)["token_ids"]


@case
def specpv_that_sees_everything():
    with serve(*BOTH, "--specpv", "lossy") as s:
        s.wait("--draft", HEAD)
        for prompt in LONG[:2]:
            got, m = specpv_text(s, prompt, "lossy")
            assert got == text_of(s, prompt, *TREE, tokens=250)["token_ids"] and m["drift_mismatches"] == 0, m


@case
def specpv_lossy():
    with serve(*BOTH, "--specpv", "lossy", *VIEW) as s:
        s.wait("--draft", HEAD)
        for prompt in LONG:
            assert len(specpv_text(s, prompt, "lossy", *VIEW)[0]) == 250


@case
def specpv_auto():
    with serve(*CUDA) as plain, serve(*BOTH, "--specpv", "auto") as s:
        plain.wait()
        s.wait("--draft", HEAD)
        for prompt in LONG:
            out = text_of(s, prompt, "--specpv", "auto", tokens=400)
            print(f"# auto: {out['metrics']['partial_rounds']} partial rounds, "
                  f"{out['metrics']['full_refreshes']} refreshes")
            assert out["token_ids"] == text_of(plain, prompt, tokens=400)["token_ids"], out["metrics"]


@case
def specpv_sessions_share_passes():
    """Sessions under views, sessions that choose theirs, and sessions without, in the same passes."""
    with serve(*BOTH, "--specpv", "exact", *VIEW) as s:
        s.wait("--draft", HEAD)
        alone = [text_of(s, p, tokens=250)["token_ids"] for p in LONG]

        def text(i):
            if i % 3 == 0:
                return text_of(s, LONG[i % len(LONG)], *TREE, tokens=250)["token_ids"]
            return specpv_text(s, LONG[i % len(LONG)], "exact", *VIEW)[0]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = list(pool.map(text, [0, 1, 2, 4, 5, 7, 8, 3, 10, 11, 6, 13]))
        want = [alone[i % len(LONG)] for i in [0, 1, 2, 4, 5, 7, 8, 3, 10, 11, 6, 13]]
        assert together == want, [i for i, (a, b) in enumerate(zip(together, want)) if a != b]


@case
def killed_target():
    with serve(*BOTH) as s:
        s.wait("--draft", HEAD)
        want = text_of(s, prompts()[1], tokens=4000)["token_ids"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(text_of, s, prompts()[1], tokens=4000)
            s.wait_running()
            os.kill(s.child("graft-target"), signal.SIGKILL)
            assert got.result()["token_ids"] == want


def tune(what, path, *args):
    return subprocess.run([os.path.join(BUILD, "graft-bench"), "tune", what, "--model", TARGET, "--device", "cuda:0",
                           "--output", path, *args], capture_output=True, text=True, timeout=600, check=False)


@case
def measured_shapes():
    """A file with both sections of all shapes is one that can be required; without the head's shapes it cannot."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "tuned.json")
        done = tune("gemm", path)
        assert done.returncode == 0 and "640 x 384" in done.stdout, done
        args = ("--model", TARGET, "--prompt", "x", *BOTH, "--tuned", path, "--require-tuned")
        for what, shape, more in (("gemm", "640 x 768", ("--draft", HEAD)), ("attention", "6/2 x 64", ())):
            done = run("run", *args)
            assert done.returncode == 1 and f"graft-bench tune {what} --model" in done.stderr, done
            done = tune(what, path, *more)
            assert done.returncode == 0 and shape in done.stdout, done
        with open(path, encoding="utf-8") as f:
            made = json.load(f)
        print("#", made["gpu"], len(made["linear"]), "matrices;", made["attention"][0])
        done = run("run", *args, "--max-tokens", "32", env={"GRAFT_LOG": "info"})
        assert done.returncode == 0 and "width" in done.stderr and "(tuned)" in done.stderr, done
        assert "(formula)" not in done.stderr, done.stderr
        made["gpu"] = "another"
        with open(path, "w", encoding="utf-8") as f:
            json.dump(made, f)
        done = run("run", *args)
        assert done.returncode == 1 and "another" in done.stderr, done
        done = tune("attention", path)
        assert done.returncode == 1 and "name another file" in done.stderr, done


@case
def drafts_under_other_shapes():
    """Cuts and splits that nobody would choose: texts may be others than without, with drafts they are the same."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "tuned.json")
        linear = [{"n_out": o, "n_in": i, "width": w, "parts": p} for o, i, w, p in (
            (640, 384, 32, 2), (384, 384, 248, 1), (2048, 384, 96, 2), (384, 1024, 224, 2), (4096, 384, 192, 1),
            (384, 1152, 64, 1), (640, 768, 128, 2), (3072, 384, 16, 2))]
        attention = [{"n_head": 6, "n_kv_head": 2, "head_dim": 64, "n_split_max": 3}]
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"format": 1, "gpu": "none", "linear": linear, "attention": attention}, f)
        assert same_text(CUDA + ("--tuned", path), BOTH + ("--tuned", path), nodes="16") > 2.0


@case
def a_pass_without_the_host():
    """The column of graft-bench stages: passes without a pause take no longer than one after the other."""
    done = subprocess.run([os.path.join(BUILD, "graft-bench"), "stages", "--device", "cuda:0", "--model", TARGET,
                           "--head", HEAD, "--context", "64", "--reps", "51", "-o", "json"], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    times = [(r["stage"], r["rows"], r["device ms"], r["median ms"]) for r in rows if r["stage"] in ("verify", "head")]
    assert len(times) == 12 and all(0 < device < 1.2 * median for _, _, device, median in times), times


@case
def what_cannot_run_is_one_line():
    base = ["--model", TARGET, "--prompt", "x"]
    refused(base + ["--target-device", "cuda:99"], 1, "cuda:99", "GPU")
    refused(base + ["--target-device", "gpu"], 2, "cuda:N")
    refused(base + list(CUDA) + ["--draft", DRAFT, "--draft-device", "cuda:0"], 1, "head_dim")
    refused(base + list(CUDA) + ["--kv-blocks", "67108864"], 1, "MiB", "free")


PROBE = run("run", "--model", TARGET, "--prompt", "x", "--max-tokens", "1", *CUDA)
if PROBE.returncode != 0:
    print(f"1..0 # SKIP {PROBE.stderr.strip().splitlines()[-1]}")
    sys.exit(0)
sys.exit(main())
