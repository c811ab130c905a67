#!/usr/bin/env python3
"""What graft-bench prints: one table in four formats, with where it comes from, called from anywhere.

usage: test_bench_formats.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import BUILD, ROOT, SLOW, case, main

BENCH = os.path.join(BUILD, "graft-bench")
ROWS = ("kernels", "--isa", "c", "--only", "rows")
STAGES = ("stages", "--context", "2048", "--reps", "2", "--retrieval", "512")


def bench(*args, status=0, cwd=ROOT):
    done = subprocess.run([BENCH, *args], capture_output=True, text=True, timeout=240 * SLOW, cwd=cwd, check=False)
    assert done.returncode == status, (args, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return done


def check_provenance(p, *words):
    assert {"benchmark", "version", "commit", "compiler", "date", "options", "machine"} <= set(p), p
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", p["date"]) and p["commit"] and p["compiler"], p
    assert {"cpu", "cpus", "kernel"} <= set(p["machine"]) and all(w in p["options"] for w in words), p


@case
def formats_say_the_same():
    """Of the benchmark of kernels, too, which another program runs."""
    for args in (ROWS, ("stages", "--context", "64", "--reps", "2")):
        whole = json.loads(bench(*args, "-o", "json").stdout)
        check_provenance(whole["provenance"])
        columns = list(whole["rows"][0])
        lines = [json.loads(x) for x in bench(*args, "-o", "jsonl").stdout.splitlines()]
        check_provenance(lines[0]["provenance"])
        assert [list(x) for x in lines[1:]] == [columns] * len(whole["rows"])
        done = bench(*args, "-o", "csv")
        rows = list(csv.reader(io.StringIO(done.stdout, newline="")))
        assert rows[0] == columns and len(rows) == 1 + len(whole["rows"]), rows
        assert done.stderr.startswith("# graft-bench"), done.stderr
        table = [x for x in bench(*args).stdout.splitlines() if x.startswith("|")]
        assert [x.strip() for x in table[0].strip("|").split("|")] == columns and len(table) == 2 + len(whole["rows"])
        assert len({len(x) for x in table[:2]}) == 1 and len({len(x) for x in table}) <= 2, table  # padded
        for row, line in zip(whole["rows"], rows[1:]):
            for name, cell in zip(columns, line):
                assert (row[name] is None) == (cell == "") or row[name] == "", (name, row, line)
                assert not isinstance(row[name], str) or row[name] == cell


@case
def numbers_have_columns():
    rows = json.loads(bench(*STAGES, "-o", "json").stdout)["rows"]
    partial = [r for r in rows if r["stage"].startswith("partial")]
    assert {r["stage"] for r in partial} == {"partial 512"}, rows
    for r in partial:
        assert all(isinstance(r[c], (int, float)) for c in
                   ("of full", "full ms", "expected of full", "of expected", "refresh ms")), r
    assert all(r["full ms"] is None for r in rows if r not in partial)
    for r in csv.DictReader(io.StringIO(bench(*STAGES, "-o", "csv").stdout, newline="")):
        assert None not in r and "-" not in r.values(), r


@case
def unknown_names_are_usage_errors():
    for args, words in ((("kernels", "--only", "nothing"), "linear, attention, view, rows, sample"),
                        (("kernels", "--isa", "sse"), "avx512, avx2, c")):
        done = bench(*args, status=2)
        assert words in done.stderr and done.stdout == "", done.stderr


@case
def trees_hold_no_filler():
    words = ("--max-tokens", "8", "--reps", "1", "--sizes", "2", "-o", "json")
    done = bench("trees", *words)
    assert "is `graft-bench trees'" in bench("sweep", *words).stderr and "`graft-bench trees'" not in done.stderr
    rows = {r["prompt"]: r for r in json.loads(done.stdout)["rows"]}
    assert rows["worst"]["plain tok/s"] is None and rows["worst"]["auto acceptance"] is None, rows
    assert rows["geometric mean"]["plain tok/s"] > 0 and rows["geometric mean"]["auto acceptance"] is None
    assert all(v not in (0, "-") for v in rows["0"].values()), rows["0"]


@case
def a_pair_says_its_transport():
    rows = json.loads(bench("e2e", "--max-tokens", "24", "--reps", "1", "--num-speculative-tokens", "4", "-o",
                            "json").stdout)["rows"]
    assert [(r["mode"], r["transport"]) for r in rows] == [("plain", None), ("co-located", "loop"), ("pair", "shm")], rows


@case
def from_any_folder():
    with tempfile.TemporaryDirectory() as d:
        rows = json.loads(bench("stages", "--context", "64", "--reps", "2", "-o", "json", cwd=d).stdout)["rows"]
        assert rows
        done = bench("gates", "--micro", "--only", "nothing", status=2, cwd=d)
        assert 'bench/gates/h200.json has no command "nothing"' in done.stderr, done.stderr
        done = bench("stages", "--model", "models/demo/target", status=1, cwd=d)  # what is named is taken as it is
        assert "models/demo/target" in done.stderr and os.listdir(d) == [], done.stderr


@case
def versions():
    for name in ("graft", "graft-bench", "graft-target", "graft-draft"):
        done = subprocess.run([os.path.join(BUILD, name), "--version"], capture_output=True, text=True, check=True,
                              timeout=20 * SLOW)
        assert re.match(rf"{name} \d+\.\d+\.\d+", done.stdout) and done.stderr == "", done


def commands_of(page):
    """Those of a page that need no server, no device and no file of the reader's."""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        return [line for line in re.findall(r"^build/graft run .*$", f.read(), re.M)
                if "--connect" not in line and "FILE" not in line]


@case
def commands_of_the_pages():
    """Those that end by themselves, as printed, with few tokens."""
    lines = [commands_of(page) for page in ("README.md", "docs/start.md", "docs/run.md")]
    assert all(len(of_page) >= 2 for of_page in lines), lines
    for line in sum(lines, []):
        command = line.split("#")[0].replace("build/graft", os.path.join(BUILD, "graft")) + " --max-tokens 8"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120 * SLOW, cwd=ROOT,
                              check=False)
        assert done.returncode == 0 and done.stdout, (line, done.stderr)


sys.exit(main())
