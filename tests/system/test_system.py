#!/usr/bin/env python3
"""`graft run` as a user starts it: transports against plain decoding, bad input, signals, killed workers.

usage: test_system.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

from harness import (BUILD, DRAFT, ENDLESS, GRAFT, HEAD, ROOT, SLOW, TARGET, Running, alive, case, generate, is_plain,
                     main, refused, run, wait_busy, wait_for)
from served import free_port
from weights import with_other_tokenizer

FIXED = ("--num-speculative-tokens", "7")  # drafts whatever it costs; `auto` may find that it does not pay
WITH_TREE = "draft_tokens=[1-9]"


# ---- texts ----

@case
def log_level_reaches_every_program():
    def said(*args, **env):
        return run("run", "--model", TARGET, "--draft", DRAFT, "--prompt", "x", "--max-tokens", "2", *args, env=env).stderr
    for role in ("graft", "target", "draft"):
        assert f"{role}: info:" in said("--log-level", "info", GRAFT_LOG="error"), role
    assert "info:" not in said("--log-level", "warn", GRAFT_LOG="info")


@case
def transports_give_plain_text():
    for temperature in ("0", "0.7", "1.3"):
        args = ("--max-tokens", "64", "--ignore-eos", "--temperature", temperature, "--seed", "7")
        plain = generate(*args)
        assert plain["metrics"]["num_drafts"] == 0 and plain["metrics"]["transport"] == "none"
        for transport in ("shm", "tcp", "loop"):
            out = generate("--draft", DRAFT, "--transport", transport, *FIXED, *args)
            assert out["token_ids"] == plain["token_ids"], (transport, temperature)
            assert out["text"] == plain["text"]
            assert out["metrics"]["transport"] == transport
            assert out["metrics"]["num_accepted_tokens"] > 0


@case
def trees_give_plain_text():
    args = ("--max-tokens", "48", "--ignore-eos")
    plain = generate(*args)
    for n in ("0", "1", "4", "16", "63"):
        for shape in ("dynamic", "chain"):
            out = generate("--draft", DRAFT, "--num-speculative-tokens", n, "--tree-shape", shape, *args)
            assert out["token_ids"] == plain["token_ids"], (n, shape)
            assert (out["metrics"]["num_drafts"] > 0) == (n != "0")


def drafted_in_time(*args):
    """A run whose drafter was not late: a busy machine makes it late now and then."""
    for _ in range(5):
        out = generate("--draft", HEAD, *args)
        # The last round may have room for the bonus token only.
        if out["metrics"]["late_trees"] == 0 and out["metrics"]["root_only_rounds"] <= 1:
            return out
    raise AssertionError(out["metrics"])


@case
def head_gives_plain_text():
    for sampled in ((), ("--temperature", "1", "--seed", "5")):
        args = ("--max-tokens", "96", "--ignore-eos", *sampled)
        plain = generate(*args)
        for transport in ("shm", "tcp", "loop"):
            out = drafted_in_time("--transport", transport, "--num-speculative-tokens", "15", "--draft-depth", "6",
                                  "--draft-top-k", "6", *args)
            m = out["metrics"]
            assert out["token_ids"] == plain["token_ids"], transport
            assert m["num_drafts"] >= m["rounds"] - 1 and m["desyncs"] + m["fallbacks"] == 0, m
            # 4.4 and 2.7 on 16 prompts; features that are not the true ones bring less than 2
            assert m["mean_acceptance_length"] > (2.2 if sampled else 3.5), m
        for ahead in ("on", "off"):
            out = generate("--draft", HEAD, "--draft-ahead", ahead, *args)
            assert out["token_ids"] == plain["token_ids"], ahead
    refused(["--model", TARGET, "--prompt", "x", "--draft", HEAD, "--method", "draft_model"], 2, "eagle3", "draft_model")
    other = run("run", "--model", DRAFT, "--prompt", "x", "--draft", HEAD)  # a head of another target
    assert other.returncode == 1 and "384" in other.stderr and "192" in other.stderr, other.stderr


@case
def instruction_sets_give_one_text():
    want = None
    for isa in ("avx512", "avx2", "c"):
        args = ["run", "--json", "--model", TARGET, "--draft", DRAFT, "--prompt", "x = 1", "--max-tokens", "12"]
        done = run(*args, env={"GRAFT_CPU": isa}, timeout=120)
        if done.returncode != 0:
            assert isa in done.stderr, done.stderr
            continue
        ids = json.loads(done.stdout)["token_ids"]
        want = want or ids
        assert ids == want, isa
    assert want


@case
def verify_lossless():
    done = run("run", "--model", TARGET, "--draft", DRAFT, "--prompt", "class A:", "--max-tokens", "80",
               "--temperature", "1", "--verify-lossless")
    assert done.returncode == 0 and "equal plain decoding" in done.stderr, done.stderr
    assert generate("--draft", DRAFT, "--prompt", "class A:", "--max-tokens", "20", "--verify-lossless")["lossless"] is True
    assert "lossless" not in generate("--prompt", "class A:", "--max-tokens", "2")


@case
def prompt_ids_and_stdin():
    with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    for golden in cases[1:4]:  # 17, 64 and 200 tokens
        out = generate("--draft", DRAFT, "--prompt-ids", "-", "--max-tokens", "64", "--ignore-eos",
                       stdin=json.dumps(golden["prompt_ids"]))
        assert out["token_ids"] == golden["greedy_ids"][:64]


@case
def special_tokens_in_a_prompt_are_text_on_request():
    """Ids by Hugging Face's tokenizers 0.23.3, without and with encode_special_tokens."""
    for args, ids in (((), [4088, 64, 4092, 65]), (("--no-special",), [4088, 64, 27, 91, 68, 345, 645, 91, 29, 65])):
        want = generate("--prompt-ids", "-", "--max-tokens", "4", "--ignore-eos", stdin=json.dumps(ids))
        got = generate("--prompt", "a<|eot_id|>b", "--max-tokens", "4", "--ignore-eos", *args)
        assert got["token_ids"] == want["token_ids"], args
        assert got["metrics"]["prompt_tokens"] == len(ids), (args, got["metrics"])


