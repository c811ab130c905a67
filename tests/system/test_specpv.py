#!/usr/bin/env python3
"""SpecPV end to end on the demo models: exact gives the text of full verification however small the view, lossy with a
view of everything does, and both say what they did. Views are made small, so that refreshes find other tokens.

Prompts: the 16 of tests/golden/prompts.json joined, 5k tokens, in two orders.

usage: test_specpv.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import signal
import sys
import tempfile

from harness import DRAFT, HEAD, ROOT, TARGET, case, generate, main, run
from served import FIXED, Serve, one_line
from stream import Stream

N_TOKEN = 160
with open(os.path.join(ROOT, "tests/golden/prompts.json"), encoding="utf-8") as f:
    SHORT = json.load(f)
FOLDER = tempfile.TemporaryDirectory()
PROMPTS = []
for name, texts in (("a", SHORT), ("b", SHORT[::-1])):
    PROMPTS.append(os.path.join(FOLDER.name, name))
    with open(PROMPTS[-1], "w", encoding="utf-8") as out:
        out.write("\n\n".join(texts))

SMALL = ("--specpv-n-retrieval-blocks", "8", "--specpv-n-window-blocks", "1", "--specpv-n-sink-blocks", "1")
TREE = ("--num-speculative-tokens", "12", "--draft-depth", "5", "--draft-top-k", "4")
METHODS = {"none": (), "draft_model": ("--draft", DRAFT, *TREE), "eagle3": ("--draft", HEAD, *TREE)}
PLAIN = {}


def args_of(prompt, *more):
    return ("--prompt-file", prompt, "--max-tokens", str(N_TOKEN), "--ignore-eos", *more)


def plain(prompt, *more):
    key = (prompt, *more)
    if key not in PLAIN:
        PLAIN[key] = generate(*args_of(prompt, *more))
    return PLAIN[key]


def say(what, m):
    print(f"# {what}: {m['partial_rounds']} partial rounds, {m['full_refreshes']} refreshes, {m['drift_mismatches']} of "
          f"{m['drift_checked']} judged tokens were others; mean acceptance length {m['mean_acceptance_length']:.2f}",
          flush=True)


@case
def exact_is_full_verification():
    n_other = 0
    for prompt in PROMPTS:
        for method, draft in METHODS.items():
            for transport in ("shm", "tcp") if draft else ("shm",):
                out = generate(*args_of(prompt, "--specpv", "exact", "--transport", transport, *SMALL, *draft))
                m = out["metrics"]
                say(f"prompt {os.path.basename(prompt)}, {method}, {transport}", m)
                assert out["token_ids"] == plain(prompt)["token_ids"], method
                assert m["partial_rounds"] > 10 and m["full_refreshes"] > 2, m
                assert m["drift_checked"] > 0 and m["desyncs"] + m["fallbacks"] == 0, m
                n_other += m["drift_mismatches"]
    assert n_other > 20, n_other


@case
def exact_with_temperature():
    sampling = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "5")
    for method in ("draft_model", "eagle3"):
        out = generate(*args_of(PROMPTS[0], "--specpv", "exact", *SMALL, *METHODS[method], *sampling))
        say(method, out["metrics"])
        assert out["token_ids"] == plain(PROMPTS[0], *sampling)["token_ids"]
        assert out["metrics"]["partial_rounds"] > 10


@case
def exact_where_the_text_ends():
    """The end falls into provisional text: by the limit, whatever it is, and by a stop string."""
    whole = plain(PROMPTS[0])
    for n in (1, 2, 3, 17, 40, 41, 42, 43):
        out = generate("--prompt-file", PROMPTS[0], "--max-tokens", str(n), "--ignore-eos", "--specpv", "exact", *SMALL,
                       *METHODS["draft_model"])
        assert out["token_ids"] == whole["token_ids"][:n] and out["finish_reason"] == "length", n
    for at in (60, 150):
        stop = ("--stop", whole["text"][at:at + 6])
        want = plain(PROMPTS[0], *stop)
        out = generate(*args_of(PROMPTS[0], "--specpv", "exact", *SMALL, *METHODS["draft_model"], *stop))
        assert out["token_ids"] == want["token_ids"] and out["text"] == want["text"], stop
        assert out["finish_reason"] == "stop"


@case
def lossy_that_sees_everything():
    for method, draft in METHODS.items():
        out = generate(*args_of(PROMPTS[0], "--specpv", "lossy", "--specpv-n-retrieval-blocks", "512", *draft))
        m = out["metrics"]
        say(method, m)
        assert out["token_ids"] == plain(PROMPTS[0])["token_ids"], method
        assert m["partial_rounds"] > 10 and m["drift_mismatches"] == 0, m


@case
def lossy_tells_its_drift():
    out = generate(*args_of(PROMPTS[0], "--specpv", "lossy", *SMALL, *METHODS["eagle3"]))
    m = out["metrics"]
    say("lossy", m)
    assert len(out["token_ids"]) == N_TOKEN and m["partial_rounds"] > 10 and m["drift_checked"] > 0, m


@case
def workers_killed_in_the_middle():
    for method in ("draft_model", "eagle3"):
        for transport in ("shm", "tcp"):
            args = ("--specpv", "exact", "--transport", transport, *SMALL, *METHODS[method], "--prompt-file", PROMPTS[1],
                    "--max-tokens", "400", "--round-deadline-ms", "200")
            with Stream("--prompt-file", PROMPTS[1], "--max-tokens", "400") as base:
                assert base.finish() == 0, base.lines[-3:]
            for worker in ("draft", "target"):
                with Stream(*args) as r:
                    assert r.until(lambda r: len(r.rounds) >= 12), r.lines[-3:]
                    os.kill(r.child("graft-" + worker), signal.SIGKILL)
                    assert r.finish() == 0, r.lines[-3:]
                    assert r.text == base.text, (method, transport, worker)
                    assert r.said(b"was killed by signal 9"), r.lines


@case
def it_says_why_not():
    small = ("--prompt-file", PROMPTS[0], "--max-tokens", "4", "--model", TARGET)
    for more, words in ((("--max-model-len", "5400", "--specpv-n-retrieval-blocks", "400"), "larger than the context"),
                        (("--specpv-n-spec-tokens-buf", "8", "--draft", DRAFT, *TREE), "buffer is too small"),
                        (("--specpv-exact-max-provisional", "4", "--draft", DRAFT, *TREE), "max_provisional")):
        done = run("run", *small, "--specpv", "exact", *more)
        assert done.returncode == 0 and "[specpv][fallback]" in done.stderr and words in done.stderr, done.stderr
    out = generate(*args_of(PROMPTS[0], "--specpv", "exact", "--disable-specpv"))
    assert out["metrics"]["partial_rounds"] == 0 and out["metrics"]["fallbacks"] == 0, out["metrics"]
    for bad in (("--specpv", "maybe"), ("--specpv", "exact", "--specpv-block-size", "32"),
                ("--specpv", "exact", "--specpv-score-reduce", "median")):
        done = run("run", *small, *bad)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


@case
def yaml_keys():
    path = os.path.join(FOLDER.name, "c.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("speculative_config:\n  specpv_mode: lossy\n  enable_specpv: true\n  specpv_n_retrieval_blocks: 8\n"
                "  specpv_n_window_blocks: 1\n  specpv_n_sink_blocks: 1\n  specpv_partial_threshold: 100\n"
                "  specpv_full_refresh_interval: 3\n  specpv_n_spec_tokens_buf: 64\n  specpv_refresh_fraction: 0.5\n"
                "  specpv_score_reduce: max\n  specpv_exact_max_provisional: 32\n  specpv_block_size: 16\n")
    m = generate(*args_of(PROMPTS[0], "--config", path))["metrics"]
    say("by a file", m)
    assert m["partial_rounds"] > 10 and m["full_refreshes"] >= m["partial_rounds"] // 3 - 1, m


@case
def a_served_session():
    with Serve("--specpv", "exact", *SMALL) as s:
        more = (*FIXED, "--specpv-partial-threshold", "1000")
        out = s.generate("--specpv", "exact", "--prompt-file", PROMPTS[0], "--max-tokens", str(N_TOKEN), *more)
        assert out["token_ids"] == plain(PROMPTS[0])["token_ids"]
        assert out["metrics"]["partial_rounds"] > 10, out["metrics"]
        m = s.generate("--prompt-file", PROMPTS[0], "--max-tokens", "20", *more)["metrics"]
        assert m["partial_rounds"] == 0 and m["fallbacks"] == 0, m  # views are there, and it did not ask
        name = s.graft("session", "open", "--model", TARGET, "--prompt-file", PROMPTS[0], "--max-tokens", "40",
                       "--ignore-eos", "--specpv", "exact", *more).stdout.strip()
        shown = s.sessions()[0]
        assert shown["specpv"] == "exact" and shown["full_refreshes"] > 0 and shown["drift_checked"] > 0, shown
        assert "SpecPV exact" in s.graft("session", "show", name).stdout
        assert "0 running sessions" in s.graft("session", "refresh", name).stdout
        assert "0 running sessions" in s.graft("session", "refresh").stdout
        one_line(s.graft("session", "refresh", "99", status=1), "no session 99")


if __name__ == "__main__":
    sys.exit(main())
