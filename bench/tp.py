#!/usr/bin/env python3
"""Targets that several GPUs share out: what a pass costs beside what its bytes ask of memory and links, and what a GPU
more is best used for. Runs graft-bench stages and e2e and puts their figures side by side.

usage: tp.py BUILD N OUT_DIR [--quick] [--only passes|layouts] [--tuned FILE]

N: 2, 4 or 8 GPUs. Writes OUT_DIR/gpu-tp-N.json (passes) and OUT_DIR/gpu-tp-N-layouts.json; a run that fails is told and
left out. Models are the demo pair in the geometry of Llama 3.1 8B and 3.3 70B (--geometry): their cost, its acceptance.

The floor of a pass is what a rank reads (its weights and KV) at the rate that graft-bench measured on this GPU, and what
comes to it over the links at 450 GB/s: for each of two joins a layer the other ranks' sums, f32, once each; on rank 0
the others' logits.
"""
import argparse
import json
import os
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TARGET, HEAD = (os.path.join(ROOT, "models/demo", name) for name in ("target", "eagle3"))
LINK_BYTES_PER_S = 450e9  # NVLink 4 of an H100 or H200, one direction
ROWS = (1, 8, 64)
SIZES = {  # hidden, layers, rows of lm_head; ranks that it needs at least
    "llama-3.1-8b": (4096, 32, 128256, 1),
    "llama-3.3-70b": (8192, 80, 128256, 2),
}


def say(text):
    print(text, file=sys.stderr, flush=True)


def devices(n, first=0):
    return ",".join(f"cuda:{i}" for i in range(first, first + n))


class Bench:
    """graft-bench, and what all of its runs have in common."""

    def __init__(self, args):
        self.program = os.path.join(args.build, "graft-bench")
        self.tuned = ["--tuned", args.tuned] if args.tuned else []
        self.provenance = None

    def run(self, *words):
        command = [self.program, *words, "--model", TARGET, *self.tuned, "-o", "json"]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        say(f"{time.monotonic() - begin:6.1f} s  {' '.join(words)}")
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            say("          failed: " + (said[-1] if said else f"status {done.returncode}"))
            return None
        out = json.loads(done.stdout)
        self.provenance = self.provenance or out["provenance"]
        return out["rows"]

    def write(self, path, name, note, rows):
        if not rows:
            say(f"{path}: nothing was measured")
            return
        origin = dict(self.provenance, benchmark=name, note=note, options=[os.path.basename(sys.argv[0]), *sys.argv[2:]])
        lines = ",\n".join(json.dumps(r) for r in rows)
        with open(path, "w", encoding="utf-8") as f:
            f.write('{"provenance":' + json.dumps(origin, separators=(",", ":")) + ',"rows":[\n' + lines + "\n]}\n")
        say(f"{path}: {len(rows)} rows")


# ---- passes ----

def link_us(geometry, n_rank, n_row):
    hidden, n_layer, n_vocab, _ = SIZES[geometry]
    sums = 2 * n_layer * (n_rank - 1) * n_row * hidden * 4
    logits = n_row * n_vocab * 4 * (n_rank - 1) / n_rank
    return (sums + logits) / LINK_BYTES_PER_S * 1e6


def pass_rows(b, geometry, n_rank, how, more, args):
    reps = "11" if args.quick else "51"
    got = b.run("stages", "--geometry", geometry, "--device", devices(n_rank), "-tp", str(n_rank), "--context",
                "512" if args.quick else "2048", "--reps", reps, *more)
    rows = []
    for r in got or []:
        if r["stage"] != "verify" or r["rows"] not in ROWS:
            continue
        us, read, link = r["median ms"] * 1e3, r["bytes ms"] * 1e3, link_us(geometry, n_rank, r["rows"])
        rows.append({"geometry": geometry, "ranks": n_rank, "how": how, "rows": r["rows"], "median us": round(us),
                     "min us": round(r["min ms"] * 1e3), "bytes us": round(read), "links us": round(link, 1),
                     "floor us": round(read + link), "% of floor": round(100 * (read + link) / us)})
    return rows


