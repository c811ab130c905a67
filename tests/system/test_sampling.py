#!/usr/bin/env python3
"""Bans, biases, penalties and log-probabilities by real processes: whoever drafts, over whatever transport, with a tree of whatever size,
the text is plain decoding's; and it is as was asked for.

usage: test_sampling.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import math
import os
import sys
import tempfile

from harness import DRAFT, HEAD, ROOT, TARGET, case, generate, main, refused
from served import FIXED, Serve

COMMON = ("--ignore-eos", "--max-tokens", "72", "--seed", "11")
WISHES = {
    "penalties": ("--repetition-penalty", "1.2", "--frequency-penalty", "0.5", "--presence-penalty", "0.5"),
    "bans": ("--bad-words", "self", "--bad-words", "return", "--logit-bias", "10=-2.5,400=1.5,11=ban"),
}
WISHES["all"] = WISHES["penalties"] + WISHES["bans"] + ("--min-tokens", "30")
METHODS = {
    "draft": ("--draft", DRAFT),
    "head": ("--draft", HEAD),
}


def same(plain, *args):
    out = generate(*COMMON, *args)
    assert out["token_ids"] == plain["token_ids"], args
    return out


@case
def texts_over_methods_and_transports():
    for name, wishes in WISHES.items():
        for temperature in ("0", "0.7", "1") if name == "all" else ("0.7",):
            args = (*wishes, "--temperature", temperature)
            plain = generate(*COMMON, *args)
            ways = (("draft", "shm"), ("head", "tcp"), ("head", "loop"))
            for method, transport in ways if temperature == "0.7" else ways[:2]:
                out = same(plain, *args, *METHODS[method], "--transport", transport, "--num-speculative-tokens", "15")
                assert out["metrics"]["num_accepted_tokens"] > 0, args


@case
def texts_over_sizes_of_trees():
    args = (*WISHES["all"], "--temperature", "0.7")
    plain = generate(*COMMON, *args)
    for size in ("1", "2", "7", "31", "63", "auto"):
        same(plain, *args, *METHODS["head"], "--num-speculative-tokens", size)
    same(plain, *args, *METHODS["draft"], "--num-speculative-tokens", "8", "--tree-shape", "chain")


@case
def penalties_by_the_definition():
    """With a penalty that nothing outweighs no token comes twice; with its negative one comes for ever."""
    out = generate(*COMMON, "--presence-penalty", "2", "--frequency-penalty", "2", "--repetition-penalty", "10",
                   *METHODS["head"])
    ids = out["token_ids"]
    assert len(set(ids)) > 0.9 * len(ids), ids
    plain = generate(*COMMON)["token_ids"]
    assert len(set(plain)) < 0.9 * len(plain)  # or this would say nothing
    assert generate(*COMMON, "--repetition-penalty", "1", "--presence-penalty", "0")["token_ids"] == plain


@case
def a_ban_is_a_ban():
    plain = generate(*COMMON)["token_ids"]
    first = plain[0]
    for draft in ((), METHODS["draft"], METHODS["head"]):
        out = generate(*COMMON, "--logit-bias", f"{first}=ban", *draft)
        assert first not in out["token_ids"]
    # Long enough for the head to join, whose first tree is waited for. One that did not heed the bias would never propose
    # it.
    forced = generate(*COMMON, "--logit-bias", "300=100", *METHODS["head"], "--max-tokens", "1500",
                      "--num-speculative-tokens", "7", "--round-deadline-ms", "60000")
    m = forced["metrics"]
    assert forced["token_ids"] == [300] * 1500
    assert 0 < m["num_drafts"] and m["num_accepted_tokens"] > 2 * m["num_drafts"], m


@case
def bad_words_do_not_come():
    plain = generate(*COMMON)
    word = plain["text"].split()[0]
    for draft in ((), METHODS["head"]):
        assert word not in generate(*COMMON, "--bad-words", word, *draft)["text"].split(), word


@case
def least_length():
    """Pitfall H4: ids that end the text are liked best, and wait until as many tokens are there, in a tree, too."""
    end = 300
    for draft in ((), METHODS["draft"], METHODS["head"]):
        for n in (0, 1, 4, 20):
            out = generate("--max-tokens", "40", "--stop-token-ids", str(end), "--logit-bias", f"{end}=100",
                           "--min-tokens", str(n), *draft)
            assert out["finish_reason"] == "stop", out
            assert len(out["token_ids"]) == n + 1 and out["token_ids"].count(end) == 1, (n, out["token_ids"])
    out = generate("--max-tokens", "40", "--stop", "\n", "--min-tokens", "12")
    assert len(out["token_ids"]) >= 12 and out["text"].count("\n") > 0, out["text"]
    assert len(generate("--max-tokens", "40", "--stop", "\n")["token_ids"]) < 12


# ---- log-probabilities ----

@case
def logprobs_are_equal_bits():
    for wishes in ((), WISHES["all"]):
        for temperature in ("0", "1"):
            args = (*wishes, "--temperature", temperature, "--logprobs", "5")
            plain = generate(*COMMON, *args)
            assert [t["id"] for t in plain["logprobs"]] == plain["token_ids"]
            ways = (("draft", "shm", "3"), ("draft", "loop", "63"), ("head", "tcp", "63"), ("head", "loop", "3"))
            for method, transport, size in ways[int(temperature)::2]:  # each way at one temperature
                out = same(plain, *args, *METHODS[method], "--transport", transport, "--num-speculative-tokens", size)
                assert out["logprobs"] == plain["logprobs"], (args, method)


@case
def logprobs_are_the_models_own():
    """Pitfall H7: neither temperature nor penalties show in them; the list is sorted; -1 is none, 0 the token alone."""
    rows = [generate("--max-tokens", "1", "--logprobs", "20", "--seed", "5", *more)["logprobs"][0]
            for more in ((), ("--temperature", "0.2"), ("--temperature", "2"), WISHES["all"][:-2])]
    for row in rows:
        assert row["top"] == rows[0]["top"]
        value = {t["id"]: t["logprob"] for t in row["top"]}
        assert row["logprob"] == value.get(row["id"], row["logprob"]) <= row["top"][0]["logprob"] < 0
    values = [t["logprob"] for t in rows[0]["top"]]
    assert len(values) == 20 and values == sorted(values, reverse=True)
    assert rows[0]["id"] == rows[0]["top"][0]["id"] and 0.5 < sum(math.exp(v) for v in values) < 1
    assert "logprobs" not in generate("--max-tokens", "1")
    alone = generate("--max-tokens", "3", "--logprobs", "0")["logprobs"]
    assert [t["top"] for t in alone] == [[], [], []] and alone[0]["logprob"] == rows[0]["logprob"]


@case
def logprobs_have_their_text():
    out = generate("--prompt", "Zürich 東京", "--max-tokens", "40", "--ignore-eos", "--logprobs", "20")
    rows = out["logprobs"]
    assert bytes(b for t in rows for b in t["bytes"]).decode("utf-8", "replace") == out["text"]
    every = [t for row in rows for t in (row, *row["top"])]
    assert len(every) == 40 * 21 and len({t["token"] for t in every}) > 20
    for t in every:
        whole = bytes(t["bytes"]).decode("utf-8", "replace")
        assert t["token"].replace("\ufffd", "") == whole.replace("\ufffd", ""), t


@case
def logprobs_of_what_is_shown():
    """A stop string takes tokens back, of which a round has told all."""
    word = generate(*COMMON)["text"].split()[-3]
    args = ("--max-tokens", "72", "--stop", word, "--logprobs", "2")
    plain = generate(*args)
    out = generate(*args, *METHODS["head"], "--num-speculative-tokens", "31")
    assert plain["finish_reason"] == "stop" and plain["logprobs"] == out["logprobs"]
    assert len(plain["logprobs"]) == len(plain["token_ids"])


@case
def logprobs_under_a_view_that_is_judged():
    """Exact SpecPV: a token's are those of the full verification that it stood."""
    args = ("--prompt-file", os.path.join(ROOT, "tests/golden/long-prompt.txt"), "--max-model-len", "8192",
            "--max-tokens", "150", "--ignore-eos", "--logprobs", "3", "--repetition-penalty", "1.1")
    plain = generate(*args)
    out = generate(*args, *METHODS["head"], "--num-speculative-tokens", "15", "--specpv", "exact",
                   "--specpv-partial-threshold", "1000", "--specpv-n-retrieval-blocks", "4", "--specpv-n-window-blocks", "2",
                   timeout=120)
    assert out["metrics"]["partial_rounds"] > 0 and out["metrics"]["drift_checked"] > 0, out["metrics"]
    assert out["token_ids"] == plain["token_ids"] and out["logprobs"] == plain["logprobs"]


