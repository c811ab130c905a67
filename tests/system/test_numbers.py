#!/usr/bin/env python3
"""Numbers at the edge of what floats hold: temperatures close to zero, weights that are NaN or infinite.

usage: test_numbers.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import sys
import tempfile

from harness import DRAFT, HEAD, TARGET, case, generate, main, refused, run
from weights import INF, NAN, copy_of, find_tensor, put, with_own_lm_head

FIXED = ("--num-speculative-tokens", "7")


# ---- temperatures ----

@case
def least_temperatures_are_greedy():
    args = ("--max-tokens", "32", "--ignore-eos", "--seed", "7")
    greedy = generate(*args)["token_ids"]
    for t in ("1e-45", "1e-38", "7e-38", "1e-6", "9.9e-6"):
        assert generate("--temperature", t, *args)["token_ids"] == greedy, t
    for t, draft in (("1e-38", DRAFT), ("9.9e-6", HEAD)):
        out = generate("--temperature", t, "--draft", draft, *FIXED, *args)
        assert out["token_ids"] == greedy, (t, draft)
        # A drafter that took the temperature for another would propose what nobody picks.
        assert out["metrics"]["mean_acceptance_length"] > 1.5, out["metrics"]


@case
def temperatures_above_sample():
    args = ("--max-tokens", "32", "--ignore-eos", "--seed", "7")
    for t in ("1e-5", "1e-3"):
        plain = generate("--temperature", t, *args)["token_ids"]
        for draft in (DRAFT, HEAD):
            out = generate("--temperature", t, "--draft", draft, *FIXED, *args)
            assert out["token_ids"] == plain, (t, draft)
            assert out["metrics"]["mean_acceptance_length"] > 1.5, out["metrics"]
    for t in ("-1", "-1e-6", "nan", "inf", "100.5"):
        refused(["--model", TARGET, "--prompt", "x", f"--temperature={t}"], 2, "temperature")


# ---- weights ----

PROMPT = "def fibonacci(n):"


def stream(model, *args):
    return run("run", "--model", model, "--prompt", PROMPT, "--max-tokens", "64", "--ignore-eos", *args)


def fails_at(done, path, position, text):
    """The text before it, then one error that names model and position."""
    assert done.returncode == 1, done
    assert done.stdout.rstrip("\n") == text.rstrip("\n"), (done.stdout, text)
    lines = [x for x in done.stderr.splitlines() if "NaN" in x and "graft: error" in x]
    assert lines and path in lines[0] and f"position {position} " in lines[0], done.stderr
    assert "assertion" not in done.stderr and "signal" not in done.stderr, done.stderr


@case
def bad_rows_end_the_text_where_plain_decoding_would():
    """Rows after a token whose embedding is NaN are bad, and a tree that proposes that token has bad rows of its own."""
    good = generate("--max-tokens", "64", "--ignore-eos", "--prompt", PROMPT)
    ids = good["token_ids"]
    n_prompt = good["metrics"]["prompt_tokens"]
    prompt = set(ids[:12])
    at = next(i for i, t in enumerate(ids) if i >= 12 and t not in prompt)
    with tempfile.TemporaryDirectory() as d:
        path = copy_of(d, TARGET)
        with_own_lm_head(path)
        assert stream(path).stdout == stream(TARGET).stdout  # it is the same model so far
        _, shape, _ = find_tensor(path, "model.embed_tokens.weight")
        put(path, "model.embed_tokens.weight", ids[at] * shape[1] + 7, [NAN])
        plain = stream(path)
        text = plain.stdout
        assert good["text"].startswith(text.rstrip("\n")) and len(text) > 10, (text, good["text"])
        fails_at(plain, path, n_prompt + at, text)
        out = json.loads(stream(path, "--json", "--draft", HEAD, *FIXED).stdout)
        assert out["finish_reason"] == "error" and f"position {n_prompt + at} " in out["error"], out
        assert out["token_ids"] == ids[:at + 1], out
        for draft in (DRAFT, HEAD):
            for how in (("--num-speculative-tokens", "16"), ("--num-speculative-tokens", "63"), ()):
                fails_at(stream(path, "--draft", draft, *how), path, n_prompt + at, text)
        sampled = ("--temperature", "0.7", "--seed", "3")
        plain = stream(path, *sampled)
        for draft in (DRAFT, HEAD):
            done = stream(path, "--draft", draft, *FIXED, *sampled)
            assert done.returncode == plain.returncode and done.stdout == plain.stdout, (done, plain)


@case
def bad_rows_from_the_first_on():
    """A tied embedding: one bad row of it is a bad logit of every row."""
    with tempfile.TemporaryDirectory() as d:
        path = copy_of(d, TARGET)
        _, shape, _ = find_tensor(path, "model.embed_tokens.weight")
        for value in (NAN, INF, INF | 0x8000):
            put(path, "model.embed_tokens.weight", 4000 * shape[1], [value])
            for args in ((), ("--draft", DRAFT, *FIXED), ("--temperature", "1")):
                done = stream(path, *args)
                assert done.returncode == 1 and done.stdout.strip() == "", done
                lines = [x for x in done.stderr.splitlines() if "NaN or infinity" in x]
                assert len(lines) == 1 and path in lines[0], done.stderr


@case
def bad_vectors_are_refused():
    with tempfile.TemporaryDirectory() as d:
        for k, (model, name, value, at) in enumerate((
                (TARGET, "model.norm.weight", NAN, 3), (TARGET, "model.layers.5.input_layernorm.weight", INF, 383),
                (TARGET, "model.layers.0.post_attention_layernorm.weight", NAN | 0x8000, 0))):
            path = copy_of(d, model, f"target{k}")
            put(path, name, at, [value])
            refused(["--model", path, "--prompt", "x"], 1, name, f"value {at} of 384", "NaN or infinite",
                    os.path.basename(find_tensor(path, name)[0]))
        for k, (model, name) in enumerate(((HEAD, "midlayer.hidden_norm.weight"), (DRAFT, "model.norm.weight"))):
            path = copy_of(d, model, f"draft{k}")
            put(path, name, 5, [NAN])
            done = run("run", "--model", TARGET, "--prompt", "x", "--draft", path, "--max-tokens", "4")
            said = [x for x in done.stderr.splitlines() if name in x and "value 5 of" in x]
            assert done.returncode == 1 and said, done


@case
def bad_drafters_change_nothing():
    """Bad rows of a drafter, or features that are bad: trees without nodes, one line, the whole text."""
    args = ("--max-tokens", "64", "--ignore-eos", "--prompt", PROMPT)
    with tempfile.TemporaryDirectory() as d:
        bad = ((DRAFT, "model.embed_tokens.weight", NAN), (HEAD, "lm_head.weight", INF), (HEAD, "fc.weight", NAN))
        for k, (model, name, value) in enumerate(bad):  # fc: every feature
            path = copy_of(d, model, f"draft{k}")
            put(path, name, 0, [value] * 8)
            for sampled in ((), ("--temperature", "0.8", "--seed", "5")):
                want = generate(*args, *sampled)
                for how in (FIXED, ("--draft-ahead", "on", *FIXED), ()):
                    done = run("run", "--json", "--model", TARGET, "--draft", path, *args, *sampled, *how)
                    assert done.returncode == 0, done.stderr
                    out = json.loads(done.stdout)
                    assert out["token_ids"] == want["token_ids"], name
                    assert out["metrics"]["num_accepted_tokens"] == 0, out["metrics"]
                    n = out["metrics"]["fallbacks"]
                    assert n >= 1 or not how, out["metrics"]  # nobody waits long for trees whose number finds itself
                    lines = [x for x in done.stderr.splitlines() if "[spec][fallback]" in x and "NaN" in x]
                    assert len(lines) == (len(str(n)) if n else 0), done.stderr  # the 1st, 10th, ... time


sys.exit(main())
