#!/usr/bin/env python3
"""The page at / as it is served, and what it asks the server for. test_browser.py has it in a browser.

usage: test_page.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import base64
import hashlib
import os
import re

from harness import ROOT, TARGET, case, main
from endpoint import PROMPT, Endpoint
from served import Folder

KEY = "sk-page-0123456789abcdef"
BYTES_MAX = 60 << 10


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@case
def the_page_is_one_file_under_a_strict_policy():
    with Endpoint("--model", TARGET, spawn=False) as s:
        status, page, r = s.ask("GET", "/")
        assert status == 200 and r.getheader("Content-Type") == "text/html; charset=utf-8", r.getheaders()
        with open(os.path.join(ROOT, "orchestrator/http/look.html"), encoding="utf-8") as f:
            assert page == f.read()
        for name, value in (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"),
                            ("Referrer-Policy", "no-referrer"), ("X-Frame-Options", "DENY")):
            assert r.getheader(name) == value, r.getheaders()
        policy = dict(part.split(" ", 1) for part in r.getheader("Content-Security-Policy").split("; "))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'", policy
        assert policy["script-src"] == digest(re.search(r"<script>(.*)</script>", page, re.S)[1]), policy
        assert policy["style-src"] == digest(re.search(r"<style>(.*)</style>", page, re.S)[1]), policy
        assert "unsafe" not in str(policy), policy
        assert len(page.encode()) <= BYTES_MAX, len(page)
        for word in ("http://", "https://", "innerHTML", "eval(", "localStorage", " src=", "@import"):
            assert word not in page, word
        # It asks relative to its own address: a proxy may have it under a path.
        assert "'v1/" in page and not re.search("['\"`]/v1", page)
        head, body, _ = s.ask("HEAD", "/")
        assert head == 200 and body == "", body
        assert s.ask("POST", "/", {})[0] == 405
        assert s.ask("GET", "//")[1] == page and s.ask("GET", "/index.html")[0] == 404


@case
def the_page_needs_no_key_and_the_fleet_does():
    folder = Folder()
    keys = folder.path("api.keys")
    with open(keys, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(KEY + "\n")
    with Endpoint("--model", TARGET, "--api-key-file", keys, spawn=False, folder=folder) as s:
        assert s.ask("GET", "/")[0] == 200
        assert KEY not in s.ask("GET", "/")[1]
        status, told, _ = s.ask("GET", "/v1/graft/fleet")
        assert status == 401 and set(told) == {"error"}, told
        assert s.ask("GET", "/v1/graft/fleet", headers={"Authorization": f"Bearer {KEY}"})[0] == 200
        assert s.ask("GET", "/", headers={"Host": "evil.example"})[0] == 403


def check_names_of_vllm(used, most):
    """Of an answer's metrics: they agree with each other, and with graft's own."""
    histogram = used["acceptance_histogram"]
    assert used["num_spec_steps"] == used["num_drafts"] == sum(histogram) > 0 and histogram[-1] > 0, used
    assert used["num_accepted_draft_tokens"] == used["num_accepted_tokens"] == sum(i * n for i, n in enumerate(histogram)), used
    assert used["num_spec_tokens"] == most >= len(histogram) - 1, used
    assert abs(used["draft_acceptance_rate"] - used["num_accepted_tokens"] / used["num_draft_tokens"]) < 1e-6, used
    assert abs(used["mean_acceptance_length"] - 1 - used["num_accepted_tokens"] / used["num_drafts"]) < 1e-6, used


@case
def the_fleet_is_told_with_its_load_and_acceptance():
    with Endpoint() as s:
        _, told, r = s.ask("GET", "/v1/graft/fleet")
        assert r.getheader("Cache-Control") == "no-store", r.getheaders()
        model = {"id": "target", "chat": False, "targets": 1, "max_model_len": told["max_model_len"]}
        assert told["models"] == [model] and not told["draining"], told
        assert {w["role"] for w in told["workers"]} == {"target", "draft"} and told["totals"]["rounds"] == 0, told
        used = s.complete(max_tokens=40, num_speculative_tokens=8)["metrics"]["speculative_decoding"]
        check_names_of_vllm(used, 8)
        told = s.ask("GET", "/v1/graft/fleet")[1]
        assert told["totals"]["draft_tokens"] == used["num_draft_tokens"] > 0, (told, used)
        for w in told["workers"]:
            assert w["draft_tokens"] == used["num_draft_tokens"], (w, used)
            assert w["accepted_tokens"] == used["num_accepted_tokens"], (w, used)
            assert w["state"] == "serving" and w["slots"] > 0 and w["rounds"] > 0, w
        # No session's id, no host and no address is among it.
        assert not re.search(r'[0-9a-f]{16}|127\.0|"host"|"address"', str(told)), told


def path_text(round_):
    return [round_["tree"]["tokens"][i] for i in round_["tree"]["path"]]


@case
def rounds_come_with_the_stream_that_asks():
    with Endpoint() as s:
        body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "num_speculative_tokens": 8}
        plain = s.stream("/v1/completions", **body)
        events = s.stream("/v1/completions", **body, graft_rounds=True, stream_options={"include_usage": True})
        rounds = [e["graft"]["round"] for e in events if "graft" in e]
        usage = events[-1]
        text = "".join(c["text"] for e in plain for c in e["choices"])
        assert text == "".join(c["text"] for e in events for c in e["choices"]), events
        assert not any("graft" in e for e in plain), plain
        assert all(e["choices"] == [] for e in events if "graft" in e), events
        assert "".join(t for r in rounds for t in r["tokens"]) == text, (rounds, text)
        trees = [r for r in rounds if "tree" in r]
        assert trees and rounds[0]["round"] == 0, rounds
        for r in trees:
            tree = r["tree"]
            assert len(tree["tokens"]) == len(tree["parents"]) == r["n_draft"] <= 8, r
            assert all(-1 <= p < i for i, p in enumerate(tree["parents"])), r
            assert path_text(r) == r["tokens"][:len(tree["path"])] and len(r["tokens"]) == len(tree["path"]) + 1, r
            assert r["ahead"] in ("none", "miss", "hit"), r
            assert r["verify_ns"] > 0 and r["draft_ns"] <= r["wait_ns"], r
        used = usage["metrics"]["speculative_decoding"]
        check_names_of_vllm(used, 8)
        assert used["acceptance_histogram"] == [sum(len(r["tree"]["path"]) == i for r in trees)
                                                for i in range(len(used["acceptance_histogram"]))], (rounds, used)
        assert sum(r["n_accepted"] for r in rounds) == used["num_accepted_tokens"] > 0, (rounds, used)
        assert used["draft_ahead_hits"] <= used["draft_ahead_verdicts"], used
        assert all(r["ahead"] == "none" for r in rounds if "tree" not in r), rounds
        assert sum(r["ahead"] == "hit" for r in rounds) <= used["draft_ahead_hits"], (rounds, used)
        assert sum(r["ahead"] != "none" for r in rounds) <= used["draft_ahead_verdicts"], (rounds, used)
        told = s.post("/v1/completions", dict(body, graft_rounds=True), status=400)
        assert told["error"]["param"] == "graft_rounds", told


main()