@case
def stop_string_cuts_text():
    plain = generate("--draft", DRAFT, "--max-tokens", "64")
    stop = plain["text"][20:26]
    out = generate("--draft", DRAFT, "--max-tokens", "64", "--stop", stop)
    assert out["finish_reason"] == "stop" and out["text"] == plain["text"][:plain["text"].index(stop)]
    n = len(out["token_ids"])
    assert out["token_ids"] == plain["token_ids"][:n] and n < 64


@case
def a_text_that_is_cut_is_told():
    base = ("run", "--model", TARGET, "--prompt", "def fibonacci(n):", "--ignore-eos")
    done = run(*base, "--max-tokens", "9")
    assert done.returncode == 0 and done.stderr.endswith("; cut after --max-tokens 9\n"), done.stderr
    assert "cut after" not in run(*base, "--max-tokens", "64", "--stop", done.stdout[5:9]).stderr
    done = run(*base, "--max-tokens", "64", "--max-model-len", "32")  # another limit, which has a line of its own
    assert "cut after" not in done.stderr and "the context is full" in done.stderr, done.stderr


@case
def streams_text_and_traces():
    plain = generate("--max-tokens", "24", "--ignore-eos")
    done = run("run", "--model", TARGET, "--draft", DRAFT, "--prompt", "def fibonacci(n):", "--max-tokens", "24",
               "--ignore-eos", "--trace", *FIXED)
    assert done.returncode == 0 and done.stdout == plain["text"], done.stderr
    assert "round 1:" in done.stderr and "* " in done.stderr and "bonus" in done.stderr


@case
def config_file_and_precedence():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"target:\n  model: {TARGET}\nsession:\n  max_tokens: 5\n  ignore_eos: true\n")
        base = ["run", "--json", "--config", path, "--prompt", "x"]
        n = lambda done: len(json.loads(done.stdout)["token_ids"])
        assert n(run(*base)) == 5
        assert n(run(*base, env={"GRAFT_MAX_TOKENS": "6"})) == 6
        assert n(run(*base, "--max-tokens", "7", env={"GRAFT_MAX_TOKENS": "6"})) == 7
        with open(path, "a", encoding="utf-8") as f:
            f.write("  max_tokns: 5\n")
        refused(["--config", path, "--prompt", "x"], 2, f"{path}:6:3: unknown key `max_tokns' (did you mean max_tokens?)")
        refused(["--config", path + "x", "--prompt", "x"], 1, path + "x")  # that cannot be read is no usage error


