#!/usr/bin/env python3
"""Numbers at the edge of what floats hold: temperatures close to zero.

usage: test_numbers.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import sys

from harness import DRAFT, HEAD, case, generate, main, refused, TARGET

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


sys.exit(main())
