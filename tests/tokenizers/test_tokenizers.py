#!/usr/bin/env python3
"""Ids of the vocabularies that llama.cpp's source carries, against the ids beside them. They come from the source package
of llama-cpp-python, which tools/fetch.py brings.

usage: test_tokenizers.py TOKENIZER_IDS SOURCE_ROOT      prints TAP

Kinds that graft does not claim: bert-bge, falcon and gemma-4.
"""
import json
import os
import subprocess
import sys
import tarfile
import tempfile

IDS, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # noqa: E402
import gguf_tokenizer  # noqa: E402

KINDS = ("command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
         "qwen35", "refact", "starcoder")
NO_JSON = ("deepseek-llm",)  # its pattern stands in graft only


def unpack(path, folder):
    with tarfile.open(path) as tar:
        for m in tar:
            name = m.name.rsplit("/", 1)[-1]
            if name.startswith("ggml-vocab-") and m.isfile():
                with open(os.path.join(folder, name), "wb") as out:
                    out.write(tar.extractfile(m).read())


def answers(path, texts):
    lines = "".join(t.encode().hex() + "\n" for t in texts)
    done = subprocess.run([IDS, path, "no-special"], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(x) for x in done.stdout.splitlines()]


def as_json(gguf):
    path = gguf + ".json"
    with open(path, "w", encoding="utf-8") as f:
        json.dump(gguf_tokenizer.tokenizer_json(gguf_tokenizer.fields(gguf)), f)
    return path


def check(kind, folder):
    gguf = os.path.join(folder, f"ggml-vocab-{kind}.gguf")
    with open(gguf + ".inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    with open(gguf + ".out", encoding="utf-8") as f:
        want = [[int(x) for x in line.split()] for line in f.read().split("\n")]
    assert len(texts) >= 40
    forms = [gguf] + ([] if kind in NO_JSON else [as_json(gguf)])
    for form in forms:
        got = answers(form, texts)
        assert len(got) == len(texts)
        for text, ids, (ours, whole, stream) in zip(texts, want, got):
            assert ours == ids, (text, ours, ids)
            normalized = kind in ("command-r", "mpt", "qwen2")
            assert normalized or whole == stream == text.encode().hex(), (text, whole, stream)


def main():
    print(f"1..{len(KINDS)}")
    try:
        path = fetch.path_of("vocabularies")
    except fetch.CannotBeHad as e:
        for i, kind in enumerate(KINDS):
            print(f"ok {i + 1} - {kind} # SKIP {e}")
        return
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, folder)
        for i, kind in enumerate(KINDS):
            try:
                check(kind, folder)
                print(f"ok {i + 1} - {kind}")
            except AssertionError as e:
                failed = True
                print(f"not ok {i + 1} - {kind}\n# {e}")
    sys.exit(failed)


main()