@case
def from_a_server():
    args = (*WISHES["all"], "--logprobs", "4", "--temperature", "0.7")
    plain = generate(*COMMON, *args)
    with Serve() as s:
        out = s.generate(*COMMON, *args, *FIXED)
        assert out["token_ids"] == plain["token_ids"] and out["logprobs"] == plain["logprobs"]
        assert out["metrics"]["num_accepted_tokens"] > 0


@case
def from_a_file():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "graft.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("session:\n  repetition_penalty: 1.2\n  frequency_penalty: 0.5\n  presence_penalty: 0.5\n"
                    "  min_tokens: 30\n  bad_words: [self, return]\n  logit_bias: [10=-2.5, 400=1.5, 11=ban]\n")
        assert generate(*COMMON, "--config", path)["token_ids"] == generate(*COMMON, *WISHES["all"])["token_ids"]


@case
def what_is_refused():
    for args, words in (
            (("--repetition-penalty", "0"), ("--repetition-penalty", "0.01 to 10")),
            (("--frequency-penalty", "3"), ("--frequency-penalty", "-2 to 2")),
            (("--presence-penalty", "nan"), ("--presence-penalty", "-2 to 2")),
            (("--logit-bias", "5"), ("--logit-bias", "ID=NUMBER")),
            (("--logit-bias", "5=200"), ("--logit-bias", "-100 to 100, or ban")),
            (("--logit-bias", "99999=1"), ("--logit-bias", "99999", "vocabulary")),
            (("--logit-bias", "5=1,5=2"), ("--logit-bias", "5", "twice")),
            (("--logit-bias", ",".join(f"{i}=1" for i in range(301))), ("--logit-bias", "300")),
            (("--bad-words", " "), ("--bad-words", "0 bytes")),
            (("--bad-words", "x y z " * 30), ("--bad-words", "tokens")),
            (("--logprobs", "21"), ("--logprobs", "-1 to 20")),
            (("--logprobs", "2"), ("--logprobs: log-probabilities are shown in JSON alone", "--json")),
            (("--min-tokens", "9", "--max-tokens", "8"), ("--min-tokens 9", "--max-tokens 8"))):
        refused(["--model", TARGET, "--prompt", "x", *args], 2, *words)


sys.exit(main())
