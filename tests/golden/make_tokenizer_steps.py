#!/usr/bin/env python3
"""Writes tokenizer-steps.json: small tokenizers, one for each step and option that models use, and what Hugging Face's
`tokenizers` package (last run with 0.23.3) makes of texts; for the kind of GGUF's `llama`, where merges go by scores, what
`sentencepiece` (last run with 0.2.3) does. pip install tokenizers sentencepiece protobuf"""
import itertools
import json
import pathlib
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sp
from tokenizers import Tokenizer, __version__

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = "\u2581"
LETTERS = ["a", "b", "c", "1", "2", "\u00e9", "."]
WHOLE = ["ab", "abc", "bc", MARK + "a", MARK + "ab", MARK * 2, "12", "aa", "b" + MARK, "\u00e9a"]
MERGES = ["a b", "b c", f"{MARK} a", f"{MARK} ab", f"{MARK} {MARK}", "1 2", "a a", "ab c", "\u00e9 a"]
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
LLAMA_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
POOL = [*LETTERS, " ", " ", "  ", "\n", "\u00fc", "\u6f22", "\U0001f600", "<s>", "<t>", "\u0301", "3", "\u00bd", "\u00b2"]


def added(i, content, **flags):
    none = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": i, "content": content, **(none | flags)}


def tokenizer(vocab, merges, pre=None, normalizer=None, decoder=None, tokens=(), **options):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges, **options}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(tokens), "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": None, "decoder": decoder or LLAMA_DECODER, "model": model}


def spelled(bytes_):
    return [f"<0x{b:02X}>" for b in bytes_]


def marked(pre=None, normalizer=None, decoder=None, tokens=(), bytes_=(), **options):
    """Of SentencePiece's kind."""
    vocab = ["<unk>", "<s>", MARK, *LETTERS, *WHOLE, *spelled(bytes_)]
    specials = [added(0, "<unk>", special=True), added(1, "<s>", special=True), added(len(vocab), "<t>"), *tokens]
    return tokenizer(vocab, MERGES, pre, normalizer, decoder, specials, **{"unk_token": "<unk>", **options})


def byte_char(b):
    printable = [x for x in range(256) if 33 <= x <= 126 or 161 <= x <= 172 or x >= 174]
    return chr(b) if b in printable else chr(256 + sum(1 for x in range(b) if x not in printable))


def byte_level(pre=None, normalizer=None, lacking=(), tokens=(), **options):
    vocab = [byte_char(b) for b in range(256) if b not in lacking] + ["ab", "abc", "12", "\u0120a", "<u>"]
    pre = {"type": "Sequence", "pretokenizers": [*(pre or []), BYTE_LEVEL]}
    merges = [m for m in ("a b", "ab c", "1 2", "\u0120 a")]
    return tokenizer(vocab, merges, pre, normalizer, BYTE_LEVEL, tokens, **options)


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def split(behavior, invert, pattern=None):
    return {"type": "Split", "pattern": pattern or {"Regex": "b+|1"}, "behavior": behavior, "invert": invert}


def form(name):
    return {"type": name}