@case
def configuration_is_one_plain_document():
    """A second document and foreign tags are refused where they stand; null is as absent; what YAML can say is heard."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        base = ("--config", path, "--model", TARGET, "--prompt", "x")

        def write(text):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        for text, where, words in (
                ("session:\n  max_tokens: 3\n---\nsession:\n  max_tokens: 4\n", "3:1", "second YAML document"),
                ("session:\n  max_tokens: 3\n---\n", "3:1", "second YAML document"),
                ("[" * 100000, "1:33", "nested deeper than 32"),
                ("{a: " * 20000, "1:129", "nested deeper than 32"),
                ("session:\n  max_tokens: !foo 3\n", "2:15", "!foo"),
                ("session: !!python/object:x.Y\n  max_tokens: 3\n", "1:10", "python/object"),
                ("session:\n  stop: !!set {a, b}\n", "2:9", "tag:yaml.org,2002:set"),
                ("session:\n  stop: [a, null]\n", "2:13", "stop"),
                ("a: &a {max_tokens: 3}\nsession:\n  <<: *a\n", "1:1", "unknown section"),
                ("session:\n  <<: {max_tokens: 3}\n", "2:3", "<<"),
                ("session: [max_tokens]\n", "1:10", "session"),
                ("session:\n  max_tokens: 'null'\n", "2:15", "max_tokens")):
            write(text)
            done = run("run", *base)
            assert done.returncode == 2 and done.stdout == "", (text, done.stderr)
            assert f"{path}:{where}: " in done.stderr and words in done.stderr, (text, done.stderr)
        n = lambda done: len(json.loads(done.stdout)["token_ids"])
        for text in ("", "---\n", "null\n", "target:\nsession:\n  max_tokens: 3\n  ignore_eos: true\n  seed: null\n  stop: ~\n",
                     "--- # one\ndraft: ~\nsession: {max_tokens: !!int 3, ignore_eos: true}\n...\n",
                     "session: {max_tokens: &n 3, ignore_eos: true}\nspeculative_config: {draft_depth: *n}\n"):
            write(text)
            done = run("run", "--json", *base, *(() if "3" in text else ("--max-tokens", "3", "--ignore-eos")))
            assert done.returncode == 0 and n(done) == 3, (text, done.stderr)


@case
def a_prompt_is_given_once():
    with tempfile.NamedTemporaryFile("w") as f:
        for args in (("--prompt", "a", "--prompt", "b"), ("--prompt", "a", "--prompt=a"),
                     ("--prompt-file", f.name, "--prompt-file", f.name),
                     ("--prompt-ids", "-", "--prompt-ids", "-")):
            refused(["--model", TARGET, *args], 2, "given twice")
        refused(["--model", TARGET, "--prompt", "a", "--prompt-file", f.name], 2, "exactly one")
    out = generate("--prompt", "a", "--max-tokens", "9", "--max-tokens", "2", "--ignore-eos")  # else the last one counts
    assert len(out["token_ids"]) == 2


@case
def lists_of_workers_in_a_file():
    """`targets' and `drafts' may name what this version starts: one of each, on this host."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")

        def config(text):
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"target:\n  model: {TARGET}\n" + text)
        config(f"draft:\n  model: {DRAFT}\ntargets:\n- count: 1\n  device: cpu\ndrafts:\n- host: localhost\n")
        out = json.loads(run("run", "--json", "--config", path, "--prompt", "x", "--max-tokens", "4").stdout)
        assert len(out["token_ids"]) == 4, out
        for text, words in (("targets:\n- count: 2\n", "targets: 2 workers are asked for, and graft run starts one"),
                            ("targets: [{}, {}]\n", "targets: 2 workers"),
                            ("targets:\n- host: elsewhere.example\n", "elsewhere.example is not this one"),
                            ("drafts: [{}]\n", "no draft model is named"),
                            ("  device: cpu\ntargets:\n- device: cpu\n", "target.device, too"),
                            ("targets:\n- devise: cpu\n", f"{path}:4:3: unknown key `devise' (did you mean device?)")):
            config(text)
            refused(["--config", path, "--prompt", "x"], 2, words)


@case
def sessions_have_their_own_options():
    options = lambda text: {x.split()[0] for x in text.splitlines() if x.startswith("  --")}
    asks = {"--cluster", "--config", "--connect", "--control-encryption", "--json", "--key-file", "--log-level", "--log-format", "--help", "--version"}
    for verb in ("list", "show", "close", "refresh", "purge"):
        done = run("session", verb, "--help")
        own = {"--text", "--model"} if verb == "show" else set()
        assert done.returncode == 0 and options(done.stdout) == asks | own, (verb, done.stdout, done.stderr)
        done = run("session", verb, "0123456789abcdef", "--prompt", "x") if verb in ("show", "close") else run("session", verb, "--prompt", "x")
        assert done.returncode == 2 and "--prompt is not for this command" in done.stderr, done.stderr
        assert f"graft session {verb} --help" in done.stderr, done.stderr
    turn = {"--prompt", "--model", "--max-tokens", "--stop", "--json", "--connect"}
    fixed = {"--temperature", "--seed", "--specpv", "--num-speculative-tokens"}
    workers = {"--target-device", "--threads", "--kv-blocks", "--control"}
    shown = options(run("session", "open", "--help").stdout)
    assert turn | fixed <= shown and not shown & workers, shown
    shown = options(run("session", "send", "--help").stdout)
    assert turn <= shown and not shown & (workers | fixed), shown
    for name in fixed:
        done = run("session", "send", "0123456789abcdef", name, "1")
        assert done.returncode == 2 and f"{name} is not for this command" in done.stderr, done.stderr
    assert run("session", "-h").returncode == 0 and run("session").returncode == 2
    assert options(run("ping", "--help").stdout) == asks | {"--count"}
    assert options(run("wait", "--help").stdout) == (asks - {"--json"}) | {"--timeout", "--draft"}


