#!/usr/bin/env python3
"""How a turn ends, and how that is told: stop strings and stop ids, characters cut in the middle, limits, failures.

usage: test_ends.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from harness import DRAFT, GRAFT, SLOW, TARGET, case, generate, main, refused, run
from served import PROMPT, UNKNOWN, Serve, one_line

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
    refused([*prompt, "--stop-token-ids", many + ",7"], 2, "more than 64 values")
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


# ---- how it is told ----

@case
def limits_are_told_apart():
    """`length` says which: max_tokens, or the context, for which there is a line, too."""
    out = generate("--max-tokens", "8", "--ignore-eos")
    assert out["finish_reason"] == "length" and out["finish_detail"] == "max_tokens", out
    args = ("--model", TARGET, "--prompt", "x", "--ignore-eos", "--max-model-len", "40", "--max-tokens", "1000")
    done = run("run", "--json", *args)
    out = json.loads(done.stdout)
    assert done.returncode == 0 and out["finish_reason"] == "length" and out["finish_detail"] == "context", out
    assert len(out["token_ids"]) == 38
    one_line(done, "warning", "after 38 of the 1000 tokens", "--max-tokens")
    done = run("run", *args)
    assert done.stderr.count("warning") == 1 and "the context is full" in done.stderr, done.stderr
    with Serve("--max-model-len", "40", draft=False) as s:
        first = s.generate("--max-tokens", "20", "--keep")
        second = s.generate("--max-tokens", "20", "--session", first["session"], prompt="x")
        assert (first["finish_detail"], second["finish_detail"]) == ("max_tokens", "context"), (first, second)
    assert "finish_detail" not in generate("--max-tokens", "8", "--stop", out["text"][:1], "--prompt", "x")


@case
def a_longer_context_than_the_model_has():
    for transport in ((), ("--draft", DRAFT), ("--draft", DRAFT, "--transport", "loop")):
        done = run("run", "--json", "--model", TARGET, "--prompt", "x", "--max-tokens", "2", "--max-model-len", "100000",
                   *transport)
        assert done.returncode == 0 and done.stderr.count("warning") == 1, done.stderr
        one_line(done, "--max-model-len 100000", "32768")


@case
def drawn_seeds_are_told():
    args = ("--max-tokens", "24", "--ignore-eos", "--temperature", "1")
    out = generate(*args)
    again = generate(*args, "--seed", str(out["seed"]))
    assert again["token_ids"] == out["token_ids"] and again["seed"] == out["seed"]
    assert out["seed"] < 1 << 53 and generate(*args)["seed"] != out["seed"]
    said = run("run", "--model", TARGET, "--prompt", PROMPT, *args)
    seed = said.stderr.split("seed ")[1].split()[0]
    assert run("run", "--model", TARGET, "--prompt", PROMPT, *args, "--seed", seed).stdout == said.stdout
    assert "seed" not in run("run", "--model", TARGET, "--prompt", PROMPT, "--max-tokens", "2").stderr
    with Serve() as s:
        out = s.generate(*args, "--keep")
        assert s.generate(*args, "--seed", str(out["seed"]))["token_ids"] == out["token_ids"]
        assert "seed" not in s.generate("--max-tokens", "2", "--session", out["session"])


@case
def closed_by_another():
    """The turn ends, and is not taken for a whole one."""
    with Serve() as s:
        for keep in ((), ("--keep",)):
            p = s.start(*keep, tokens=30000)
            s.wait_running()
            s.graft("session", "close", s.sessions()[0]["id"])
            out, err = p.communicate(timeout=60 * SLOW)
            out = json.loads(out)
            assert p.returncode == 1 and out["finish_reason"] == "closed", out["finish_reason"]
            assert "another client has closed the session" in out["error"] and out["error"] in err, (out["error"], err)
            assert 0 < len(out["token_ids"]) < 30000
            assert s.sessions() == []


def failed(done, status, *words):
    """One object on standard output that says what the last line on standard error does."""
    out = json.loads(done.stdout)
    assert done.returncode == status, done
    for w in words:
        assert w in out["error"], (w, out["error"])
    assert out["error"] in done.stderr or "standard error" in out["error"], done
    return out


@case
def failures_are_json():
    prompt = ("--model", TARGET, "--prompt", "x")
    for args, status, word in (((*prompt, "--stop", "x<|eot_id|>"), 2, "special token"),
                               (("--model", TARGET), 2, "--prompt"),
                               (("--model", "/nonexistent", "--prompt", "x"), 1, "/nonexistent"),
                               ((*prompt, "--draft", "/nonexistent"), 1, "/nonexistent"),
                               ((*prompt, "--kv-blocks", "1"), 1, "KV pool"),
                               ((*prompt, "--control", "203.0.113.1:1"), 1, "203.0.113.1"),
                               ((*prompt, "--trace-file", "/nonexistent/t"), 1, "/nonexistent/t"),
                               ((*prompt, "--connect", "127.0.0.1:1"), 1, "127.0.0.1:1")):
        out = failed(run("run", "--json", *args, env={"GRAFT_KEY": "00" * 32}), status, word)
        assert out["finish_reason"] == "error" and out["token_ids"] == [] and out["text"] == "", out
    failed(run("run", "--json", *prompt, "--keep"), 2, "--keep")
    failed(run("run", "--json", *prompt, "--config", "/nonexistent"), 1, "/nonexistent")
    for args, word in ((("--method", "magic"), "magic"), (("--no-such-option",), "no-such-option"), (("--seed",), "--seed")):
        assert word in failed(run("run", "--json", *prompt, *args), 2, word)["error"]
    assert run("run", "--no-such-option", "--json").stdout == ""  # --json was not read yet: text alone
    with Serve("--max-model-len", "64", draft=False) as s:
        first = s.generate("--max-tokens", "8", "--keep")
        out = failed(s.graft("session", "send", UNKNOWN, "--json", *prompt, status=1), 1, "no session " + UNKNOWN)
        assert out["finish_reason"] == "error" and "session" not in out, out
        for option in (("--specpv", "exact"), ("--disable-specpv",), ("--temperature", "1")):
            failed(s.graft("run", "--connect", s.address, "--session", first["session"], "--json", *prompt, *option,
                           status=2), 2, option[0] + " is fixed when a session is opened")
        failed(s.graft("session", "send", first["session"], "--json", "--model", TARGET, "--prompt", "word " * 60,
                       status=1), 1, "appended")
        for verb in (("show", UNKNOWN), ("close", UNKNOWN), ("refresh", UNKNOWN)):
            failed(s.graft("session", *verb, "--json", status=1), 1, "no session " + UNKNOWN)
    with Serve(draft=False) as s:
        p = s.start(tokens=30000)
        s.wait_running()
        s.p.kill()
        out, err = p.communicate(timeout=60 * SLOW)
        out = failed(subprocess.CompletedProcess((), p.returncode, out, err), 1, "is gone")
        assert out["finish_reason"] == "error" and len(out["token_ids"]) > 0  # what had come by then
        s.p.wait()
        for command in (("ping",), ("session", "list")):
            failed(s.graft(*command, "--json", status=1), 1, s.address)


@case
def a_worker_that_ends_is_told():
    with tempfile.TemporaryDirectory() as d:
        model = os.path.join(d, "m")
        shutil.copytree(TARGET, model)
        os.remove(os.path.join(model, "model-00002-of-00002.safetensors"))
        out = failed(run("run", "--json", "--model", model, "--prompt", "x"), 1, "the target worker ended with status 1")
        assert out["finish_reason"] == "error"


if __name__ == "__main__":
    sys.exit(main())
