#!/usr/bin/env python3
"""graft-bench simulate from the command line: figures that are known beforehand, the same ones again, and bad input.

usage: test_simulate.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import subprocess
import sys
import tempfile

from harness import BUILD, ROOT, SLOW, case, main

BENCH = os.path.join(BUILD, "graft-bench")
COSTS = {"about": "a test", "target": {"rows_us": [[1, 5000], [1000000, 5000]], "host_us": 10},
         "draft": {"rows_us": [[1, 200], [1000000, 200]]}, "data_link": {"latency_us": 1}, "control_link": {"latency_us": 1},
         "orchestrator": {}, "surmise": [{"classes": [[1, 0.99, 1]]}]}
REAL = {"ns/message", "ns/COMMIT", "us/placement", "wall s"}  # what this computer took


def simulate(*args, costs=None, status=0):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(costs or COSTS, f)
        f.flush()
        done = subprocess.run([BENCH, "simulate", "--costs", f.name, "-o", "json", *args], capture_output=True, text=True,
                              timeout=240 * SLOW, cwd=ROOT, check=False)
    assert done.returncode == status, (args, done.returncode, done.stdout[-500:], done.stderr[-500:])
    return json.loads(done.stdout)["rows"] if status == 0 else done.stderr


@case
def plain_decoding_takes_a_pass_a_token():
    """5.01 ms a pass, whatever is in it: so many sessions, so many tokens in it, on each target."""
    for fleet, sessions, at_once in (("1+0", 1, 1), ("1+0", 64, 64), ("4+0", 64, 64)):
        row, = simulate("--fleets", fleet, "--sessions", str(sessions), "--modes", "plain", "--max-tokens", "50",
                        "--prompt-tokens", "16")
        assert abs(row["tok/s"] - at_once / 5.01e-3) <= 1 + 1e-3 * row["tok/s"], row
        assert row["mean acceptance length"] == 1 and row["failed"] == 0 and row["limit"] == "targets", row


@case
def a_run_replays_and_a_seed_makes_another():
    args = ("--fleets", "3+2", "--sessions", "24", "--seconds", "2", "--mean-life", "3")
    unsure = dict(COSTS, surmise=[{"classes": [[0.5, 0.9, 0.9], [0.5, 0.5, 0.4]], "others": [[0.5, 0.5]]}])
    runs = [[{k: v for k, v in r.items() if k not in REAL} for r in simulate(*args, "--seed", seed, costs=unsure)]
            for seed in ("1", "1", "2")]
    assert runs[0] == runs[1] and runs[0] != runs[2], runs
    assert all(r["losses"] > 0 and r["failed"] == 0 for r in runs[0]), runs[0]


@case
def the_costs_in_the_tree_are_whole():
    folder = os.path.join(ROOT, "bench", "costs")
    names = sorted(os.listdir(folder))
    assert names
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            rows = simulate("--sessions", "1", "--max-tokens", "64", "--groups", "1", costs=json.load(f))
        assert [r["mode"] for r in rows] == ["plain", "trees"] and rows[1]["mean acceptance length"] > 1, (name, rows)


@case
def recorded_texts_count():
    """Three of four tokens are known: a chain is right three times, and the target's own token comes after them."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"texts": [[[[1 if p < 3 else 0, 0.9, 0.05, 0.01, 0.01]] for p in range(4)]]}, f)
        f.flush()
        row, = simulate("--texts", f.name, "--num-speculative-tokens", "8", "--sessions", "1", "--modes", "trees")
    assert abs(row["mean acceptance length"] - 4) < 0.1, row
    with open(os.path.join(ROOT, "bench", "texts", "demo.json"), encoding="utf-8") as f:
        assert len(json.load(f)["texts"]) == 4
    row, = simulate("--texts", os.path.join(ROOT, "bench", "texts", "demo.json"), "--sessions", "4", "--modes", "trees")
    assert row["mean acceptance length"] > 2, row


@case
def what_was_measured_is_predicted_within_15_percent():
    """A few rows of docs/results: the machines, their costs and the texts still make what was measured."""
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "predict.py"), "--quick", BUILD], capture_output=True, text=True,
                          timeout=240 * SLOW, check=False)
    assert done.returncode == 0 and " rows; " in done.stdout, done.stdout + done.stderr


@case
def bad_input_is_told_in_a_line():
    for fleets in ("", "1", "1+1,", "0+1", "1+1+1", "1x1"):
        assert "--fleets" in simulate("--fleets", fleets, status=2), fleets
    assert '"draft": must be an object' in simulate(costs={**COSTS, "draft": 1}, status=1)
    assert "an orchestrator has room for" in simulate("--fleets", "9999+9999", status=1)


if __name__ == "__main__":
    main()
