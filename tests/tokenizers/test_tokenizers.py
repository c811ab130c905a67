#!/usr/bin/env python3
"""Ids of the vocabularies that llama.cpp's source carries, against the ids beside them.

usage: test_tokenizers.py TOKENIZER_IDS SOURCE_ROOT      prints TAP
"""
import tempfile

import vocabularies as v
from vocabularies import fetch


def check(kind, folder):
    gguf = v.path_of(folder, kind)
    with open(gguf + ".inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    with open(gguf + ".out", encoding="utf-8") as f:
        want = [[int(x) for x in line.split()] for line in f.read().split("\n")]
    assert len(texts) >= 40
    for form in (gguf, v.as_json(gguf)):
        for text, ids, (ours, whole, stream) in zip(texts, want, v.answers(form, texts, "no-special"), strict=True):
            assert ours == ids, (text, ours, ids)
            assert kind in v.NORMALIZED or whole == stream == text.encode().hex(), (text, whole, stream)


def main():
    with tempfile.TemporaryDirectory() as folder:
        skip = None
        try:
            v.unpack(folder)
        except fetch.CannotBeHad as e:
            skip = e
        v.run_cases(v.KINDS, lambda kind: check(kind, folder), skip)


main()
