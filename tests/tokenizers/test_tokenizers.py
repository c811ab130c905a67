#!/usr/bin/env python3
"""Ids of the vocabularies that llama.cpp's source carries, against the ids beside them. They come from the source package
of llama-cpp-python, pinned by its sha256, of which nothing is run.

usage: test_tokenizers.py TOKENIZER_IDS SOURCE_ROOT      prints TAP

GRAFT_TEST_VOCABS names the package's file where it is there already. Kinds that graft does not claim: bert-bge, falcon
and gemma-4.
"""
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

IDS, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tools"))
import gguf_tokenizer  # noqa: E402

FILE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INDEX = "https://pypi.org/simple/llama-cpp-python/"
KINDS = ("command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
         "qwen35", "refact", "starcoder")
NO_JSON = ("deepseek-llm",)  # its pattern stands in graft only


def package():
    """The file, fetched once into the cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.environ.get("GRAFT_TEST_VOCABS") or os.path.join(base, "graft", "pypi", FILE)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        page = urllib.request.urlopen(INDEX, timeout=60).read().decode()
        href = re.search(r'href="([^"]*/' + re.escape(FILE) + r')[#"]', page).group(1)
        with urllib.request.urlopen(urllib.parse.urljoin(INDEX, href), timeout=300) as src, \
                open(path + ".part", "wb") as out:
            while data := src.read(1 << 20):
                out.write(data)
        os.replace(path + ".part", path)
    with open(path, "rb") as f:
        got = hashlib.sha256(f.read()).hexdigest()
    if got != SHA256:
        raise ValueError(f"{path} has sha256 {got}, expected {SHA256}")
    return path


def unpack(path, folder):
    with tarfile.open(path) as tar:
        for m in tar:
            name = m.name.rsplit("/", 1)[-1]
            if name.startswith("ggml-vocab-") and m.isfile():
                with open(os.path.join(folder, name), "wb") as out:
                    out.write(tar.extractfile(m).read())


def answers(vocab, folder, texts):
    path = os.path.join(folder, "vocab.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(vocab, f)
    lines = "".join(t.encode().hex() + "\n" for t in texts)
    done = subprocess.run([IDS, path, "no-special"], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(x) for x in done.stdout.splitlines()]


def check(kind, folder):
    gguf = os.path.join(folder, f"ggml-vocab-{kind}.gguf")
    with open(gguf + ".inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    with open(gguf + ".out", encoding="utf-8") as f:
        want = [[int(x) for x in line.split()] for line in f.read().split("\n")]
    assert len(texts) >= 40
    fields = gguf_tokenizer.fields(gguf)
    forms = [fields] + ([] if kind in NO_JSON else [gguf_tokenizer.tokenizer_json(fields)])
    for form in forms:
        got = answers(form, folder, texts)
        assert len(got) == len(texts)
        for text, ids, (ours, whole, stream) in zip(texts, want, got):
            assert ours == ids, (text, ours, ids)
            normalized = kind in ("command-r", "mpt", "qwen2")
            assert normalized or whole == stream == text.encode().hex(), (text, whole, stream)


def main():
    print(f"1..{len(KINDS)}")
    try:
        path = package()
    except (OSError, AttributeError) as e:
        for i, kind in enumerate(KINDS):
            print(f"ok {i + 1} - {kind} # SKIP {FILE} cannot be had: {e}")
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
