#!/usr/bin/env python3
"""Writes the tokenizer of a GGUF file as Hugging Face's tokenizer.json.

usage: gguf_tokenizer.py FILE.gguf OUT.json

A GGUF file names its pre-tokenizer and does not spell it: PRE has the patterns of the models' own files.
"""
import json
import struct
import sys

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
MARK = "\u2581"
NFC = {"type": "NFC"}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


DIGITS = {"type": "Digits", "individual_digits": True}
# Letters of the scripts with two cases, as DeepSeek's first tokenizer lists them.
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    r"ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛ"
    r"Ꜣ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+")
# name: steps before ByteLevel, whether ByteLevel splits, normalizer, ignore_merges
PRE = {
    "llama-bpe": ([split(LLAMA3)], False, None, True),
    "qwen2": ([split(QWEN2)], False, NFC, False),
    "qwen35": ([split(QWEN35)], False, None, False),
    "gpt-2": ([], True, None, False),
    "mpt": ([], True, NFC, False),
    "starcoder": ([DIGITS], True, None, False),
    "refact": ([DIGITS], True, None, False),
    "smollm": ([DIGITS], True, None, False),
    "command-r": ([DIGITS], True, NFC, False),
    "deepseek-coder": ([split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                        DIGITS], False, None, False),
    "deepseek-llm": ([split(r"[\r\n]"), split(DEEPSEEK_LETTERS), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
                      split("[一-龥ࠀ-一가-퟿]+"), DIGITS], False, None, False),
}


class Reader:
    """The key-value pairs of a GGUF file (version 2 or 3, little endian)."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = memoryview(f.read())
        if bytes(self.data[:4]) != b"GGUF":
            raise SystemExit(f"{path}: not a GGUF file")
        version, _, n_field = struct.unpack_from("<IQQ", self.data, 4)
        if version not in (2, 3):
            raise SystemExit(f"{path}: GGUF version {version}, known: 2, 3")
        self.at = 24
        self.fields = {}
        for _ in range(n_field):
            key = self.string()
            self.fields[key] = self.value(self.scalar("<I"))

    def scalar(self, form):
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.data, self.at - struct.calcsize(form))[0]

    def string(self):
        n = self.scalar("<Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, n = self.scalar("<I"), self.scalar("<Q")
            return [self.value(inner) for _ in range(n)]
        return self.scalar(SCALARS[kind])


def fields(path):
    return {k: v for k, v in Reader(path).fields.items() if k.startswith("tokenizer.ggml.")}


def merges_of_scores(tokens, scores):
    """As transformers converts a SentencePiece model: every way to make a token of two, the best token first."""
    vocab = {t: i for i, t in enumerate(tokens)}
    out = []
    for token, score in sorted(zip(tokens, scores), key=lambda x: -x[1]):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        out += sorted(pairs, key=lambda p: (vocab[p[0]], vocab[p[1]]))
    return out


def added_tokens(f):
    return [{"id": i, "content": f["tokenizer.ggml.tokens"][i], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": kind != 4}
            for i, kind in enumerate(f["tokenizer.ggml.token_type"]) if kind in (2, 3, 4)]


def model(f, merges, **more):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(f["tokenizer.ggml.tokens"])}, "merges": merges, **more}


def gpt2(f, pre):
    steps, use_regex, normalizer, ignore_merges = PRE[pre]
    merges = [[m[:at], m[at + 1:]] for m in f["tokenizer.ggml.merges"] for at in [m.index(" ", 1)]]
    return {"normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level(use_regex)]},
            "decoder": byte_level(True), "model": model(f, merges, ignore_merges=ignore_merges)}


def llama(f):
    merges = merges_of_scores(f["tokenizer.ggml.tokens"], f["tokenizer.ggml.scores"])
    unk = f["tokenizer.ggml.tokens"][f.get("tokenizer.ggml.unknown_token_id", 0)]
    return {"normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": MARK},
                {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": model(f, merges, unk_token=unk, fuse_unk=True, byte_fallback=True)}


def tokenizer_json(f):
    kind, pre = f["tokenizer.ggml.model"], f.get("tokenizer.ggml.pre")
    if kind == "llama":
        parts = llama(f)
    elif kind == "gpt2" and pre in PRE:
        parts = gpt2(f, pre)
    else:
        raise SystemExit(f"tokenizer.ggml.model {kind}, pre {pre}: not known here")
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens(f),
            "post_processor": None, **parts}


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(tokenizer_json(fields(sys.argv[1])), out)


if __name__ == "__main__":
    main()