def variants():
    for scheme, cut in itertools.product(("always", "first", "never"), (True, False)):
        yield f"Metaspace {scheme}, split {cut}", marked(metaspace(scheme, cut), decoder={
            "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut})
    legacy = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}
    for fuse in (True, False):
        yield f"Prepend and Replace, fuse_unk {fuse}", marked(normalizer=legacy, fuse_unk=fuse)
        yield f"byte_fallback, fuse_unk {fuse}", marked(normalizer=legacy, bytes_=range(256), byte_fallback=True, fuse_unk=fuse)
        some = [b for b in range(256) if b not in (0xbc, 0x98)]
        yield f"byte_fallback of some, fuse_unk {fuse}", marked(normalizer=legacy, bytes_=some, byte_fallback=True, fuse_unk=fuse)
    yield "no unk", marked(normalizer=REPLACE, unk_token=None)
    yield "ignore_merges, Metaspace", marked(metaspace("always", True), ignore_merges=True)
    for individual in (True, False):
        yield f"Digits, individual {individual}", byte_level([{"type": "Digits", "individual_digits": individual}])
    for prefix in (True, False):
        yield f"ByteLevel's regex, prefix {prefix}", byte_level([]) | {
            "pre_tokenizer": {**BYTE_LEVEL, "use_regex": True, "add_prefix_space": prefix}}
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        yield name, byte_level(normalizer=form(name))
    both = {"type": "Sequence", "normalizers": [form("NFKC"), {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"}]}
    yield "NFKC, then a regex replaced", byte_level(normalizer=both)
    for behavior, invert in itertools.product(
            ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"), (False, True)):
        yield f"Split {behavior}, invert {invert}", byte_level([split(behavior, invert)])
    yield "Split by a text", byte_level([split("Isolated", False, {"String": "."})])
    for merges in (True, False):
        yield f"ignore_merges {merges}", byte_level([split("Isolated", False, {"Regex": " ?[a-z]+"})], ignore_merges=merges)
    for unk, fuse in ((None, False), ("<u>", False), ("<u>", True)):
        yield f"bytes without tokens, unk {unk}, fuse {fuse}", byte_level(
            lacking=(0xbc, 0x98, 0x0a, 0x33), unk_token=unk, fuse_unk=fuse)


def flag_variants():
    """An added token with each of its flags, in a byte-level tokenizer with NFC."""
    for flags in itertools.product((False, True), repeat=4):
        names = ("single_word", "lstrip", "rstrip", "normalized")
        chosen = dict(zip(names, flags))
        name = ", ".join(n for n in names if chosen[n]) or "no flag"
        yield f"added: {name}", byte_level(normalizer=form("NFC"), tokens=[added(261, "tok\u00e9n", **chosen),
                                                                          added(262, "<s>", special=True)])


def random_text(r):
    return "".join(r.choice(POOL) for _ in range(r.randrange(1, 14)))


def flag_texts():
    around = ["", " ", "  ", "x", "1", "_", "-", "\n", "\u3000", "\u00e9", "<s>"]
    for token in ("tok\u00e9n", "toke\u0301n"):
        yield from (a + token + b for a, b in itertools.product(around, ("", " ", "x", " \ny", ".", "<s>")))
        yield f"a  {token} {token}\tb{token}c"


def decoded_otherwise(tokens):
    """What graft decodes in another way on purpose: an added token is its own text, not byte-level characters, and one
    blank is taken from the text's start, not all blanks of its first token."""
    return any("tok\u00e9n" in t for t in tokens) or any(t.startswith(MARK * 2) for t in tokens[:1])


def cases_of(hf, texts):
    """decoded is left out where it is the text, and null where it is not compared."""
    for t in texts:
        e = hf.encode(t, add_special_tokens=False)
        decoded = None if decoded_otherwise(e.tokens) else hf.decode(e.ids, skip_special_tokens=False)
        yield {"text": t, "ids": e.ids, **({"decoded": decoded} if decoded != t else {})}


def by_scores(r):
    """Tokens of the kind `llama` with scores; merges of the best token first, as SentencePiece does them."""
    words = [MARK, *LETTERS, *WHOLE, "ba", "cab", MARK + "b", "1.", "a" + MARK, "aaa"]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((t, 0.0, 6) for t in spelled(range(256)))]
    pieces += [(w, float(-k) / 4, 1) for w, k in zip(words, r.sample(range(len(words)), len(words)))]
    m = sp.ModelProto()
    for text, score, kind in pieces:
        m.pieces.add(piece=text, score=score, type=kind)
    m.trainer_spec.model_type, m.trainer_spec.byte_fallback = sp.TrainerSpec.BPE, True
    m.normalizer_spec.name, m.normalizer_spec.add_dummy_prefix = "identity", True
    m.normalizer_spec.remove_extra_whitespaces, m.normalizer_spec.escape_whitespaces = False, True
    p = sentencepiece.SentencePieceProcessor(model_proto=m.SerializeToString())
    texts = [random_text(r).replace("<s>", "b").replace("<t>", "a") for _ in range(40)]
    return {"tokens": [x[0] for x in pieces], "scores": [x[1] for x in pieces], "types": [x[2] for x in pieces],
            "cases": [{"text": t, "ids": p.encode(t)} for t in texts]}


HANGUL = ["\uac00\u11a7a", "\uac00\u11a8", "\u1100\u1161\u11a7\u0301\u0323", "\u11a7", "a\u11a7\u11a7\u1100\u1161\u11a8"]


def step(name, spec, texts, vocabs):
    """The tokenizer names its vocabulary by a number: most have one of a few."""
    cases = list(cases_of(Tokenizer.from_str(json.dumps(spec)), texts))
    vocab = spec["model"]["vocab"]
    if vocab not in vocabs:
        vocabs.append(vocab)
    return {"name": name, "tokenizer": spec | {"model": spec["model"] | {"vocab": vocabs.index(vocab)}}, "cases": cases}


def main():
    r = random.Random(3)
    vocabs = []
    steps = [step(name, spec, [random_text(r) for _ in range(24)] + (HANGUL if name.startswith("NF") else []), vocabs)
             for name, spec in variants()]
    every = list(flag_texts())
    steps += [step(name, spec, r.sample(every, 24), vocabs) for name, spec in flag_variants()]
    whole = {"made_by": f"tokenizers {__version__}, sentencepiece {sentencepiece.__version__}",
             "steps": steps, "scores": [by_scores(r) for _ in range(6)], "vocabs": vocabs}
    path = ROOT / "tests/golden/tokenizer-steps.json"
    path.write_text(json.dumps(whole, separators=(",", ":")) + "\n")


main()
