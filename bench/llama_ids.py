#!/usr/bin/env python3
"""Greedy ids of graft against llama.cpp's with the same f32 weights: each quantised GGUF file is requantised to F32 for
llama.cpp (f32 KV, no flash attention), and graft reads the quantised file itself with --dtype f32.

usage: llama_ids.py [--llama BIN] [--build DIR] [--max-tokens N] NAME...
       llama_ids.py [--build DIR] --golden FILE NAME

NAME is a GGUF model of tools/fetch.py. Prompts are given to graft as texts: a chat's is what llama.cpp made of its
template. Prompt ids must be llama.cpp's, too. Ids count up to llama.cpp's end token; another id is excused where the
reference was as good as undecided, by a margin of its two best logits under 1e-3. Exit status 1: there is a difference
without an excuse.

With --golden nothing of llama.cpp runs: FILE has what it said before, as tests/golden/qwen2.5-coder-0.5b.json has.
"""
import argparse
import json
import os
import subprocess
import sys

from llama_cpp import ROOT, Server, build_llama, fetch, output, requantised

TEXTS = [
    "The largest planet of the solar system is",
    "Es war einmal ein kleines Mädchen, das",
    "def quicksort(values):\n    ",
    "In 1969, the first humans",
    "Ingredients:\n- 200 g flour\n- 3 eggs\n- ",
]
CHATS = [
    [{"role": "user", "content": "Name three rivers of South America."}],
    [{"role": "user", "content": "Write a haiku about the sea."},
     {"role": "assistant", "content": "Grey waves fold and fall"},
     {"role": "user", "content": "Now one about the desert."}],
    [{"role": "user", "content": "¿Cuántos días tiene un año bisiesto?"}],
]
UNDECIDED = 1e-3
F32 = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]


def prompts(server):
    yield from TEXTS
    for messages in CHATS:
        yield server.ask("apply-template", {"messages": messages})["prompt"]


def reference(server, text, n):
    """(prompt ids, greedy ids, margins) of llama.cpp, up to its end token."""
    ids = server.ask("tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    done = server.complete(ids, n, ignore_eos=False, n_probs=2, post_sampling_probs=False)
    steps = done["completion_probabilities"]
    margins = [step["top_logprobs"][0]["logprob"] - step["top_logprobs"][1]["logprob"] for step in steps]
    return ids, [step["id"] for step in steps], margins


def stored(case):
    """The same, from a file."""
    return case["prompt_ids"], case["greedy_ids"][:case["eos_at"]], case["margins"]


def prompt_ids(o, model, text):
    """graft's without the BOS, by the program that the tests of tokenizers use."""
    tool = os.path.join(o.build, "tests/tokenizers/tokenizer_ids")
    done = subprocess.run([tool, model], input=text.encode().hex() + "\n", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]


def graft(o, model, text, n):
    done = json.loads(output(os.path.join(o.build, "graft"), "run", "--json", "--method", "none", "--model", model,
                             "--dtype", "f32", "--prompt", text, "--max-tokens", str(n), "--ignore-eos",
                             "--max-model-len", "2048"))
    return done["metrics"]["prompt_tokens"], done["token_ids"]


def compare(o, model, text, said):
    """Whether all is right, and one line about it. said: prompt ids, greedy ids and margins of llama.cpp."""
    prompt, want, margins = said
    n_prompt, got = graft(o, model, text, len(want))
    ours = prompt_ids(o, model, text)
    if prompt not in (ours, prompt[:1] + ours) or n_prompt != len(prompt):
        return False, f"{n_prompt} prompt tokens {ours}, llama.cpp {prompt}"
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), None)
    if at is None:
        return True, f"{len(prompt)} prompt ids, {len(want)} of {len(want)}"
    return margins[at] < UNDECIDED, f"{at} of {len(want)}, then a margin of {margins[at]:.5f}"


def questions(o, name):
    """Texts, and what llama.cpp said of each."""
    if o.golden is not None:
        with open(o.golden, encoding="utf-8") as f:
            yield from ((case["text"], stored(case)) for case in json.load(f)["cases"])
        return
    with Server(o, requantised(o.llama, name, "F32"), "none", None, F32) as server:
        for text in prompts(server):
            yield text, reference(server, text, o.max_tokens)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="+", metavar="NAME")
    p.add_argument("--llama", help="folder of llama.cpp's programs (default: built into the cache folder)")
    p.add_argument("--build", default=os.path.join(ROOT, "build"), help="graft's build folder")
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--golden", help="what llama.cpp said before; of one NAME")
    o = p.parse_args()
    o.threads = len(os.sched_getaffinity(0))
    if o.golden is None:
        o.llama = o.llama or build_llama(os.path.join(fetch.CACHE, "llama.cpp"))
    wrong = 0
    for name in o.names:
        model = fetch.path_of(name)
        for text, said in questions(o, name):
            right, line = compare(o, model, text, said)
            wrong += not right
            end = json.dumps(text[-40:], ensure_ascii=False)
            print(f"{'ok' if right else 'WRONG'} {name} {end}: {line}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