def add_gain(rows):
    """Against the fewest ranks of that geometry that there are, by the usual way."""
    first = {}
    for r in rows:
        if r["how"] in ("one GPU", "peer"):
            first.setdefault((r["geometry"], r["rows"]), r)
    for r in rows:
        base = first.get((r["geometry"], r["rows"]))
        r["x first"] = round(base["median us"] / r["median us"], 2) if base else None
    return rows


def passes(b, args):
    rows = []
    for geometry, (_, _, _, least) in SIZES.items():
        if least == 1:
            rows += pass_rows(b, geometry, 1, "one GPU", (), args)
            rows += pass_rows(b, geometry, 1, "one GPU, no chain", ("--no-chain",), args)
        for n_rank in (2, 4, 8):
            if least <= n_rank <= args.n:
                rows += pass_rows(b, geometry, n_rank, "peer", (), args)
                rows += pass_rows(b, geometry, n_rank, "nccl", ("--tp-transport", "nccl"), args)
                rows += pass_rows(b, geometry, n_rank, "nccl allreduce", ("--tp-allreduce", "nccl"), args)
    b.write(os.path.join(args.out, f"gpu-tp-{args.n}.json"), "tp",
            "a pass of 1, 8 and 64 rows; bytes: what a rank reads at this GPU's rate; links: what comes to it at 450 GB/s; "
            "x first: against the first line of that geometry and number of rows", add_gain(rows))


# ---- layouts ----

def layout(b, args, geometry, name, target, draft, mode):
    n_rank = target.count(",") + 1
    size = ("--max-tokens", "64", "--reps", "1") if args.quick else ("--max-tokens", "256", "--reps", "3")
    got = b.run("e2e", "--geometry", geometry, "--target-device", target, "-tp", str(n_rank), "--draft-device", draft,
                "--draft", HEAD, "--modes", mode, *size)
    n_gpu = len(set(target.split(",")) | {draft})
    return [dict({"geometry": geometry, "layout": name, "GPUs": n_gpu, "tok/s a GPU": round(r["tok/s"] / n_gpu, 1)}, **r)
            for r in got or []]


def layouts(b, args):
    """Where one more GPU, or two, are best put."""
    rows = []
    small, large = "llama-3.1-8b", "llama-3.3-70b"
    rows += layout(b, args, small, "1 + 1", "cuda:0", "cuda:1", "pair")
    rows += layout(b, args, small, "TP 2, drafter on rank 0's", devices(2), "cuda:0", "co-located")
    rows += layout(b, args, large, "TP 2, drafter on rank 0's", devices(2), "cuda:0", "co-located")
    if args.n >= 4:
        for geometry in (small, large):
            rows += layout(b, args, geometry, "TP 2 + 1", devices(2), "cuda:2", "pair")
            rows += layout(b, args, geometry, "TP 4, drafter on rank 0's", devices(4), "cuda:0", "co-located")
    if args.n >= 8:
        rows += layout(b, args, large, "TP 4 + 1", devices(4), "cuda:4", "pair")
        rows += layout(b, args, large, "TP 8, drafter on rank 0's", devices(8), "cuda:0", "co-located")
    b.write(os.path.join(args.out, f"gpu-tp-{args.n}-layouts.json"), "tp layouts",
            "four short prompts, one session, T 0; x plain: against plain decoding of the same target; cost that of the "
            "geometry, acceptance that of the demo pair", rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", help="a build folder, or the one of a packed build")
    p.add_argument("n", type=int, choices=(2, 4, 8), help="GPUs")
    p.add_argument("out", help="where the results go")
    p.add_argument("--quick", action="store_true", help="few repetitions and tokens: does it all run?")
    p.add_argument("--only", choices=("passes", "layouts"))
    p.add_argument("--tuned", metavar="FILE", help="shapes that graft-bench tune measured")
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    b = Bench(args)
    if args.only != "layouts":
        passes(b, args)
    if args.only != "passes":
        layouts(b, args)


if __name__ == "__main__":
    main()
