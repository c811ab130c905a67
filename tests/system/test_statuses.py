#!/usr/bin/env python3
"""Exit statuses of every program and subcommand: 0 done, 1 failed, 2 usage from wherever the bad value comes (command
line, environment, YAML), 130 for a command that an interrupt cut short, 0 for a server or worker that a signal ended in order.

usage: test_statuses.py BUILD_DIR SOURCE_ROOT      prints TAP"""
import json
import os
import signal
import subprocess
import sys
import tempfile

from harness import BUILD, DRAFT, HEAD, ROOT, SLOW, TARGET, case, main, wait_for
from served import Folder, Serve, worker

KEY = "ab" * 32
RUN = ("graft", "run", "--model", TARGET, "--prompt", "x")
WORKER = ("--model", TARGET, "--join", "127.0.0.1:1")
BAD_JSON = "FILE:{"

# argv, environment, YAML (given by --config, None: none), status, what the line says. FILE:TEXT in argv or environment is
# the path of a file with that text; MODE:TEXT one that others may read.
CASES = [
    # done
    (("graft", "--help"), {}, None, 0, ""),
    (("graft", "--version"), {}, None, 0, ""),
    (("graft", "options"), {}, None, 0, ""),
    (("graft", "completion", "zsh"), {}, None, 0, ""),
    (("graft", "run", "--help"), {}, None, 0, ""),
    (("graft", "run", "--version"), {}, None, 0, ""),
    (("graft", "session", "show", "--version"), {}, None, 0, ""),
    (("graft-target", "--help", "model"), {}, None, 0, ""),
    (("graft-draft", "--version"), {}, None, 0, ""),
    (("graft-bench", "--help"), {}, None, 0, ""),
    (("graft-bench", "tune", "--help"), {}, None, 0, ""),
    ((*RUN, "--max-tokens", "1"), {}, None, 0, ""),
    (("graft", "run", "--prompt", "x"), {"GRAFT_MAX_TOKENS": "1"}, f"target:\n  model: {TARGET}\n", 0, ""),
    # usage: command lines
    (("graft",), {}, None, 2, "usage"),
    (("graft", "rum"), {}, None, 2, "did you mean run?"),
    (("graft", "options", "x"), {}, None, 2, "`x'"),
    (("graft", "completion"), {}, None, 2, "needs bash|zsh"),
    (("graft", "completion", "fish"), {}, None, 2, "bash, zsh"),
    ((*RUN, "--max-tokns", "1"), {}, None, 2, "did you mean --max-tokens?"),
    ((*RUN, "--max-tokens", "0"), {}, None, 2, "--max-tokens"),
    ((*RUN, "--control", "127.0.0.1:65536"), {}, None, 2, "65535"),
    ((*RUN, "--stop-token-ids", "99999999"), {}, None, 2, "`99999999' is not a token id from 0 to"),
    ((*RUN, "--stop-token-ids", "4096"), {}, None, 2, "the vocabulary has ids 0 to 4095"),
    ((*RUN, "--geometry", "llama-9"), {}, None, 2, "llama-3.2-1b"),
    ((*RUN, "--draft", HEAD, "--capture-layers", "1,2,99"), {}, None, 2, "no input of layer 99"),
    ((*RUN, "--session", "0", "--connect", "127.0.0.1:1"), {}, None, 2, "--session"),
    (("graft", "run", "--prompt", "x"), {}, None, 2, "the model is needed: --model DIR, GRAFT_MODEL or target.model"),
    (("graft", "serve", "--spawn"), {"GRAFT_KEY": KEY}, None, 2, "the model is needed"),
    (("graft", "serve", "--session-ttl", "1.5s"), {}, None, 2, "--session-ttl"),
    (("graft", "session"), {}, None, 2, "graft session: list, show ID,"),
    (("graft", "session", "lst"), {}, None, 2, "did you mean list?"),
    (("graft", "session", "show"), {}, None, 2, "graft session show needs ID"),
    (("graft", "session", "close"), {}, None, 2, "graft session close needs ID"),
    (("graft", "session", "send", "x"), {}, None, 2, "graft session send ID: `x'"),
    (("graft", "session", "refresh", "0"), {}, None, 2, "graft session refresh ID: `0'"),
    (("graft", "session", "open", "--prompt", "x"), {"GRAFT_KEY": KEY}, None, 2, "the model is needed"),
    (("graft", "ping", "--count", "0"), {}, None, 2, "--count"),
    (("graft", "wait", "--timeout", "-1"), {}, None, 2, "--timeout"),
    (("graft", "launch"), {}, None, 2, "who does what?"),
    (("graft", "launch", "--roles", "serve:1,target:1", "--model", TARGET, "--ranks", "none"), {}, None, 2, "no launcher has started this process"),
    (("graft", "launch", "--roles", "serve:1,traget:1"), {}, None, 2, "did you mean target?"),
    (("graft", "launch", "--roles", "serve:1,target:1", "--ranks", "slurm"), {}, None, 2, "SLURM_PROCID"),
    (("graft", "launch"), {}, "targets: [{count: 1, tp: 3}]\n", 2, "is not 1, 2, 4 or 8"),
    ((*RUN, "--target-device", "cuda:local"), {}, None, 2, "only `graft launch'"),
    ((*RUN, "-tp", "1", "--target-device", "cuda:0,cuda:1"), {}, None, 2, "2 GPUs for a model in one process"),
    ((*RUN, "--target-device", "cuda:0,cuda:1,cuda:2"), {}, None, 2, "3 GPUs; a target has one for each rank"),
    ((*RUN, "--draft-device", "cuda:0,cuda:1", "--draft", HEAD), {}, None, 2, "a drafter is not split"),
    (("graft-draft", *WORKER, "--device", "cuda:0,cuda:1"), {}, None, 2, "2 GPUs for a model in one process"),
    ((*RUN, "-tp", "4", "--target-device", "cuda:0,cuda:1"), {}, None, 2, "2 GPUs for 4 ranks"),
    ((*RUN, "-tp", "2", "--target-device", "cuda:1,cuda:1"), {}, None, 2, "cuda:1 is there twice"),
    ((*RUN, "-tp", "2", "--target-device", "cuda:1,cpu"), {}, None, 2, "cpu stands alone"),
    ((*RUN, "-tp", "2", "--target-device", "cuda:0,cuda:1", "--draft", HEAD, "--draft-device", "cuda:1"), {}, None, 2,
     "the GPU of the target's rank 1"),
    (RUN, {}, "target:\n  tensor_parallel_size: 2\n  device: [cuda:0]\n", 2, "1 GPU for 2 ranks"),
    (RUN, {}, "targets:\n- {tp: 2, device: \"cuda:0,cuda:1,cuda:2\"}\n", 2, "3 GPUs for 2 ranks"),
    (("graft-target",), {}, None, 2, "--model and --join"),
    (("graft-target", *WORKER, "--kv-blocks", "0"), {}, None, 2, "--kv-blocks"),
    (("graft-target", *WORKER, "--tuned", BAD_JSON), {}, None, 2, "no model on a GPU"),
    (("graft-target", *WORKER, "--tuned", BAD_JSON, "--device", "cuda:0"), {}, None, 2, ":1:1:"),
    (("graft-draft", "--model", DRAFT, "--join", "127.0.0.1:0"), {}, None, 2, "--join"),
    (("graft-draft", "--model", HEAD, "--join", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 2, "--target DIR is needed"),
    (("graft-bench",), {}, None, 2, "usage"),
    (("graft-bench", "stage"), {}, None, 2, "did you mean stages?"),
    (("graft-bench", "e2e", "--reps", "51"), {}, None, 2, "--reps"),
    (("graft-bench", "e2e", "--context", "0"), {}, None, 2, "--context"),
    (("graft-bench", "trees", "--sizes", "64"), {}, None, 2, "--sizes"),
    (("graft-bench", "sessions", "--session", "1"), {}, None, 2, "did you mean --sessions?"),
    (("graft-bench", "stages", "-o", "xml"), {}, None, 2, "--format"),
    (("graft-bench", "tune", "gemm"), {}, None, 2, "--output"),
    (("graft-bench", "kernels", "--isa", "sse"), {}, None, 2, "--isa"),
    (("graft-bench", "transport", "--peer", "127.0.0.1:0"), {}, None, 2, "--peer"),
    (("graft-bench", "transport", "--listen", "127.0.0.1:0"), {"GRAFT_KEY": "x"}, None, 2, "GRAFT_KEY"),
    (("graft-bench", "gates"), {}, None, 2, "--results FILE"),
    (("graft-bench", "gates", "--micro", "--gates", BAD_JSON), {}, None, 2, "1:"),
    (("graft-bench", "gates", "--micro", "--gates", "FILE:[]"), {}, None, 2, ""),
    (("graft-bench", "gates", "--micro", "--only", "nothing"), {}, None, 2, "no command \"nothing\""),
    # usage: environment
    (RUN, {"GRAFT_MAX_TOKENS": "0"}, None, 2, "GRAFT_MAX_TOKENS"),
    (RUN, {"GRAFT_DRAFT": ""}, None, 2, "GRAFT_DRAFT is empty"),
    (("graft", "serve"), {"GRAFT_CONTROL": "127.0.0.1:65536"}, None, 2, "GRAFT_CONTROL"),
    (("graft", "ping"), {"GRAFT_CONNECT": "127.0.0.1:0"}, None, 2, "GRAFT_CONNECT"),
    (("graft", "ping"), {"GRAFT_KEY": "xyz"}, None, 2, "GRAFT_KEY: the shared key is 64 hexadecimal digits"),
    (("graft", "ping"), {"GRAFT_KEY_FILE": ""}, None, 2, "GRAFT_KEY_FILE is empty"),
    (("graft", "session", "list"), {"GRAFT_KEY_FILE": "FILE:abc"}, None, 2, "64 hexadecimal digits"),
    (("graft", "wait"), {"GRAFT_KEY_FILE": "MODE:" + KEY}, None, 2, "chmod 600"),
    ((*RUN, "--connect", "127.0.0.1:1"), {"GRAFT_KEY": "xyz"}, None, 2, "GRAFT_KEY"),
    (("graft", "wait"), {"GRAFT_TIMEOUT": "1d"}, None, 2, "GRAFT_TIMEOUT"),
    (("graft-target", *WORKER), {"GRAFT_LISTEN": "x:70000"}, None, 2, "GRAFT_LISTEN"),
    (("graft-target", *WORKER), {"GRAFT_KEY": "xyz"}, None, 2, "GRAFT_KEY"),
    (("graft-draft", *WORKER), {"GRAFT_KEY_FILE": ""}, None, 2, "GRAFT_KEY_FILE is set and empty"),
    (("graft-draft", *WORKER), {"GRAFT_JOIN_TIMEOUT": "x"}, None, 2, "GRAFT_JOIN_TIMEOUT"),
    # usage: YAML
    (RUN, {}, "session:\n  max_tokns: 1\n", 2, ":2:3: unknown key `max_tokns'"),
    (RUN, {}, "sesion:\n  max_tokens: 1\n", 2, ":1:1: unknown section `sesion'"),
    (RUN, {}, "session:\n  max_tokens: 0\n", 2, ":2:15: session.max_tokens"),
    (RUN, {}, "session: {\n", 2, ":2:1:"),
    (RUN, {}, "targets:\n- count: 2\n", 2, "targets: 2 workers"),
    (("graft", "serve"), {}, "orchestrator:\n  control: '127.0.0.1:65536'\n", 2, "orchestrator.control"),
    (("graft", "serve"), {"GRAFT_KEY": KEY}, "orchestrator:\n  http: '127.0.0.1:80'\n", 2, "--http"),
    (("graft", "session", "list"), {}, "target:\n  device: gpu\n", 2, "target.device"),
    (("graft", "ping"), {}, "target:\n  device: gpu\n", 2, "target.device"),
    (("graft", "wait"), {}, "- 1\n", 2, "sections are wanted"),
    (RUN, {}, "session:\n  logprobs: 3\n", 2, ":2: session.logprobs: log-probabilities are shown in JSON alone"),
    (RUN, {"GRAFT_LOGPROBS": "3"}, None, 2, "GRAFT_LOGPROBS: log-probabilities are shown in JSON alone"),
    (RUN, {}, "session:\n  max_tokens: 2\n  bad_words: ['']\n", 2, ":3: session.bad_words: `' has 0 bytes"),
    (RUN, {}, "session:\n  logit_bias: {4096: 1}\n", 2, ":2: session.logit_bias: 4096 is no token id"),
    ((*RUN, "--logit-bias", "5=-inf"), {}, None, 2, "--logit-bias: `5=-inf' is not ID=NUMBER"),
    ((*RUN, "--n", " 2"), {}, None, 2, "--n: ` 2' is not a whole number"),
    # failed: what cannot be read, is not there, does not answer
    (("graft", "run", "--config", "/no/such"), {}, None, 1, "/no/such"),
    (("graft", "serve", "--config", "/no/such"), {}, None, 1, "/no/such"),
    (("graft", "serve", "--spawn", "--model", HEAD), {"GRAFT_KEY": KEY}, None, 1, "is an EAGLE-3 head; it goes with"),
    (("graft", "run", "--model", "/no/such", "--prompt", "x"), {}, None, 1, "/no/such"),
    ((*RUN, "--draft", "/no/such"), {}, None, 1, "/no/such"),
    (("graft", "run", "--model", TARGET, "--prompt-file", "/no/such"), {}, None, 1, "/no/such"),
    (("graft", "serve", "--key-file", "/no/such"), {}, None, 1, "/no/such"),
    (("graft", "serve", "--make-key", "/no/such/key"), {}, None, 1, "/no/such/key"),
    (("graft", "ping"), {}, None, 1, "no shared key"),
    (("graft", "ping", "--connect", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    (("graft", "wait", "--timeout", "0", "--connect", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    (("graft", "session", "list", "--connect", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    ((*RUN, "--connect", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    (("graft-target", *WORKER), {}, None, 1, "no shared key"),
    (("graft-target", *WORKER, "--join-timeout", "0"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    (("graft-target", *WORKER, "--tuned", "/no/such", "--device", "cuda:0"), {"GRAFT_KEY": KEY}, None, 1, "/no/such"),
    (("graft-draft", "--model", "/no/such", "--join", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "/no/such"),
    (("graft-bench", "e2e", "--draft", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "sessions", "--model", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "e2e", "--context", "1k", "--draft", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "stages", "--model", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "stages", "--compare", "/no/such", "--with", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "trees", "--prompts", "/no/such"), {}, None, 1, "/no/such"),
    (("graft-bench", "transport", "--peer", "127.0.0.1:1"), {"GRAFT_KEY": KEY}, None, 1, "127.0.0.1:1"),
    (("graft-bench", "gates", "--gates", "/no/such", "--micro"), {}, None, 1, "/no/such: No such file"),
    (("graft-bench", "gates", "--results", "/nope"), {}, None, 1, "--results /nope: No such file"),
]


def clean_environment(**more):
    return dict({k: v for k, v in os.environ.items() if not k.startswith("GRAFT_")}, **more)


def written(folder, text, n):
    """FILE:... and MODE:... as the path of such a file."""
    if not text.startswith(("FILE:", "MODE:")):
        return text
    path = os.path.join(folder, f"file{n}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text[5:])
    os.chmod(path, 0o644 if text.startswith("MODE:") else 0o600)
    return path


def check(folder, argv, env, yaml, status, words):
    if yaml is not None:
        path = os.path.join(folder, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(yaml)
        argv = (*argv, "--config", path)
    argv = [written(folder, a, i) for i, a in enumerate(argv)]
    env = {k: written(folder, v, k) for k, v in env.items()}
    done = subprocess.run([os.path.join(BUILD, argv[0]), *argv[1:]], capture_output=True, text=True, cwd=ROOT,
                          env=clean_environment(**env), timeout=60 * SLOW, stdin=subprocess.DEVNULL, check=False)
    good = done.returncode == status and words in done.stderr
    one = status == 0 or words == "usage" or len([x for x in done.stderr.splitlines() if "error:" in x]) == 1
    return None if good and one else f"{argv} {env}: {done.returncode}, {done.stderr.strip()[-400:]}"


@case
def the_table():
    with tempfile.TemporaryDirectory() as folder:
        wrong = [x for x in (check(folder, *c) for c in CASES) if x is not None]
    assert not wrong, "\n".join(wrong)


@case
def bad_values_are_json_too():
    """Who asked for JSON gets the line as an object, with the same status."""
    done = subprocess.run([os.path.join(BUILD, "graft"), "ping", "--json"], capture_output=True, text=True,
                          env=clean_environment(GRAFT_KEY="xyz"), timeout=60 * SLOW, check=False)
    assert done.returncode == 2 and "64 hexadecimal" in json.loads(done.stdout)["error"], done


def ended_by(process, number):
    process.send_signal(number)
    return process.wait(timeout=30 * SLOW)


@case
def interrupts():
    """A command that waits is cut short; a server and its workers end in order."""
    folder = Folder()
    with Serve(spawn=False, folder=folder) as s:
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with subprocess.Popen([os.path.join(BUILD, "graft"), "wait", "--timeout", "60"], env=s.env(GRAFT_LOG="info"),
                                  stderr=subprocess.PIPE, text=True) as p:
                wait_for(lambda p=p: os.path.exists(f"/proc/{p.pid}/fd") and blocks(p.pid, number))
                assert ended_by(p, number) == status, (number, p.stderr.read())
                assert "interrupted" in p.stderr.read()
        for program, model in (("graft-target", TARGET), ("graft-draft", DRAFT)):
            with worker(program, folder, s.address, model=model) as w:
                wait_for(lambda: any(x["role"] == program.split("-")[1] for x in s.list()["workers"]))
                status = ended_by(w, signal.SIGTERM)
                assert status == 0, status
                wait_for(lambda: not s.list()["workers"])
        assert ended_by(s.p, signal.SIGTERM) == 0


def blocks(pid, number):
    """Does it read this signal from a descriptor?"""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        mask = next(int(line.split()[1], 16) for line in f if line.startswith("SigBlk"))
    return mask >> (number - 1) & 1


if __name__ == "__main__":
    sys.exit(main())
