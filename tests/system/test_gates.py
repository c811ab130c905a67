#!/usr/bin/env python3
"""`graft-bench gates`: stored results met, missed, not there; files that are wrong; short commands before long ones.
And `graft-bench e2e` and `sessions`, whose tables they judge, on workers that stay.

usage: test_gates.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import BUILD, HEAD, ROOT, SLOW, case, main

BENCH = os.path.join(BUILD, "graft-bench")
STAGES = [{"stage": "verify", "rows": 1, "median ms": 2.0}, {"stage": "verify", "rows": 64, "median ms": 4.0},
          {"stage": "partial 512: 0.5 of full", "rows": 64, "median ms": 3.0}]
SHORT = ["--max-tokens", "16", "--reps", "1"]


def bench(*args, timeout=120, env=None):
    return subprocess.run([BENCH, *args], capture_output=True, text=True, timeout=timeout * SLOW, check=False, cwd=ROOT,
                          env=env)


def gate(**more):
    return {"name": "64 rows", "command": "stages", "row": {"stage": "verify", "rows": 64}, "column": "median ms",
            "at_most": 4.1, **more}


def gates_file(*gates, **commands):
    return {"machine": "a test's", "commands": commands or {"stages": {"run": ["stages"], "micro": True}},
            "gates": list(gates)}


class Files:
    def __init__(self, folder):
        self.folder = folder

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(value if isinstance(value, str) else json.dumps(value))
        return path

    def check(self, gates, *results):
        args = [x for name, rows in results for x in ("--results", self.write(name, rows))]
        return bench("gates", "--gates", self.write("gates.json", gates), *args, "-o", "json")


@contextlib.contextmanager
def files():
    with tempfile.TemporaryDirectory() as folder:
        yield Files(folder)


def outcomes(done, status):
    assert done.returncode == status, (done.returncode, done.stderr)
    return [(r["outcome"], r["median"]) for r in json.loads(done.stdout)["rows"]]


def error(done, status, *words):
    assert done.returncode == status, (done.returncode, done.stderr)
    lines = [x for x in done.stderr.splitlines() if not x.startswith("#")]
    assert len(lines) == 1 and all(w in lines[0] for w in words), (words, done.stderr)


@case
def met_and_missed():
    with files() as f:
        both = gates_file(gate(), gate(at_most=3.9))
        assert outcomes(f.check(both, ("stages.json", STAGES)), 1) == [("met", 4.0), ("MISSED", 4.0)]
        assert outcomes(f.check(gates_file(gate(at_most=4.0)), ("stages.json", STAGES)), 0) == [("met", 4.0)]
        least = gate(at_least=4.0), gate(at_least=4.01)
        for g in least:
            del g["at_most"]
        assert outcomes(f.check(gates_file(*least), ("stages.json", STAGES)), 1) == [("met", 4.0), ("MISSED", 4.0)]
        begins = gate(row={"stage": "partial 512*"}, at_most=3.5)
        assert outcomes(f.check(gates_file(begins), ("stages.json", STAGES)), 0) == [("met", 3.0)]


@case
def the_median_of_several_runs_counts():
    runs = [[dict(r, **{"median ms": ms}) for r in STAGES] for ms in (9.0, 4.0, 3.0)]
    with files() as f:
        done = f.check(gates_file(gate()), *((f"stages{n}.json", r) for n, r in zip(("", ".2", ".3"), runs)))
        assert outcomes(done, 0) == [("met", 4.0)]
        row = json.loads(done.stdout)["rows"][0]
        assert (row["low"], row["high"], row["limit"], row["must be"]) == (3.0, 9.0, 4.1, "at most"), row


@case
def cells_that_are_not_there():
    with files() as f:
        for g, words in ((gate(row={"stage": "verify", "rows": 32}), ("0 rows", "stages")),
                         (gate(row={"stage": "verify"}), ("2 rows", "one is wanted")),
                         (gate(column="tok/s"), ("no column \"tok/s\"",)),
                         (gate(row={"rows": 64, "mode": "auto"}), ("no column \"mode\"",)),
                         (gate(row={"rows": 1}, column="stage"), ("no number",))):
            done = f.check(gates_file(g), ("stages.json", STAGES))
            assert outcomes(done, 1) == [("NO RESULT", None)]
            error(done, 1, *words)
        two = gates_file(gate(), gate(command="e2e"), stages={"run": ["stages"]}, e2e={"run": ["e2e"]})
        done = f.check(two, ("stages.json", STAGES))
        assert outcomes(done, 0) == [("met", 4.0), ("not measured", None)]
        assert "1 not measured" in done.stderr, done.stderr


@case
def files_that_are_wrong():
    with files() as f:
        for gates, words in (("{", ("gates.json:1:",)),
                             ({"gates": []}, ("\"commands\"",)),
                             (gates_file(), ("\"gates\"",)),
                             (gates_file(gate(at_least=1)), ("64 rows", "one of \"at_most\" and \"at_least\"")),
                             (gates_file(gate(at_most="4")), ("64 rows", "number")),
                             (gates_file(gate(command="stage")), ("stage", "\"commands\"")),
                             (gates_file(gate(row={})), ("\"row\"",)),
                             (gates_file(gate(colunm="x")), ("gate 1", "\"colunm\"")),
                             (gates_file(gate(), stages={"run": []}), ("stages", "\"run\"")),
                             (gates_file(gate(), **{"a.b": {"run": ["stages"]}}), ("a.b", "no dot"))):
            error(f.check(gates, ("stages.json", STAGES)), 2, *words)
        good = gates_file(gate())
        error(f.check(good, ("other.json", STAGES)), 2, "other.json", "no command \"other\"")
        error(f.check(good, ("stages.json", "[{")), 1, "stages.json")
        error(f.check(good, ("stages.json", [])), 1, "stages.json", "no rows")
        for args in (("gates",), ("gates", "--then-full"), ("gates", "--micro", "--repeat", "0"),
                     ("gates", "--micro", "--results", "x.json")):
            error(bench(*args), 2, "--")


@case
def short_commands_go_before_long_ones():
    micro = {"run": ["stages", "--context", "32", "--reps", "3"], "micro": True}
    full = {"run": ["e2e", "--modes", "co-located", "--num-prompts", "1", *SHORT]}
    speed = gate(name="speed", command="e2e", row={"mode": "co-located"}, column="tok/s", at_least=0.001)
    del speed["at_most"]

    def measure(f, first, command=micro, how=("--then-full", "--repeat", "3"), save=""):
        gates = f.write("gates.json", gates_file(first, speed, stages=command, e2e=full))
        return bench("gates", "--gates", gates, "--micro", *how, "--save", os.path.join(f.folder, save), "-o", "json")
    with files() as f:
        done = measure(f, gate(at_most=0.000001))
        assert [x for x, _ in outcomes(done, 1)] == ["MISSED", "not measured"], done.stdout
        assert "1 gates of short commands are missed" in done.stderr and "command e2e" not in done.stderr, done.stderr
        assert sorted(os.listdir(f.folder)) == ["gates.json", "stages.2.json", "stages.3.json", "stages.json"]
    with files() as f:
        done = measure(f, gate(at_most=100000))
        assert [x for x, _ in outcomes(done, 0)] == ["met", "met"], done.stdout
        assert done.stderr.count("# command stages") == 3 and done.stderr.count("# command e2e") == 1, done.stderr
        stored = [x for n in ("stages", "stages.2", "stages.3", "e2e")
                  for x in ("--results", os.path.join(f.folder, n + ".json"))]
        again = bench("gates", "--gates", os.path.join(f.folder, "gates.json"), *stored, "-o", "json")
        assert outcomes(again, 0) == outcomes(done, 0)
    with files() as f:
        done = measure(f, gate(at_most=0.000001), how=("--repeat", "1"), save="made")
        assert outcomes(done, 1)[0][0] == "MISSED" and os.listdir(os.path.join(f.folder, "made")) == ["stages.json"]
        error(measure(f, gate(), save="gates.json"), 1, "--save", "gates.json", "Not a directory")
        error(measure(f, gate(), save="no/such"), 1, "--save", "no/such", "No such file")
    with files() as f:
        done = measure(f, gate(), dict(micro, run=["stages", "--model", "no/such"]))
        assert [x for x, _ in outcomes(done, 1)] == ["NO RESULT", "not measured"], done.stdout
        assert "command stages failed" in done.stderr, done.stderr
        assert re.search(r"ended with status \d.*the command was: .*--model no/such", done.stderr), done.stderr
    with files() as f:
        done = measure(f, gate(at_most=0.000001), how=("--all", "--repeat", "1"))
        assert [x for x, _ in outcomes(done, 1)] == ["MISSED", "met"], done.stdout
        done = measure(f, gate(at_most=0.000001), how=("--all", "--only", "e2e"))
        assert [x for x, _ in outcomes(done, 0)] == ["not measured", "met"], done.stdout
        assert "command stages" not in done.stderr, done.stderr
        for how, words in ((("--all", "--then-full"), "always"), (("--only", "e2e,nothing"), 'no command "nothing"')):
            done = measure(f, gate(), how=how)
            assert done.returncode == 2 and words in done.stderr and done.stderr.count("error") == 1, done.stderr


@case
def gates_of_the_repository_can_be_read():
    with files() as f:
        for name in os.listdir(os.path.join(ROOT, "bench/gates")):
            path = os.path.join(ROOT, "bench/gates", name)
            with open(path, encoding="utf-8") as g:
                gates = json.load(g)
            first = next(iter(gates["commands"]))
            done = bench("gates", "--gates", path, "--results", f.write(first + ".json", [{"x": 1}]), "-o", "json")
            assert len(outcomes(done, 1)) == len(gates["gates"]), done.stderr


@case
def e2e_on_workers_that_stay():
    lines = "".join(json.dumps({"kind": k, "text": t}) + "\n"
                    for k, t in (("a", "import os\n"), ("b", "x = 1\n"), ("a", "def f(x):\n")))
    with files() as f:
        done = bench("e2e", *SHORT, "--draft", HEAD, "--num-speculative-tokens", "auto,4", "--prompts",
                     f.write("p.jsonl", lines), "--prompt-kind", "a", "--temperature", "0.8", "-o", "json")
    assert done.returncode == 0 and "2 prompts of" in done.stderr, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(r["mode"], r["nodes"]) for r in rows] == [
        ("plain", None), ("co-located", "auto"), ("pair", "auto"), ("co-located", "4"), ("pair", "4")], rows
    for r in rows:
        assert r["tok/s"] > 0 and 0 < r["x plain min"] <= r["x plain max"] and r["verify ms"] > 0, r
        low, high = 0.7 * r["x plain min"] - 0.01, 1.5 * r["x plain max"] + 0.01
        assert low <= r["x plain"] <= high, r
    assert rows[3]["mean acceptance length"] > 1 and rows[4]["bytes/token"] > 0 and rows[4]["draft ms"] > 0, rows


def blocks_of_head(*args):
    """KV blocks of the head in each engine: they hang on how far it looks back."""
    done = bench("e2e", "--max-tokens", "2", "--reps", "1", "--draft", HEAD, "--num-prompts", "1", *args,
                 env={**os.environ, "GRAFT_LOG": "info"})
    assert done.returncode == 0, done.stderr
    return [int(n) for n in re.findall(r"eagle3: 1 layers, (\d+) KV blocks", done.stderr)]


@case
def a_head_looks_back_as_far_in_both_modes():
    """Both workers' programs have one default; a co-located head once looked back all positions."""
    window = blocks_of_head("--prompt-tokens", "3k")
    assert len(window) == 2 and window[0] == window[1] < 3072 / 16, window
    less = blocks_of_head("--prompt-tokens", "256", "--draft-context", "0", "--modes", "co-located")
    assert less == [(256 + 2 + 64 + 15) // 16], less


@case
def sessions_with_prompts_of_a_length():
    done = bench("sessions", *SHORT, "--sessions", "1,3", "--prompt-tokens", "200", "--num-prompts", "3", "-o", "json")
    assert done.returncode == 0 and "3 prompts of at most 200 tokens" in done.stderr, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(r["sessions"], r["mode"]) for r in rows] == [(1, "plain"), (1, "auto"), (3, "plain"), (3, "auto")], rows
    assert all(r["tok/s"] > 0 and r["x plain"] > 0 for r in rows), rows
    assert rows[0]["decode x plain"] == 1 and rows[0]["decode tok/s"] > 0, rows


