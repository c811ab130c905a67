#!/usr/bin/env python3
"""What graft accepts of a head on the held-out prompts of stage evaluate, chain by chain and tree by tree.

usage: tools/train_head/on_graft.py TARGET_FOLDER HEAD_FOLDER [--work FOLDER] [--graft build/graft] [--nodes N,...]

Each text is compared with plain decoding (--verify-lossless), and with the text of transformers up to where they part.
A chain has 6 nodes; the mean acceptance length is 1 + accepted / drafts over all prompts.
"""
import argparse
import json
import os
import subprocess
import sys

CHAIN = 6


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("target")
    p.add_argument("head")
    p.add_argument("--work", help="default: HEAD_FOLDER.work")
    p.add_argument("--graft", default="build/graft")
    p.add_argument("--nodes", default="15,31,63", help="sizes of trees")
    p.add_argument("--texts", type=int, default=16)
    a = p.parse_args()
    path = os.path.join(a.work or a.head.rstrip("/") + ".work", "acceptance.json")
    if not os.path.exists(path):
        raise SystemExit(f"{path}: no such file; train.py's stage evaluate writes it")
    with open(path, encoding="utf-8") as f:
        a.cases = json.load(f)["cases"][:a.texts]
    return a


def generate(a, case, options):
    done = subprocess.run([a.graft, "run", "--model", a.target, "--draft", a.head, "--prompt-ids", "-", "--json",
                           "--max-tokens", str(len(case["greedy_ids"])), "--verify-lossless", *options],
                          input=json.dumps(case["prompt_ids"]), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit((done.stderr.strip().splitlines() or [f"{a.graft}: status {done.returncode}"])[0])
    return json.loads(done.stdout)


def agreement(ids, wanted):
    return next((i for i, (x, y) in enumerate(zip(ids, wanted)) if x != y), min(len(ids), len(wanted)))


def row(a, name, options):
    drafts = accepted = equal = tokens = 0
    lossless = True
    for case in a.cases:
        out = generate(a, case, options)
        drafts += out["metrics"]["num_drafts"]
        accepted += out["metrics"]["num_accepted_tokens"]
        tokens += len(case["greedy_ids"])
        equal += agreement(out["token_ids"], case["greedy_ids"])
        lossless = lossless and out["lossless"]
    print(f"{name:12s} acceptance {1 + accepted / max(1, drafts):.3f} ({accepted} of {drafts} drafts), "
          f"{'lossless' if lossless else 'NOT LOSSLESS'}, as transformers {equal} of {tokens} tokens", flush=True)
    return lossless


def main():
    a = parse()
    fine = [row(a, f"chain of {CHAIN}", ["--tree-shape", "chain", "--num-speculative-tokens", str(CHAIN)])]
    fine += [row(a, f"tree of {n}", ["--num-speculative-tokens", n]) for n in a.nodes.split(",")]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
