#!/usr/bin/env python3
"""`graft-bench e2e --context`: full and partial verification side by side, the plot, and what goes wrong in one line.

usage: test_long_bench.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import subprocess
import sys
import tempfile

from harness import BUILD, HEAD, ROOT, SLOW, TARGET, case, main

BENCH = os.path.join(BUILD, "graft-bench")
SMALL = ("--specpv-partial-threshold", "64", "--max-tokens", "12", "--reps", "1")


def bench(*args, env=None):
    return subprocess.run([BENCH, "e2e", "--model", TARGET, *args], capture_output=True, text=True, timeout=120 * SLOW,
                          check=False, cwd=ROOT, env=dict(os.environ, **(env or {})))


def rows_of(*args, env=None):
    done = bench(*args, *SMALL, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


def one_line(done, status, *words):
    assert done.returncode == status, (done.returncode, done.stderr)
    lines = [x for x in done.stderr.splitlines() if not x.startswith("#")]
    assert len(lines) == 1 and all(w in lines[0] for w in words), done.stderr


def check(r):
    assert r["tok/s"] > 0 and 0 < r["low"] <= r["x off"] <= r["high"] and r["predicted"] > 0, r
    assert r["verify ms"] > 0 and r["priced ms"] > 0 and r["tokens per round"] > 0, r
    if r["specpv"] == "off":
        assert r["x off"] == r["predicted"] == 1 and r["partial rounds"] + r["refreshes"] + r["roll-backs"] == 0, r
    if r["specpv"] != "lossy":  # the text is full verification's, whatever was partial
        assert r["common prefix"] == 12 and r["equal %"] == 100, r


@case
def every_context_mode_and_budget_is_a_row():
    rows = rows_of("--context", "256,512", "--specpv", "lossy,exact,auto", "--specpv-budgets", "64,128", "--draft",
                   "none")
    want = [(c, m, b) for c in (256, 512) for m, b in
            [("off", 0)] + [(m, b) for m in ("lossy", "exact", "auto") for b in (64, 128)]]
    assert [(r["context"], r["specpv"], r["budget"]) for r in rows] == want, rows
    for r in rows:
        check(r)
        if r["specpv"] in ("lossy", "exact"):
            assert r["partial rounds"] > 4, r


@case
def trees_and_a_plot():
    """gnuplot is given the numbers of the table: another program stands in for it."""
    with tempfile.TemporaryDirectory() as folder:
        fake, said = os.path.join(folder, "gnuplot"), os.path.join(folder, "said")
        with open(fake, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n[ $# -eq 0 ] || exit 0\ncat > {said}\n"
                    f"sed -n \"s/^set output '\\(.*\\)'/\\1/p\" {said} | while read -r to; do echo picture > \"$to\"; done\n")
        os.chmod(fake, 0o755)
        env = {"PATH": folder + ":" + os.environ["PATH"]}
        rows = rows_of("--context", "256,1k", "--specpv", "exact", "--specpv-budgets", "64", "--draft", HEAD, "--nodes",
                       "6", "--plot", os.path.join(folder, "speed.svg"), env=env)
        with open(os.path.join(folder, "speed.svg"), encoding="utf-8") as f:
            assert f.read() == "picture\n"
        assert sorted(os.listdir(folder)) == ["gnuplot", "said", "speed.svg"]
        with open(said, encoding="utf-8") as f:
            lines = f.read().splitlines()
    assert any(x.startswith("set terminal svg") for x in lines), lines
    points = [x.split() for x in lines[lines.index("e") - 2:lines.index("e")]]
    exact = [r for r in rows if r["specpv"] == "exact"]
    assert [int(x) for x, _ in points] == [r["context"] for r in exact], lines
    assert all(abs(float(y) - r["x off"]) < 0.006 for (_, y), r in zip(points, exact)), (lines, exact)
    for r in rows:
        check(r)
        assert r["mean acceptance length"] > 1 and r["tokens per round"] > 1, r
    assert exact[1]["partial rounds"] > 0, exact


@case
def what_cannot_be_done_is_said():
    with tempfile.TemporaryDirectory() as folder:
        alone = {"PATH": folder}
        for args, status, words, env in (
                (("--context", "4x"), 2, ("--context", "`4x'"), None),
                (("--context", "0"), 2, ("--context", "`0'"), None),
                (("--context", "512", "--specpv", "some"), 2, ("`some'", "lossy"), None),
                (("--context", "512", "--specpv-budgets", "100"), 2, ("100", "16"), None),
                (("--context", "512", "--reps", "0"), 2, ("--reps", "`0'"), None),
                (("--context", "512", "--plot", "a.pdf"), 2, ("a.pdf", ".svg"), None),
                (("--context", "512", "--plot", "a.png"), 1, ("gnuplot", "not installed"), alone),
                (("--context", "512", "--text", "no/such/*"), 1, ("no/such/*", "--prompts"), None),
                (("--context", "512", "--text", "tests/golden/long-prompt.txt", "--context", "30k"), 1,
                 ("30720", "--prompts"), None),
                (("--context", "512", "--draft", "no/such"), 1, ("no/such",), None)):
            one_line(bench(*args, env=env), status, *words)


if __name__ == "__main__":
    sys.exit(main())
