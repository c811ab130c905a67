#!/usr/bin/env python3
"""Runs graft on the checkpoints of tools/make_tiny.py and holds its greedy ids against the golden ones.

usage: tools/check_tiny.py FOLDER [--graft build/graft] [--margin 0.001] [-- OPTIONS OF graft run]

Ids may part from the golden ones at a step whose margin is below --margin; what follows is not compared. On a GPU,
which takes bf16, give --margin 0.05 -- --device cuda:0 --dtype bf16. A family that graft refuses is listed with graft's own
message. The exit status is 1 if any ids are wrong.
"""
import argparse
import json
import os
import subprocess
import sys

WIDTHS = (14, 8, 10, 60)


def parse(arguments):
    at = arguments.index("--") if "--" in arguments else len(arguments)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--graft", default="build/graft")
    p.add_argument("--margin", type=float, default=1e-3)
    a = p.parse_args(arguments[:at])
    a.options = arguments[at + 1:] or ["--dtype", "f32"]
    return a


def read_golden(folder):
    path = os.path.join(folder, "golden.json")
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)["cases"]
    except FileNotFoundError:
        raise SystemExit(f"{path}: no such file; tools/make_tiny.py makes it") from None


def generate(a, family, case):
    """-> ids, or graft's message."""
    done = subprocess.run([a.graft, "run", "--model", os.path.join(a.folder, family), "--prompt-ids", "-", "--json",
                           "--ignore-eos", "--max-tokens", str(len(case["greedy_ids"])), *a.options],
                          input=json.dumps(case["prompt_ids"]), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0]
    return json.loads(done.stdout)["token_ids"], None


def compare(ids, case, margin):
    """-> how many ids are equal, what to say, whether that is right."""
    wanted = case["greedy_ids"]
    same = next((i for i, (x, y) in enumerate(zip(ids, wanted)) if x != y), min(len(ids), len(wanted)))
    if same == len(wanted):
        return same, "", True
    if same == len(ids):
        return same, f"ends after {same} of {len(wanted)} ids", False
    found = f"step {same}: {ids[same]}, not {wanted[same]}, at a margin of {case['margins'][same]:g}"
    return same, found, case["margins"][same] < margin


def check(a, family, cases):
    """-> the family's row of the table."""
    same, told, right = [], [], True
    for case in cases:
        ids, refusal = generate(a, family, case)
        if refusal is not None:
            return family, "refused", "-", refusal.replace(os.path.join(a.folder, ""), "")
        n, what, fine = compare(ids, case, a.margin)
        same, told, right = [*same, n], [*told, *([what] if what else [])], right and fine
    total = sum(len(c["greedy_ids"]) for c in cases)
    return family, "ok" if right else "WRONG", f"{sum(same)}/{total}", "; ".join(told)


def main():
    a = parse(sys.argv[1:])
    if not os.path.exists(a.graft):
        raise SystemExit(f"{a.graft}: no such program; build graft, or give --graft")
    rows = [("family", "", "ids equal", "")] + [check(a, f, cases) for f, cases in read_golden(a.folder).items()]
    for row in rows:
        print("  ".join(f"{x:{w}}" for x, w in zip(row, WIDTHS)).rstrip())
    return 1 if any(r[1] == "WRONG" for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
