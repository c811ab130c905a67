#!/usr/bin/env python3
"""Ids of random and nasty texts with the vocabularies of real models, against Hugging Face's tokenizers, for which
tools/gguf_tokenizer.py spells the GGUF files' vocabularies as tokenizer.json.

usage: test_random_texts.py TOKENIZER_IDS SOURCE_ROOT      prints TAP
GRAFT_TEST_TEXTS: texts a kind, and as many words of its vocabulary, else 1,000
GRAFT_TEST_SEED: of other texts; GRAFT_TEST_ONLY: one kind
"""
import json
import os
import sys
import tempfile
import unicodedata
import zipfile

import vocabularies as v
from texts import Texts
from vocabularies import fetch, gguf_tokenizer

N_TEXT = int(os.environ.get("GRAFT_TEST_TEXTS", "1000"))
SEED = int(os.environ.get("GRAFT_TEST_SEED", "1"))
ONLY = os.environ.get("GRAFT_TEST_ONLY", "")
SMOLLM2 = "smollm2"
KINDS = [k for k in (*v.KINDS, SMOLLM2) if ONLY in k]


def path_of(folder, kind):
    return fetch.path_of(kind) if kind == SMOLLM2 else v.path_of(folder, kind)


def json_of(folder, kind):
    path = os.path.join(folder, kind + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(gguf_tokenizer.tokenizer_json(gguf_tokenizer.fields(path_of(folder, kind))), f)
    return path


def normal_alike(kind, hf, text):
    """The library's normal forms have the combining classes of Unicode 9: marks that are newer stay where they are."""
    return kind not in v.NORMALIZED or hf.normalizer.normalize_str(text) == unicodedata.normalize("NFC", text)


def texts_of(kind, hf):
    added = [t.content for t in hf.get_added_tokens_decoder().values()]
    words = [hf.decode([i], skip_special_tokens=False) for i in range(hf.get_vocab_size())]
    words = [w for w in words if w != "" and "\ufffd" not in w]
    texts = Texts(SEED, words, added)
    mixed = [texts.text() for _ in range(N_TEXT)]
    return [t for t in mixed if normal_alike(kind, hf, t)] + texts.r.sample(words, min(len(words), N_TEXT))


def differs(text, want, want_back, got, back):
    """The library spells an added token with letters such as u-umlaut by bytes; its own text is right there."""
    return want != got or back not in (want_back, text)


def check(kind, folder, tokenizer_class):
    path = json_of(folder, kind)
    hf = tokenizer_class.from_file(path)
    texts = texts_of(kind, hf)
    ids = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
    back = hf.decode_batch(ids, skip_special_tokens=False)
    wrong = []
    for form in (path_of(folder, kind), path):
        got = [(ours, bytes.fromhex(whole).decode(errors="replace")) for ours, whole, _ in v.answers(form, texts)]
        cases = [(*case[:3], *case[3]) for case in zip(texts, ids, back, got, strict=True)]
        wrong += [(form.rsplit(".", 1)[-1], *case) for case in cases if differs(*case)]
    assert not wrong, f"{len(wrong)} of {2 * len(texts)} texts, the shortest: {min(wrong, key=lambda w: len(w[1]))}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        skip, found = None, [None]
        try:
            v.unpack(folder)
            fetch.path_of(SMOLLM2)
            zipfile.ZipFile(fetch.path_of("tokenizers")).extractall(os.path.join(folder, "hf"))
            sys.path.insert(0, os.path.join(folder, "hf"))
            from tokenizers import Tokenizer  # pylint: disable=import-outside-toplevel
            found[0] = Tokenizer
        except (fetch.CannotBeHad, ImportError) as e:  # the package is one for x86-64
            skip = e
        v.run_cases(KINDS, lambda kind: check(kind, folder, found[0]), skip)


main()
