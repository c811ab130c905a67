#!/usr/bin/env python3
"""Holds graft's penalties, biases, bans, min_tokens and log-probabilities against Hugging Face transformers, greedily.

usage: tools/check_sampling.py FOLDER... [--graft build/graft] [--tokens 48] [--prompt-ids 5,6,7]

Each FOLDER is a Hugging Face model; graft runs it with --dtype f32, plainly and with trees that the model drafts for
itself. The reference is transformers in f32 with its own processors; frequency and presence penalties, which it has
not, are OpenAI's formula. Ids may part where the two best penalised logits are less than 0.001 apart. The exit status
is 1 if any id is wrong or a log-probability is off by more than 0.001. Needs torch and transformers.
"""
import argparse
import json
import subprocess
import sys

import torch
from transformers import (AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList, MinNewTokensLengthLogitsProcessor,
                          RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor, SuppressTokensLogitsProcessor)

UNDECIDED = 1e-3
LOGPROB_WITHIN = 1e-3
N_TOP = 5
TREES = {"plain": ["--method", "none"], "trees": ["--num-speculative-tokens", "15"]}


class FrequencyAndPresence(LogitsProcessor):
    """Of the generated tokens only."""

    def __init__(self, n_prompt, frequency, presence):
        self.n_prompt, self.frequency, self.presence = n_prompt, frequency, presence

    def __call__(self, ids, scores):
        count = torch.bincount(ids[0, self.n_prompt:], minlength=scores.shape[1]).float()
        return scores - self.frequency * count - self.presence * (count > 0)


def cases(n_prompt, eos, plain_ids):
    """name -> (options of graft, processors); what is banned or biased are ids of the plain text."""
    a, b = plain_ids[0], plain_ids[len(plain_ids) // 2]
    frequency = ["--frequency-penalty", "0.7", "--presence-penalty", "0.4"]
    return {
        "none": ([], []),
        "repetition": (["--repetition-penalty", "1.3"], [RepetitionPenaltyLogitsProcessor(1.3)]),
        "reward": (["--repetition-penalty", "0.8"], [RepetitionPenaltyLogitsProcessor(0.8)]),
        "frequency, presence": (frequency, [FrequencyAndPresence(n_prompt, 0.7, 0.4)]),
        "all three": (frequency + ["--repetition-penalty", "1.1"],
                      [RepetitionPenaltyLogitsProcessor(1.1), FrequencyAndPresence(n_prompt, 0.7, 0.4)]),
        "ban": (["--logit-bias", f"{a}=ban,{b}=ban"], [SuppressTokensLogitsProcessor([a, b])]),
        "bias": (["--logit-bias", f"{a}=-3,{b}=2.5"],
                 [SequenceBiasLogitsProcessor([[[a], -3.0], [[b], 2.5]])]),
        "min_tokens": (["--min-tokens", "20"], [MinNewTokensLengthLogitsProcessor(n_prompt, 20, eos)]),
    }


def reference(model, prompt, n, processors):
    """-> ids, margins of the penalised logits, raw log-probabilities of the chosen and of the likeliest."""
    ids = torch.tensor([prompt])
    out, margins, logprobs = [], [], []
    for _ in range(n):
        with torch.no_grad():
            raw = model(ids).logits[:, -1].float()
        scores = LogitsProcessorList(processors)(ids, raw.clone())
        best = scores[0].topk(2)
        raw_logprobs = raw[0].log_softmax(-1)
        out.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        logprobs.append((float(raw_logprobs[out[-1]]), sorted(raw_logprobs.topk(N_TOP).values.tolist(), reverse=True)))
        ids = torch.cat([ids, best.indices[:1][None]], 1)
    return out, margins, logprobs


def graft(a, folder, prompt, n, options):
    done = subprocess.run([a.graft, "run", "--json", "--model", folder, "--draft", folder, "--dtype", "f32",
                           "--prompt-ids", "-", "--max-tokens", str(n), "--ignore-eos", "--logprobs", str(N_TOP),
                           *options], input=json.dumps(prompt), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{folder}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def worst_logprob(got, want):
    worst = 0
    for g, (chosen, top) in zip(got, want):
        theirs = sorted((t["logprob"] for t in g["top"]), reverse=True)
        worst = max([worst, abs(g["logprob"] - chosen)] + [abs(x - y) for x, y in zip(theirs, top)])
    return worst


def check(a, folder, name, options, want, margins, logprobs):
    """Prints the case's line -> whether it is right."""
    right = True
    for mode, more in TREES.items():
        found = graft(a, folder, a.prompt_ids, a.tokens, options + more)
        got = found["token_ids"]
        same = next((i for i, (x, y) in enumerate(zip(got, want)) if x != y), len(want))
        off = worst_logprob(found["logprobs"][:same], logprobs)
        fine = (same == len(want) or margins[same] < UNDECIDED) and off < LOGPROB_WITHIN
        right = right and fine
        print(f"{'ok' if fine else 'WRONG':6}{folder.rstrip('/').split('/')[-1]:10}{name:22}{mode:8}"
              f"{same}/{len(want)} ids, log-probabilities within {off:.1e}", flush=True)
    return right


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="+", metavar="FOLDER")
    p.add_argument("--graft", default="build/graft")
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--prompt-ids", type=lambda s: [int(i) for i in s.split(",")], default=[5, 9, 6, 9, 7, 9, 8, 30, 31])
    a = p.parse_args()
    right = True
    for folder in a.folders:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        plain, _, _ = reference(model, a.prompt_ids, a.tokens, [])
        for name, (options, processors) in cases(len(a.prompt_ids), model.config.eos_token_id, plain).items():
            right = check(a, folder, name, options, *reference(model, a.prompt_ids, a.tokens, processors)) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
