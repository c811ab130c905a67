"""Vocabularies of real models in GGUF files without weights, as the source package of llama-cpp-python carries them, and what
graft makes of texts with one.

Kinds that graft does not claim: bert-bge, falcon and gemma-4.
"""
import json
import os
import subprocess
import sys
import tarfile

IDS, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # noqa: E402
import gguf_tokenizer  # noqa: E402

KINDS = ("command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
         "qwen35", "refact", "starcoder")
NORMALIZED = ("command-r", "mpt", "qwen2")  # texts do not come back byte for byte


def unpack(folder):
    """Raises fetch.CannotBeHad."""
    with tarfile.open(fetch.path_of("vocabularies")) as tar:
        for m in tar:
            name = m.name.rsplit("/", 1)[-1]
            if name.startswith("ggml-vocab-") and m.isfile():
                with open(os.path.join(folder, name), "wb") as out:
                    out.write(tar.extractfile(m).read())


def path_of(folder, kind):
    return os.path.join(folder, f"ggml-vocab-{kind}.gguf")


def as_json(gguf):
    """A tokenizer.json of the same vocabulary; its steps are spelled by tools/gguf_tokenizer.py."""
    path = gguf + ".json"
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as f:
            json.dump(gguf_tokenizer.tokenizer_json(gguf_tokenizer.fields(gguf)), f)
    return path


def answers(path, texts, *flags):
    """For each text its ids, what they decode to, and the same from the incremental detokenizer; bytes as hex digits."""
    lines = "".join(t.encode().hex() + "\n" for t in texts)
    done = subprocess.run([IDS, path, *flags], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    got = [json.loads(x) for x in done.stdout.splitlines()]
    assert len(got) == len(texts)
    return got


def run_cases(names, check, skip=None):
    """TAP: check(name) for each; skip: why none can be had."""
    print(f"1..{len(names)}")
    failed = False
    for i, name in enumerate(names, 1):
        if skip is not None:
            print(f"ok {i} - {name} # SKIP {skip}")
            continue
        try:
            check(name)
            print(f"ok {i} - {name}", flush=True)
        except AssertionError as e:
            failed = True
            print(f"not ok {i} - {name}\n# {e}", flush=True)
    sys.exit(failed)
