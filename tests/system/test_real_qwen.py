"""Another real model: Qwen2.5-Coder-0.5B-Instruct from a GGUF file of four quantised types, with biases of q, k and v.
Greedy ids must be those of llama.cpp with the same weights requantised to F32 (tests/golden/qwen2.5-coder-0.5b.json).

usage: test_real_qwen.py BUILD_DIR SOURCE_ROOT      prints TAP; all is skipped where the model cannot be had
GRAFT_TEST_LONG=1: all six prompts, 64 to 96 tokens each.
"""
import json
import os
import subprocess
import sys
import tempfile

from harness import BUILD, ROOT, SLOW, case, main, run

sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # noqa: E402

NAME = "qwen2.5-coder-0.5b"
LONG = os.environ.get("GRAFT_TEST_LONG") == "1"
with open(os.path.join(ROOT, f"tests/golden/{NAME}.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)["cases"]


def ids_of(prompt, n):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(prompt, f)
        f.flush()
        done = run("run", "--json", "--model", fetch.FILES[NAME].path, "--prompt-ids", f.name, "--max-tokens", str(n),
                   "--ignore-eos", "--dtype", "f32", "--max-model-len", "1024", timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["token_ids"]


def check(c, n):
    """Up to the end token, which the reference bans; another id only where the reference was as good as undecided."""
    want = c["greedy_ids"][:n]
    want = want[:c["eos_at"]] if c["eos_at"] is not None else want
    got = ids_of(c["prompt_ids"], len(want))
    differs = next((i for i in range(len(want)) if got[i] != want[i]), None)
    assert differs is None or c["margins"][differs] < 1e-3, (differs, got[differs], want[differs])


@case
def texts_become_the_golden_ids():
    tool = os.path.join(BUILD, "tests/tokenizers/tokenizer_ids")
    lines = "".join(c["text"].encode().hex() + "\n" for c in GOLDEN)
    done = subprocess.run([tool, fetch.FILES[NAME].path], input=lines, capture_output=True, text=True, check=True,
                          timeout=60 * SLOW)
    assert [json.loads(x)[0] for x in done.stdout.splitlines()] == [c["prompt_ids"] for c in GOLDEN]


@case
def greedy_ids_of_a_text():
    check(GOLDEN[3], 96 if LONG else 24)


@case
def greedy_ids_of_a_chat():
    check(GOLDEN[5], 96 if LONG else 24)


def greedy_ids_of_the_others():
    for c in GOLDEN[:3] + GOLDEN[4:5]:
        check(c, 96)


if LONG:
    case(greedy_ids_of_the_others)


if __name__ == "__main__":
    try:
        fetch.path_of(NAME)
    except fetch.CannotBeHad as e:
        print(f"1..0 # SKIP {NAME} cannot be had: {e}")
    else:
        sys.exit(main())