@case
def an_endpoint_needs_a_model_and_a_server():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("orchestrator:\n  control: 127.0.0.1:0\n  http: 127.0.0.1:8000\n")
        control = ("--control", "127.0.0.1:0")
        for args, env, words in (
                (("serve", *control, "--http", "127.0.0.1:8000"), {}, "--model"),
                (("serve", *control), {"GRAFT_HTTP": ":8000"}, "--model"), (("serve", "--config", path), {}, "--model"),
                (("run", "--model", TARGET, "--prompt", "x", "--http", "127.0.0.1:8000"), {}, "only `graft serve' and")):
            done = run(*args, env=dict(env, GRAFT_KEY="ab" * 32))
            lines = done.stderr.splitlines()
            assert done.returncode == 2 and len(lines) == 1 and words in lines[0], (args, done.returncode, done.stderr)
            assert done.stdout == ""
    assert run("run", "--model", TARGET, "--prompt", "x", "--max-tokens", "1", "--http", "off").returncode == 0


@case
def no_draft_by_name():
    want = run("run", "--model", TARGET, "--prompt", "def f", "--max-tokens", "16")
    done = run("run", "--model", TARGET, "--draft", "none", "--prompt", "def f", "--max-tokens", "16")
    assert done.returncode == 0 and done.stdout == want.stdout, done.stderr
    done = run("run", "--model", TARGET, "--draft", "none", "--method", "eagle3", "--prompt", "def f")
    assert done.returncode == 2 and "--method eagle3 needs --draft" in done.stderr, (done.returncode, done.stderr)


@case
def what_a_drafter_lacks_is_said():
    draft = os.path.join(BUILD, "graft-draft")
    start = lambda *args: subprocess.run([draft, "--join", "127.0.0.1:1", "--join-timeout", "0", *args], text=True,
                                         capture_output=True, timeout=60 * SLOW, env=dict(os.environ, GRAFT_KEY="0" * 64))
    done = start("--model", HEAD)
    assert done.returncode == 2 and "EAGLE-3 head: --target DIR is needed" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "tokenizer" not in done.stderr, done.stderr
    done = subprocess.run([os.path.join(BUILD, "graft-target"), "--join", "127.0.0.1:1", "--join-timeout", "0", "--model",
                           TARGET, "--head", DRAFT], text=True, capture_output=True, timeout=60 * SLOW,
                          env=dict(os.environ, GRAFT_KEY="0" * 64))
    assert done.returncode == 1 and "is no EAGLE-3 head" in done.stderr, done.stderr


