#!/usr/bin/env python3
"""Predicts what was measured, by `graft-bench simulate`, and sets both beside each other: the table of docs/scale.md.

usage: bench/predict.py [BUILD]          Markdown to stdout; one line for each row that stands in docs/results
       bench/predict.py --quick [BUILD]  the rows that take seconds; status 1 where one is more than 15 % off

A fit is a row from which a cost was taken, so that it proves nothing; all other rows are predictions."""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GEOMETRY = "bench/costs/h100-llama-3.1-8b.json"
SMOLLM2 = "bench/costs/h100-smollm2.json"
H200 = {1: "bench/costs/h200-llama-3.1-8b.json", 2: "bench/costs/h200-x2-llama-3.1-8b.json"}  # by ranks of a target
DEMO = "bench/costs/cpu-demo.json"
TEXTS = ["--texts", "bench/texts/demo.json"]
PROMPT_TOKENS = (18, 19, 20, 21, 22)  # of the sweep's four prompts: 10 to 26, which is 20 on the mean; medians count


def measured(name):
    with open(os.path.join(ROOT, "docs", "results", name + ".json"), encoding="utf-8") as f:
        return json.load(f)["rows"]


def simulate(build, *args):
    done = subprocess.run([os.path.join(build, "graft-bench"), "simulate", "-o", "json", *args], capture_output=True, text=True,
                          cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"graft-bench simulate {' '.join(args)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["rows"][0]


def predict(build, column, variants):
    """Medians over runs that differ by their arguments."""
    rows = [simulate(build, *v) for v in variants]
    return (statistics.median(r[column] or r["tok/s"] for r in rows),
            statistics.median(r["mean acceptance length"] for r in rows))


def print_row(machine, sessions, mode, predicted, row, column, acceptance, kind):
    error = 100.0 * (predicted[0] / row[column] - 1.0)
    shown = f"{predicted[1]:.2f} | {row.get(acceptance) or ''}" if mode == "trees" else " | "
    print(f"| {machine} | {sessions} | {mode} | {predicted[0]:.0f} | {row[column]:.0f} | {error:+.1f} | {shown} | {kind} |", flush=True)
    return abs(error)


def of_sessions(build, machine, name, args, column, kinds):
    """Rows of `graft-bench sessions`: column is the one that is compared."""
    for row in measured(name):
        mode = "plain" if row["mode"] == "plain" else "trees"
        run = [*args, "--sessions", str(row["sessions"]), "--modes", mode]
        predicted = predict(build, {"decode tok/s": "decode tok/s", "tok/s": "tok/s"}[column], [run])
        yield print_row(machine, row["sessions"], mode, predicted, row, column, "mean acceptance length",
                        kinds.get((row["sessions"], mode), kinds.get(mode, "")))


def name_of_fleet(gpu, row, mode):
    """2 H100s, pairs; a target that GPUs share out is counted by its GPUs."""
    shared = f" of {row['tp']} GPUs each" if row["tp"] > 1 and row["targets"] > 1 else " for one target" if row["tp"] > 1 else ""
    n = row["targets"] * row["tp"]
    if row["drafters"]:
        return f"{n} + {row['drafters']} {gpu}s{shared}"
    return f"{n} {gpu}s{shared}" + (", pairs" if mode == "trees" and row["tp"] == 1 else "")


def of_sweep(build, sweep, label="", fits=(), gpu="H100", costs=None):
    """Rows of `graft-bench sweep`: one run to warm up and one that counts, as there. costs: by ranks of a target; of others
    none were measured."""
    costs = costs or {1: GEOMETRY}
    for row in measured(sweep):
        if row["tok/s"] is None or row["tp"] not in costs:
            continue
        targets, drafters = row["targets"], row["drafters"]
        mode = "plain" if row["mode"] == "plain" else "trees"
        place = [] if drafters else ["--one-device"]
        run = ["--costs", costs[row["tp"]], *TEXTS, "--fleets", f"{targets}+{drafters or targets}", *place, "--sessions",
               str(row["sessions"]), "--slots", "256", "--modes", mode, "--max-tokens", "128", "--warm-groups", "1", "--groups", "1"]
        whole = row["note"] is not None and "all time" in row["note"]
        predicted = predict(build, "tok/s" if whole else "decode tok/s", [[*run, "--prompt-tokens", str(n)] for n in PROMPT_TOKENS])
        kind = "fit" if (row["sessions"], mode) in fits else ""
        yield print_row(name_of_fleet(gpu, row, mode) + label, row["sessions"], mode, predicted, row, "tok/s", "acceptance", kind)


def of_pair(build, machine, name, costs, max_tokens, prompt_tokens, more, match):
    """Rows of `graft-bench e2e`, where prompts follow one another. match: the rows that are predicted."""
    for row in measured(name):
        if not match(row):
            continue
        mode = "plain" if row["mode"] == "plain" else "trees"
        run = ["--costs", costs, *more, "--sessions", "1", "--modes", mode, "--max-tokens", str(max_tokens), "--prompt-tokens",
               str(prompt_tokens), "--groups", "8"]
        yield print_row(machine, 1, mode, predict(build, "tok/s", [run]), row, "tok/s", "mean acceptance length", "")


def quick(build):
    """Rows of few sessions: on one device, on two, of another model, and on CPUs."""
    yield from of_pair(build, "1 + 1 H100s, 64 tokens", "gpu-tp-4-layouts", GEOMETRY, 64, 20, TEXTS, lambda r: r["layout"] == "1 + 1")
    yield from of_pair(build, "one H100, short prompts", "gpu-e2e-short-h100", GEOMETRY, 256, 20, [*TEXTS, "--one-device"], lambda r: True)
    yield from of_pair(build, "one H200, short prompts", "gpu-e2e-short", H200[1], 256, 20, [*TEXTS, "--one-device"], lambda r: True)
    yield from of_sessions(build, "SmolLM2, one H100", "gpu-smollm2-sessions",
                           ["--costs", SMOLLM2, "--one-device", "--groups", "8", "--max-tokens", "128"], "decode tok/s",
                           {(1, "plain"): "fit", (1, "trees"): "fit"})
    yield from of_pair(build, "SmolLM2, 1 + 1 H100s", "gpu-smollm2-e2e", SMOLLM2, 160, 256, [], lambda r: r["mode"] in ("plain", "pair"))
    yield from of_sessions(build, "demo pair, two CPUs", "cpu-sessions-eagle3",
                           ["--costs", DEMO, "--one-device", "--groups", "8", "--max-tokens", "128", "--prompt-tokens", "20"], "tok/s", {})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", nargs="?", default="build")
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    build = os.path.abspath(args.build)
    print("| machine | sessions | mode | predicted | measured | error % | acceptance, predicted | measured | |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---|")
    one = ["--costs", GEOMETRY, "--one-device", "--groups", "8"]
    long = () if args.quick else (*of_sessions(build, "8B geometry, one H100", "gpu-sessions-short-h100", one, "tok/s",
                                               {"plain": "fit"}),
                                  *of_sweep(build, "gpu-sweep-4"), *of_sweep(build, "gpu-sweep-2", ", thrice", {(384, "plain")}),
                                  *of_sweep(build, "gpu-sweep-4-many", ", again", {(576, "plain")}),
                                  *of_sessions(build, "8B geometry, one H200", "gpu-sessions-short",
                                               ["--costs", H200[1], "--one-device", "--groups", "8"], "tok/s", {}),
                                  *of_sweep(build, "gpu-sweep-2-h200", gpu="H200", costs=H200),
                                  *of_sweep(build, "gpu-sweep-4-h200", gpu="H200", costs=H200))
    errors = [*long, *quick(build)]
    print(f"\n{len(errors)} rows; {sum(e <= 15.0 for e in errors)} within 15 %; the worst is {max(errors):.0f} % off.")
    return 1 if args.quick and max(errors) > 15.0 else 0


if __name__ == "__main__":
    sys.exit(main())
