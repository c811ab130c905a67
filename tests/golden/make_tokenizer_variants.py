#!/usr/bin/env python3
"""Writes tokenizer-variants.json: the demo tokenizer with other pre-tokenizers, normalizers and added
tokens, and what Hugging Face's `tokenizers` package (pip install tokenizers; last run with 0.23.3) makes
of random texts. Texts hold only characters of Unicode 14, which every library in use here knows."""
import copy
import json
import pathlib
import random
import unicodedata

from tokenizers import Tokenizer, __version__

ROOT = pathlib.Path(__file__).resolve().parents[2]
N_TEXT = 60
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPECIAL = ["<|begin_of_text|>", "<|eot_id|>", "<|eot"]
ADDED = [
    ("fozz", {}),
    ("fozzbar", {"lstrip": True}),
    ("Zoz", {"rstrip": True, "special": True}),
    ("wrd", {"single_word": True}),
    ("qx\u0441", {"normalized": True}),
    ("a\u030a", {"normalized": True, "lstrip": True, "rstrip": True}),
]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL]}


def added_tokens(first_id):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [{"id": first_id + i, "content": c, **(flags | f)} for i, (c, f) in enumerate(ADDED)]


def variants():
    nfc = {"normalizer": {"type": "NFC"}}
    yield "merges only", {"ignore_merges": False}
    yield "o200k", {"pre_tokenizer": sequence(split(O200K)), "ignore_merges": False}
    yield "o200k, removed", {"pre_tokenizer": sequence(split(O200K, "Removed", True))}
    yield "qwen", {"pre_tokenizer": sequence(split(QWEN)), "ignore_merges": False, "merges_text": True, **nfc}
    yield "gpt2", {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": True}, "post_processor": None}
    yield "deepseek", {"pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK))}
    yield "string", {"pre_tokenizer": sequence(split("n", kind="String"), split(LLAMA3))}
    yield "added", {"added": added_tokens(4096)}
    yield "added, nfc", {"added": added_tokens(4096), **nfc}


def build(base, patch):
    """The same steps as in test_tokenizer.c."""
    t = copy.deepcopy(base)
    for key, value in patch.items():
        if key == "ignore_merges":
            t["model"]["ignore_merges"] = value
        elif key == "merges_text":
            t["model"]["merges"] = [" ".join(m) for m in t["model"]["merges"]]
        elif key == "added":
            t["added_tokens"] += value
        else:
            t[key] = value
    return t


def random_text(r):
    code = lambda *ranges: chr(r.randrange(*r.choice(ranges)))
    pools = [
        lambda: code((32, 127)),
        lambda: r.choice(" \t\n\r\x0b\x0c\x1c\x85\u00a0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff"),
        lambda: code((0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x300, 0x370)),
        lambda: r.choice(["'s", "'S", "'\u017f", "'ll", "'LL", "n't", "'re", "123", "don", "I", "'"]),
        lambda: r.choice(SPECIAL + [c for c, _ in ADDED]),
        lambda: r.choice(["e\u0301", "\u00e9", "a\u0323\u0302", "\u212b", "A\u030a", "\ufb01", "\u0958", "\u1100\u1161\u11a8"]),
    ]
    weights = [r.random() ** 2 for _ in pools]
    text = "".join(r.choices(pools, weights)[0]() for _ in range(r.randrange(40)))
    return "".join(c for c in text if unicodedata.category(c) != "Cn")


def main():
    assert unicodedata.unidata_version.startswith(("14.", "13.")), "needs a Python with Unicode 13 or 14"
    base = json.loads((ROOT / "models/demo/target/tokenizer.json").read_text())
    r = random.Random(20)
    out = []
    for name, patch in variants():
        hf = Tokenizer.from_str(json.dumps(build(base, patch)))
        texts = [random_text(r) for _ in range(N_TEXT)]
        cases = [{"text": t, "ids": hf.encode(t).ids, "ids_plain": hf.encode(t, add_special_tokens=False).ids}
                 for t in texts]
        out.append({"name": name, "made_by": f"tokenizers {__version__}", "patch": patch, "cases": cases})
    path = ROOT / "tests/golden/tokenizer-variants.json"
    path.write_text("[\n" + ",\n".join(json.dumps(v) for v in out) + "\n]\n")


main()