@case
def what_cannot_be_done_is_said():
    with files() as f:
        for args, status, words in (
                (("e2e", "--modes", "both"), 2, ("--modes", "`both'")),
                (("e2e", "--modes", "pair", "--target-device", "cuda:0", "--draft-device", "cuda:0"), 2,
                 ("--modes pair", "cuda:0")),
                (("e2e", "--num-speculative-tokens", "auto,99"), 2, ("--num-speculative-tokens", "`99'")),
                (("e2e", "--max-tokens", "1"), 2, ("--max-tokens", "`1'")),
                (("e2e", "--num-prompts", "5"), 2, ("--num-prompts", "`5'", "4")),
                (("e2e", "--prompt-kind", "a"), 2, ("--prompt-kind", "--prompts")),
                (("e2e", "--prompts", f.write("n.json", "[1]")), 1, ("n.json", "no text")),
                (("e2e", "--prompts", f.write("k.jsonl", '{"kind":"a"}')), 1, ("k.jsonl", "value 1")),
                (("e2e", "--prompt-tokens", "4x"), 2, ("--prompt-tokens", "`4x'")),
                (("e2e", "--draft-context", "-1"), 2, ("--draft-context", "`-1'", "16777216")),
                (("e2e", "--draft-context", "1"), 2, ("--draft-context", "`1'", "2 to")),
                (("sessions", "--sessions", "65"), 2, ("--sessions", "`65'", "64")),
                (("sessions", "--draft", "no/such"), 1, ("no/such",)),
                (("stages", "--context", "32700"), 1, ("--context 32700", "32768", "32256"))):
            error(bench(*args), status, *words)


@case
def workers_that_cannot_start_end_it():
    """A GPU that no machine has; the co-located drafter, which could run, goes with its target."""
    for mode in ("co-located", "pair"):
        done = bench("e2e", *SHORT, "--modes", mode, "--target-device", "cuda:60", timeout=8)
        assert done.returncode == 1 and "target: error: cuda:60" in done.stderr, (mode, done.stderr)
        assert "a worker ended" in done.stderr and done.stdout == "", (mode, done.stdout, done.stderr)


if __name__ == "__main__":
    sys.exit(main())
