#!/usr/bin/env python3
"""How a turn ends, and how that is told: stop strings and stop ids, characters cut in the middle, limits, failures.

usage: test_ends.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import subprocess
import sys
import tempfile

from harness import DRAFT, GRAFT, SLOW, TARGET, case, generate, main, refused, run
from served import PROMPT, Serve, one_line

FIXED = ("--num-speculative-tokens", "7")
WILD = ("--temperature", "100", "--seed", "3", "--ignore-eos")  # any token is as likely as any other

with open(os.path.join(TARGET, "tokenizer.json"), encoding="utf-8") as tokenizer:
    TOKENIZER = json.load(tokenizer)
SPECIAL = {t["id"]: t["content"] for t in TOKENIZER["added_tokens"] if t["special"]}


# ---- stop ids ----

@case
def special_tokens_stop():
    """A stop string that is a special token ends the text where the model puts that token; also where it is an end of
    sequence and those are ignored, over a connection, and from the configuration file."""
    whole = generate(*WILD, "--max-tokens", "1500")["token_ids"]
    at = next(i for i, t in enumerate(whole) if t in SPECIAL)
    name = SPECIAL[whole[at]]
    want = whole[:at + 1]
    with tempfile.TemporaryDirectory() as d, Serve() as s:
        path = os.path.join(d, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"session:\n  stop: [no such text, '{name}']\n")
        for out in (generate(*WILD, "--max-tokens", "1500", "--stop", name),
                    generate(*WILD, "--max-tokens", "1500", "--stop", name, "--draft", DRAFT, *FIXED),
                    generate(*WILD, "--max-tokens", "1500", "--stop-token-ids", f"4094,{whole[at]}"),
                    generate(*WILD, "--max-tokens", "1500", "--config", path),
                    generate(*WILD, "--max-tokens", "1500", env={"GRAFT_STOP": name}),
                    s.generate(*WILD[:4], "--max-tokens", "1500", "--stop", name, prompt=PROMPT)):
            assert out["token_ids"] == want and out["finish_reason"] == "stop", (name, at, out["token_ids"])


@case
def stop_ids_end_the_text():
    """An id ends the text before its token, whatever it is; the token stays in token_ids."""
    whole = generate("--max-tokens", "32", "--ignore-eos")
    ids = whole["token_ids"]
    at = next(i for i in range(6, 32) if ids[i] not in ids[:i])
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"session:\n  stop_token_ids: [4090, {ids[at]}]\n  ignore_eos: true\n")
        for args in (("--stop-token-ids", str(ids[at]), "--ignore-eos"), ("--config", path)):
            out = generate("--max-tokens", "32", *args)
            assert out["token_ids"] == ids[:at + 1] and out["finish_reason"] == "stop", out
            before = generate("--max-tokens", str(at), "--ignore-eos")
            assert out["text"] == before["text"], (out, before)


@case
def stops_that_cannot_be():
    prompt = ["--model", TARGET, "--prompt", "x"]
    refused([*prompt, "--stop", "<|eot_id|>\n"], 2, "--stop", "the special token <|eot_id|> and more")
    refused([*prompt, "--stop-token-ids", "4096"], 2, "--stop-token-ids", "4096", "0 to 4095")
    refused([*prompt, "--stop-token-ids", "1,,2"], 2, "--stop-token-ids", "1,,2")
    many = ",".join(str(i) for i in range(100, 164))
    refused([*prompt, "--stop-token-ids", many + ",7"], 2, "at most 64")
    refused([*prompt, "--stop-token-ids", many], 2, "more than 64 token ids", "--ignore-eos")
    assert generate("--max-tokens", "2", "--ignore-eos", "--stop-token-ids", many)["finish_reason"] in ("length", "stop")
    with Serve(draft=False) as s:
        one_line(s.graft("run", "--connect", s.address, *prompt, "--stop", "a<|eot_id|>", status=2), "and more")
        assert s.sessions() == []


# ---- characters ----

@case
def stop_strings_are_utf8():
    prompt = ["--model", TARGET, "--prompt", "x"]
    for stop in (b"\xff", b"a\xc3", b"\xe2\x82"):
        refused([*prompt, "--stop", stop], 2, "not UTF-8")
        refused(prompt, 2, "not UTF-8", env={"GRAFT_STOP": os.fsdecode(stop)})
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "c.yaml")
            with open(path, "wb") as f:
                f.write(b"session:\n  stop: ['" + stop + b"']\n")
            done = run("run", *prompt, "--config", path)
            assert done.returncode != 0 and done.stdout == "" and "c.yaml" in done.stderr, done.stderr


def bytes_of_tokens():
    """Of the vocabulary, as the byte-level alphabet spells them."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in plain]
    char = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
    return {i: bytes(char[c] for c in word) for word, i in TOKENIZER["model"]["vocab"].items() if i not in SPECIAL}


@case
def no_half_characters():
    """Wherever the limit falls, in text, JSON and traces: whole characters, and every key."""
    tokens = bytes_of_tokens()
    ids = generate(*WILD, "--max-tokens", "600")["token_ids"]
    half = [i for i, t in enumerate(ids) if tokens.get(t, b" ")[-1] >= 0xC2][:3]
    assert half, ids
    for at in half:
        args = (*WILD, "--max-tokens", str(at + 1))
        out = generate(*args)
        assert out["token_ids"] == ids[:at + 1] and out["text"].endswith("\ufffd"), out["text"]
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "t.json")
            done = subprocess.run([GRAFT, "run", "--model", TARGET, "--draft", DRAFT, "--prompt", PROMPT, *FIXED, *args,
                                   "--trace", "--trace-file", path], capture_output=True, timeout=60 * SLOW, check=True)
            assert done.stdout.decode() == out["text"]  # which is strict
            assert "round" in done.stderr.decode()
            with open(path, encoding="utf-8") as f:
                json.load(f)


@case
def messages_are_text():
    """What a user has given stands in a message as one line of UTF-8, whatever its bytes are."""
    for name in (b"no\xffsuch", "no\nsuch", "no\x1b[1msuch"):
        done = subprocess.run([GRAFT, "run", "--model", name, "--prompt", "x"], capture_output=True, check=False)
        lines = done.stderr.decode().splitlines()
        assert done.returncode != 0 and len(lines) == 1 and "such" in lines[0] and "\x1b" not in lines[0], lines


if __name__ == "__main__":
    sys.exit(main())