@case
def prefill_share_reaches_the_target():
    """As it was given, from the command line and from the file; the worker takes it, and refuses what is none."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        for text, args, want in (("off", (), "0"), ("0.25", (), "0.25"), ("0.25", ("--prefill-share", "0.75"), "0.75")):
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"target:\n  prefill_share: {text}\n")
            r = Running("--config", path, *args, tokens=ENDLESS, rounds=True)
            with open(f"/proc/{r.child('graft-target')}/cmdline", encoding="utf-8") as f:
                argv = f.read().split("\0")
            assert argv[argv.index("--prefill-share") + 1] == want, argv
            r.wait_rounds(20)
            told, _ = r.interrupt()
            is_plain(told[0]["token_ids"])
        with open(path, "w", encoding="utf-8") as f:
            f.write("target:\n  threads: 1\n  prefill_share: 1.0\n")
        done = run("run", "--config", path, "--model", TARGET, "--prompt", "x")
        assert done.returncode == 2 and f"{path}:3:18" in done.stderr, done.stderr
        assert "target.prefill_share: `1.0' is not off" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
    for text in ("1", "-1", "0.5x", ""):
        done = subprocess.run([os.path.join(BUILD, "graft-target"), "--prefill-share", text], capture_output=True,
                              text=True, timeout=60 * SLOW)
        assert done.returncode == 2 and f"--prefill-share: `{text}'" in done.stderr, done.stderr


# ---- bad input ----

@case
def usage_errors():
    for args, words in (
            (["--model", TARGET, "--prompt", "x", "--max-tokens", "0"], ["--max-tokens", "0"]),
            (["--model", TARGET, "--prompt", "x", "--max-tokens", "ten"], ["ten"]),
            (["--model", TARGET, "--prompt", "x", "--temperature", "nan"], ["--temperature"]),
            (["--model", TARGET, "--prompt", "x", "--top-p", "1.5"], ["--top-p"]),
            (["--model", TARGET, "--prompt", "x", "--prefill-share", "1"], ["--prefill-share", "`1'", "below 1"]),
            (["--model", TARGET, "--prompt", "x", "--prefill-share", "-0.1"], ["--prefill-share", "above 0"]),
            (["--model", TARGET, "--prompt", "x", "--prefill-share", "nan"], ["--prefill-share", "nan"]),
            (["--model", TARGET, "--prompt", "x", "--prefill-share", "half"], ["--prefill-share", "half", "off"]),
            (["--model", TARGET, "--prompt", "x", "--prefill-share", "0.5", "--connect", "127.0.0.1:1"],
             ["--prefill-share", "--connect"]),
            (["--model", TARGET, "--prompt", "x", "--feature-keep", "319"], ["--feature-keep", "319", "320"]),
            (["--model", TARGET, "--prompt", "x", "--ship-features", "both"], ["--ship-features", "both", "raw"]),
            (["--model", TARGET, "--prompt", "x", "--capture-layers", "2,,7"], ["--capture-layers", "2,,7"]),
            (["--model", TARGET, "--prompt", "x", "--capture-layers", "4,2"], ["--capture-layers", "4,2", "rise"]),
            (["--model", TARGET, "--prompt", "x", "--capture-layers", ""], ["--capture-layers"]),
            (["--model", TARGET, "--prompt", "x", "--bogus"], ["--bogus"]),
            (["--model", TARGET, "--prompt"], ["--prompt", "value"]),
            (["--model", TARGET], ["--prompt"]),
            (["--prompt", "x"], ["--model"]),
            (["--model", TARGET, "--prompt", "x", "--method", "magic"], ["magic"]),
            (["--model", TARGET, "--prompt", "x", "--num-speculative-tokens", "64"], ["64", "63"]),
            (["--model", TARGET, "--prompt", "x", "--tree-shape", "bush"], ["bush"]),
            (["--model", TARGET, "--prompt", "x", "--stop", ""], ["stop"])):
        refused(args, 2, *words)
    assert run("fly").returncode == 2
    assert "did you mean session?" in run("sesion").stderr and "did you mean close?" in run("session", "clos").stderr
    refused(["--max-tokns", "1"], 2, "--max-tokns", "did you mean --max-tokens?")
    done = run("run", "--model", TARGET, "--prompt", "x", env={"GRAFT_MAX_TOKENS": "0"})
    assert done.returncode == 2 and "GRAFT_MAX_TOKENS: `0'" in done.stderr, done.stderr
    shown = run("run", "--help", "sampling").stdout
    assert "--temperature" in shown and "--prompt-ids" not in shown, shown
    assert run("run", "--help", "samplng").returncode == 2
    assert run().returncode == 2
    assert run("--help").returncode == 0
    assert "--prompt-ids" in run("run", "--help").stdout


@case
def ports_are_never_cut_to_16_bits():
    """A port above 65535, or text that is no port, is refused wherever an address is taken."""
    text = ("--model", TARGET, "--prompt", "x")
    own = dict(os.environ, GRAFT_KEY="0" * 64)
    for address in ("127.0.0.1:70591", "127.0.0.1:12x", "[::1]:65536"):
        words = (f"`{address}'", "65535")
        refused([*text, "--control", address], 2, *words)
        refused([*text, "--connect", address], 2, *words)
        for args in (["serve", "--control", address], ["ping", "--connect", address]):
            done = run(*args)
            assert done.returncode == 2 and all(w in done.stderr for w in words), (args, done)
        for variable, args in (("GRAFT_CONNECT", ["session", "list"]), ("GRAFT_CONTROL", ["serve"])):
            done = run(*args, env=dict(own, **{variable: address}))
            assert done.returncode == 2 and all(w in done.stderr for w in words), (variable, done)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write(f"orchestrator:\n  control: '{address}'\n")
            f.flush()
            for command in ("serve", "wait"):
                done = run(command, "--config", f.name)
                assert done.returncode != 0 and all(w in done.stderr for w in words + (f.name,)), done
        for program, *args in (("graft-target", "--join", address), ("graft-draft", "--join", address),
                               ("graft-target", "--join", "127.0.0.1:9", "--listen", address),
                               ("graft-bench", "transport", "--listen", address),
                               ("graft-bench", "transport", "--peer", address)):
            done = subprocess.run([os.path.join(BUILD, program), *args], capture_output=True, text=True, timeout=60 * SLOW,
                                  env=own, check=False)
            lines = done.stderr.splitlines()
            assert done.returncode == 2 and len(lines) == 1 and all(w in lines[0] for w in words), (program, args, done)
    refused([*text, "--connect", "127.0.0.1:0"], 2, "from 1 to 65535")


@case
def devices_that_are_not_there():
    base = ["--model", TARGET, "--prompt", "x"]
    refused(base + ["--target-device", "cuda:99"], 1, "cuda:99")
    refused(base + ["--draft", HEAD, "--draft-device", "cuda:99"], 1, "cuda:99")
    refused(base + ["--draft", HEAD, "--target-device", "cuda:99", "--draft-device", "cuda:99"], 1, "cuda:99")
    refused(base + ["--target-device", "gpu"], 2, "gpu", "cuda:N")
    refused(base + ["--target-device", "cuda:"], 2, "cuda:N")
    same = ["--draft", HEAD, "--target-device", "cuda:1", "--draft-device", "cuda:1", "--transport", "shm"]
    refused(base + same, 2, "cuda:1", "loop")


@case
def measured_shapes_are_checked_first():
    """Files of `graft-bench tune`: what is wrong is one line, before a model is loaded or a GPU is looked for."""
    base = ["--model", TARGET, "--prompt", "x"]
    gpu = base + ["--target-device", "cuda:99"]
    refused(base + ["--require-tuned"], 2, "--tuned FILE")
    refused(base + ["--tuned", "/does/not/exist"], 2, "no model on a GPU")
    refused(gpu + ["--tuned", "/does/not/exist"], 1, "/does/not/exist")
    refused(base + ["--connect", "127.0.0.1:9", "--tuned", "x"], 2, "about workers")
    refused(base + ["--draft", "x"], 2, "about workers, and the orchestrator at GRAFT_CONNECT", env={"GRAFT_CONNECT": "127.0.0.1:9"})
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "tuned.json")
        for linear, word in (([{"n_out": 640, "n_in": 384, "width": 248, "parts": 2}], "linear[0].parts 2"),
                             ([{"n_out": 640, "n_in": 384}], "linear[0].width is missing"), (1, "linear must be")):
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"format": 1, "gpu": "a", "linear": linear}, f)
            refused(gpu + ["--tuned", path], 2, path, word)
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"format": 1, "gpu": "a"}, f)
        refused(gpu + ["--tuned", path, "--require-tuned"], 1, "cuda:99")
        refused(base + ["--draft", HEAD, "--draft-device", "cuda:99", "--tuned", path], 1, "cuda:99")


@case
def workers_refuse_shapes_that_have_no_use():
    for program, model in (("graft-target", TARGET), ("graft-draft", DRAFT)):
        for args, status, word in ((["--require-tuned"], 2, "--tuned FILE"), (["--tuned", "x"], 2, "no model on a GPU"),
                                   (["--device", "cuda:0", "--tuned", "/does/not/exist"], 1, "/does/not/exist"),
                                   (["--require-tuned=1"], 2, "takes no value")):
            done = subprocess.run([os.path.join(BUILD, program), "--model", model, "--join", "127.0.0.1:9", *args],
                                  capture_output=True, text=True, timeout=60, check=False)
            lines = done.stderr.splitlines()
            assert done.returncode == status and len(lines) == 1 and word in lines[0], (program, args, done)


@case
def nothing_is_tuned_without_a_gpu():
    for args, status, word in (([], 2, "gemm|attention"), (["matrix"], 2, "`matrix'"), (["gemm"], 2, "--output"),
                               (["gemm", "--output", "x", "--device", "cpu"], 2, "cuda:N"),
                               (["attention", "--output", "x", "--reps", "1"], 2, "--reps"),
                               (["gemm", "--output", "x", "--device", "cuda:99"], 1, "cuda:99"),
                               (["attention", "--output", "x", "--device", "cuda:99"], 1, "cuda:99")):
        done = subprocess.run([os.path.join(BUILD, "graft-bench"), "tune", *args], capture_output=True, text=True,
                              timeout=60, check=False)
        lines = done.stderr.splitlines()
        assert done.returncode == status and len(lines) == 1 and word in lines[0], (args, done)
        assert not os.path.exists("x"), args


@case
def rdma_options_are_checked_first():
    base = ["--model", TARGET, "--draft", DRAFT, "--prompt", "x"]
    none = ["--transport", "verbs", "--target-ib-hca", "no-such-device"]
    refused(base + none, 1, "verbs")
    refused(base + ["--require-rdma", "--target-ib-hca", "no-such-device"], 1, "verbs")
    refused(base + ["--require-rdma", "--transport", "tcp"], 2, "not RDMA")
    refused(base + ["--require-gpudirect"], 2, "--require-gpudirect", "--target-device")
    refused(base + ["--require-gpudirect", "--disable-gpudirect", "--target-device", "cuda:0"], 2, "--disable-gpudirect")
    refused(base + ["--gid-index", "1024"], 2, "--gid-index")
    refused(base + ["--verbs-mode", "three_sided"], 2, "one_sided, two_sided")
    refused(base + ["--verbs-spin-us", "-1"], 2, "--verbs-spin-us")


@case
def bad_prompts():
    refused(["--model", TARGET, "--prompt-file", "/does/not/exist"], 1, "/does/not/exist")
    for text, word in (("[1, 2", ":"), ("{}", "array"), ("[4096]", "4095"), ("[-1]", "element 0"), ("[1.5]", "element 0")):
        done = run("run", "--model", TARGET, "--prompt-ids", "-", stdin=text)
        assert done.returncode in (1, 2) and word in done.stderr and done.stdout == "", (text, done)
    refused(["--model", TARGET, "--prompt-ids", "-"], 2, "empty", stdin="[]")
    refused(["--model", TARGET, "--prompt", "word " * 200, "--max-model-len", "64"], 1, "64")
    refused(["--model", TARGET, "--prompt", "x", "--max-tokens", "4000", "--kv-blocks", "8"], 1, "--kv-blocks")


def broken_model(d, change):
    path = os.path.join(d, "model")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(TARGET, path)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), 0o644)
    change(path)
    return path


def edit_config(**keys):
    def change(path):
        name = os.path.join(path, "config.json")
        with open(name, encoding="utf-8") as f:
            config = json.load(f)
        config.update(keys)
        with open(name, "w", encoding="utf-8") as f:
            json.dump(config, f)
    return change


def truncate(path):
    with open(os.path.join(path, "model-00002-of-00002.safetensors"), "r+b") as f:
        f.truncate(5_000_000)


def lie_in_header(path):
    with open(os.path.join(path, "model-00001-of-00002.safetensors"), "r+b") as f:
        f.write(struct.pack("<Q", 1 << 60))


def rename_tensor(path):
    name = os.path.join(path, "model-00001-of-00002.safetensors")
    with open(name, "r+b") as f:
        data = f.read(4096).replace(b"layers.0.mlp.up_proj", b"layers.0.mlp.xx_proj")
        f.seek(0)
        f.write(data)


def point_at_lfs(folder):
    with open(os.path.join(folder, "model-00001-of-00002.safetensors"), "w", encoding="utf-8") as f:
        f.write(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345678\n")


@case
def bad_models():
    with tempfile.TemporaryDirectory() as d:
        for change, word in (
                (truncate, "model-00002-of-00002"),
                (lie_in_header, "model-00001-of-00002"),
                (rename_tensor, "_proj"),
                (point_at_lfs, "git lfs pull"),
                (lambda p: os.remove(os.path.join(p, "model-00002-of-00002.safetensors")), "model-00002-of-00002"),
                (lambda p: os.remove(os.path.join(p, "config.json")), "config.json"),
                (lambda p: os.remove(os.path.join(p, "tokenizer.json")), "tokenizer.json"),
                (edit_config(hidden_size=-5), "hidden_size"),
                (edit_config(hidden_size=10**12), "hidden_size"),
                (edit_config(hidden_size=512), "model."),
                (edit_config(num_hidden_layers=7), "layers.7"),
                (edit_config(architectures=["NoSuchModel"]), "NoSuchModel")):
            done = run("run", "--model", broken_model(d, change), "--prompt", "x")
            assert done.returncode == 1 and done.stdout == "", (word, done)
            assert word in done.stderr, (word, done.stderr)
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@case
def what_is_no_model():
    with tempfile.TemporaryDirectory() as d:
        name = "HuggingFaceTB/SmolLM2-135M-Instruct"
        refused(("--model", name, "--prompt", "x"), 1,
                f"{name}: not a folder; graft loads local folders and .gguf files")
        refused(("--model", d, "--prompt", "x"), 1, d, "an empty folder")
        path = os.path.join(d, "model.gguf")
        for data, words in ((b"PK\3\4 something else", ("does not begin with GGUF",)),
                            (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), ("tensors: more than is read",)),
                            (b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + bytes(30), ("room for",)),
                            (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), ("version 1",)),
                            (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"w", 1, 32, 22, 0),
                             ("tensor w is IQ2_S", "Q4_K")),
                            (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), ("general.architecture is missing",))):
            with open(path, "wb") as f:
                f.write(data)
            refused(("--model", path, "--prompt", "x"), 1, path, *words)
        for given in (d, d + "/"):
            refused(("--model", given, "--prompt", "x"), 1,
                    f"{given} has no config.json; for its GGUF file give {path}")
        with open(os.path.join(d, "config.json"), "wb"):
            pass
        refused(("--model", d, "--prompt", "x"), 1, os.path.join(d, "config.json"))
        refused(("--model", HEAD, "--prompt", "x"), 1,
                f"{HEAD} is an EAGLE-3 head; it goes with --draft, and --model is its target")


@case
def folders_that_are_no_models():
    """The root of a model in a hub's cache; a folder or a FIFO in a file's place fails, it is no bad value."""
    with tempfile.TemporaryDirectory() as d:
        root = os.path.join(d, "models--org--name")
        os.makedirs(os.path.join(root, "snapshots", "12ab"))
        refused(("--model", root, "--prompt", "x"), 1, f"{root} has no config.json", f"give {root}/snapshots/12ab")
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            for make in (os.mkdir, os.mkfifo):
                path = tempfile.mkdtemp(dir=d)
                for other in os.listdir(TARGET):
                    if other != name:
                        os.symlink(os.path.join(TARGET, other), os.path.join(path, other))
                make(os.path.join(path, name))
                refused(("--model", path, "--prompt", "x"), 1, f"{path}/{name}: not a regular file")


@case
def tokenizer_warnings_come_once():
    with tempfile.TemporaryDirectory() as d:
        for name in os.listdir(TARGET):
            if name != "tokenizer_config.json":
                os.symlink(os.path.join(TARGET, name), os.path.join(d, name))
        with open(os.path.join(d, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"eos_token": "nope"}, f)
        done = run("run", "--model", d, "--draft", HEAD, "--prompt", "x", "--max-tokens", "2")
        lines = [x for x in done.stderr.splitlines() if "eos_token nope" in x]
        assert done.returncode == 0 and len(lines) == 1 and lines[0].startswith("graft: warning:"), done.stderr


@case
def tokenizer_mismatch():
    with with_other_tokenizer(DRAFT) as path:
        words = f"tokenizer of --draft {path} differs from that of --model {TARGET}: all need one tokenizer"
        refused(("--model", TARGET, "--draft", path, "--prompt", "x"), 1, words)
        done = run("serve", "--spawn", "--model", TARGET, "--draft", path, env={"GRAFT_KEY": "ab" * 32})
        assert done.returncode == 1 and words in done.stderr and len(done.stderr.splitlines()) == 1, done
        os.unlink(os.path.join(path, "tokenizer.json"))
        config = os.path.join(path, "config.json")
        os.chmod(config, 0o644)
        with open(config, encoding="utf-8") as f:
            fields = json.load(f)
        with open(config, "w", encoding="utf-8") as f:
            json.dump(fields | {"vocab_size": 4097}, f)
        refused(("--model", TARGET, "--draft", path, "--prompt", "x"), 1,
                f"--draft {path} has a vocabulary of 4097 ids, --model {TARGET} one of 4096: all need one vocabulary")


@case
def port_in_use():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        address = f"127.0.0.1:{s.getsockname()[1]}"
        refused(["--model", TARGET, "--prompt", "x", "--control", address], 1, address, "in use")


@case
def wrong_key_and_garbage_are_turned_away():
    port = free_port()
    r = Running("--draft", DRAFT, "--control", f"127.0.0.1:{port}", tokens=ENDLESS, rounds=True)
    r.wait_rounds(1)
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"\xff" * 64)
        s.settimeout(20 * SLOW)
        try:
            while s.recv(4096):
                pass  # until it hangs up
        except ConnectionResetError:
            pass
    stranger = subprocess.run([os.path.join(BUILD, "graft-draft"), "--model", DRAFT, "--join", f"127.0.0.1:{port}"],
                              capture_output=True, text=True, timeout=60 * SLOW, env=dict(os.environ, GRAFT_KEY="00" * 32))
    assert stranger.returncode == 1, stranger
    told, _ = r.interrupt()  # it was there all the while
    is_plain(told[0]["token_ids"])


# ---- signals ----

@case
def interrupt_cleans_up():
    r = Running("--draft", DRAFT, tokens=20000)
    pids = [r.child("graft-target"), r.child("graft-draft")]
    wait_busy(pids[0], 10)
    r.p.send_signal(signal.SIGINT)
    status, out, err = r.end(20)
    assert status == 130 and json.loads(out)["error"] == "interrupted" and "interrupted" in err, (status, out, err)
    assert not any(alive(p) for p in pids)


@case
def killed_parent_takes_children_along():
    r = Running("--draft", DRAFT, tokens=20000)
    pids = [r.child("graft-target"), r.child("graft-draft")]
    r.p.kill()
    r.p.communicate()
    wait_for(lambda: not any(alive(p) for p in pids))


@case
def killed_drafter_changes_nothing():
    for transport in ("shm", "tcp"):
        r = Running("--draft", DRAFT, "--transport", transport, *FIXED, tokens=ENDLESS, log="info", rounds=True)
        pid = r.child("graft-draft")
        r.wait_said("draft: info: data connection")  # before it, it would be started again
        r.wait_rounds(5, kind=WITH_TREE)
        os.kill(pid, signal.SIGKILL)
        r.wait_said("killed by signal 9")
        r.wait_rounds(50, after="[spec][fallback]")
        told, err = r.interrupt()
        is_plain(told[0]["token_ids"])
        assert told[0]["metrics"]["num_drafts"] > 0, told[0]["metrics"]
        assert "killed by signal 9" in err and err.count("[spec][fallback]") == 1, err


@case
def killed_target_changes_nothing():
    r = Running("--draft", DRAFT, tokens=ENDLESS, rounds=True)
    pid = r.child("graft-target")
    r.wait_rounds(50)
    os.kill(pid, signal.SIGKILL)
    r.wait_rounds(50, after="re-opening it as epoch 2")
    is_plain(r.interrupt()[0][0]["token_ids"])


@case
def drafter_killed_before_hello():
    r = Running("--draft", DRAFT, tokens=ENDLESS, rounds=True)
    os.kill(r.child("graft-draft"), signal.SIGKILL)
    r.wait_rounds(50, after="killed by signal 9")
    is_plain(r.interrupt()[0][0]["token_ids"])


@case
def output_that_cannot_be_written_ends_the_run():
    """A full disk, as a limit of the file's size plays it; a pipe that nobody reads is test_terminal.py's."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run([GRAFT, "run", "--model", TARGET, "--prompt", "x", "--max-tokens", "5000", "--ignore-eos"],
                              stdout=out, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW, preexec_fn=limit)
        assert done.returncode == 1 and "standard output" in done.stderr, (done.returncode, done.stderr)
        assert os.fstat(out.fileno()).st_size == 1000


sys.exit(main())
