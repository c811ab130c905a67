"""A real model: SmolLM2-135M-Instruct from its GGUF file, from a bf16 and from an f32 folder of the same values. Greedy ids
must be those of transformers (tests/golden/smollm2.json), the fingerprints one.

usage: test_real_model.py BUILD_DIR SOURCE_ROOT      prints TAP; all is skipped where the model cannot be had
GRAFT_TEST_LONG=1: all ten prompts, 160 tokens each.
"""
import hashlib
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import smollm2
from harness import BUILD, ROOT, SLOW, case, main, run
from served import Serve

sys.path.insert(0, os.path.join(ROOT, "tools"))
import gguf_tokenizer  # noqa: E402

LONG = os.environ.get("GRAFT_TEST_LONG") == "1"
N_TOKEN = 160 if LONG else 24
HEAD = os.path.join(ROOT, "models/smollm2-eagle3")
CHAIN_OF_4, CHAIN_OF_6 = (("--num-speculative-tokens", n, "--tree-shape", "chain") for n in ("4", "6"))
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "tie_word_embeddings": True, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu",
}
# The two spellings of transformers 4 and 5.
OLD = {"rope_theta": 100000.0, "rope_scaling": None, "torch_dtype": "bfloat16"}
NEW = {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, "dtype": "float32"}
with open(os.path.join(ROOT, "tests/golden/smollm2.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)["cases"]
WORK = tempfile.TemporaryDirectory(prefix="graft-test-")


def folder(form):
    """Made once: a folder without a tokenizer, its weights a link as a hub's cache has them."""
    path = os.path.join(WORK.name, form)
    if not os.path.isdir(path):
        os.makedirs(os.path.join(WORK.name, "blobs"), exist_ok=True)
        os.mkdir(path)
        blob = os.path.join(WORK.name, "blobs", form)
        tool = os.path.join(BUILD, "tests/system/model_folder")
        subprocess.run([tool, smollm2.GGUF, blob, form], check=True, timeout=120 * SLOW)
        os.symlink(blob, os.path.join(path, "model.safetensors"))
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(CONFIG, **(OLD if form == "bf16" else NEW)), f)
    return path


def ids_of(model, prompt, n, *args):
    with tempfile.NamedTemporaryFile("w", suffix=".json", dir=WORK.name) as f:
        json.dump(prompt, f)
        f.flush()
        done = run("run", "--json", "--model", model, "--prompt-ids", f.name, "--max-tokens", str(n), "--ignore-eos",
                   *args, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["token_ids"]


def check_ids(c, got):
    want = c["greedy_ids"][:N_TOKEN]
    differs = next((i for i in range(N_TOKEN) if got[i] != want[i]), None)
    assert differs is None or differs in c["close"], (c["name"], differs, got[differs], want[differs])


def check_golden(model, *args):
    for c in GOLDEN if LONG else GOLDEN[:2]:
        check_ids(c, ids_of(model, c["prompt_ids"], N_TOKEN, *args))


@case
def from_gguf():
    check_golden(smollm2.GGUF)


@case
def from_a_bf16_folder():
    check_golden(folder("bf16"))


@case
def from_an_f32_folder():
    check_golden(folder("f32"))


@case
def held_as_f32():
    check_golden(folder("bf16"), "--dtype", "f32")


@case
def every_value_is_as_another_reader_makes_it():
    with open(os.path.join(folder("bf16"), "model.safetensors"), "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(n))
        head.pop("__metadata__", None)
        text = {"__metadata__": {"format": "pt"}}
        text.update((name, head[name]) for name in sorted(head))
        line = json.dumps(text, separators=(",", ":")).encode()
        line += b" " * (-len(line) % 8)
        h = hashlib.sha256(struct.pack("<Q", len(line)) + line)
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    assert h.hexdigest() == smollm2.BF16_SHA


def answer(model, text, n, *args):
    """The whole of --json."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", dir=WORK.name, encoding="utf-8") as f:
        f.write(text)
        f.flush()
        done = run("run", "--json", "--model", model, "--prompt-file", f.name, "--max-tokens", str(n), *args, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def folder_with_tokenizer():
    """Its tokenizer.json is written by another reader of the GGUF file, with the pre-tokenizer spelled there."""
    path = os.path.join(WORK.name, "text")
    if not os.path.isdir(path):
        shutil.copytree(folder("bf16"), path, symlinks=True)
        with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(gguf_tokenizer.tokenizer_json(gguf_tokenizer.fields(smollm2.GGUF)), f)
        with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"eos_token": "<|im_end|>"}, f)
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
            json.dump(dict(CONFIG, **OLD, eos_token_id=None), f)
    return path


def ids_by(model, texts):
    tool = os.path.join(BUILD, "tests/tokenizers/tokenizer_ids")
    lines = "".join(t.encode().hex() + "\n" for t in texts)
    done = subprocess.run([tool, model], input=lines, capture_output=True, text=True, check=False, timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)[0] for line in done.stdout.splitlines()]


@case
def text_becomes_the_golden_ids():
    """From the GGUF file and from the folder, control tokens and all."""
    texts = [c["prompt"] for c in GOLDEN]
    for file in (smollm2.GGUF, os.path.join(folder_with_tokenizer(), "tokenizer.json")):
        assert ids_by(file, texts) == [c["prompt_ids"] for c in GOLDEN], file


@case
def a_text_gives_the_golden_answer_and_ends():
    """Until its end token, which the GGUF file's metadata name, in the folder tokenizer_config.json alone."""
    c = GOLDEN[0]
    end = c["greedy_ids"].index(2)
    for model in (smollm2.GGUF, folder_with_tokenizer()):
        got = answer(model, c["prompt"], end + 20)
        assert got["token_ids"] == c["greedy_ids"][:end + 1], got
        assert got["finish_reason"] == "stop" and got["metrics"]["prompt_tokens"] == len(c["prompt_ids"]), got
        assert got["text"].startswith("Portugal is a country in Europe") and got["text"].endswith("Iberian Peninsula.")


def messages_of(prompt):
    """Of a rendered golden prompt, without the template's default."""
    found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", prompt, re.S)
    return found[1:] if found[0][1].endswith("named SmolLM, trained by Hugging Face") else found


@case
def conversations_become_the_golden_prompts():
    tool = os.path.join(BUILD, "tests/chat/chat_render")
    lines = "".join(json.dumps({"template": "smollm2", "messages": messages_of(c["prompt"])}) + "\n" for c in GOLDEN)
    done = subprocess.run([tool], input=lines, capture_output=True, text=True, check=True, timeout=60 * SLOW)
    assert [json.loads(x)["text"] for x in done.stdout.splitlines()] == [c["prompt"] for c in GOLDEN]
    assert max(len(messages_of(c["prompt"])) for c in GOLDEN) == 3


@case
def a_question_gives_the_golden_answer():
    """The template is found in the GGUF file's metadata, and by name for a folder that has none."""
    for model, more in ((smollm2.GGUF, ()), (folder_with_tokenizer(), ("--chat-template", "smollm2"))):
        for c in GOLDEN if LONG else GOLDEN[:2]:
            said = dict(messages_of(c["prompt"]))
            if "assistant" in said:
                continue
            system = ("--system", said["system"]) if "system" in said else ()
            got = answer(model, said["user"], N_TOKEN, "--chat", "--ignore-eos", *system, *more)
            assert got["metrics"]["prompt_tokens"] == len(c["prompt_ids"]), (c["name"], got)
            check_ids(c, got["token_ids"])
    end = GOLDEN[0]["greedy_ids"].index(2)
    got = answer(smollm2.GGUF, dict(messages_of(GOLDEN[0]["prompt"]))["user"], end + 20, "--chat")
    assert got["token_ids"] == GOLDEN[0]["greedy_ids"][:end + 1] and got["finish_reason"] == "stop", got


@case
def text_with_a_draft_of_the_other_kind():
    """The tokenizers of both are one, by their fingerprints: else the pair would be refused."""
    c = GOLDEN[0]
    for model, draft in ((smollm2.GGUF, folder_with_tokenizer()), (folder_with_tokenizer(), smollm2.GGUF),
                         (smollm2.GGUF, smollm2.GGUF)):
        got = answer(model, c["prompt"], 16, "--draft", draft, *CHAIN_OF_4)
        assert got["token_ids"] == c["greedy_ids"][:16] and got["metrics"]["num_accepted_tokens"] >= 8, got


def tree_of(n):
    return "--num-speculative-tokens", n


def acceptance(*tree):
    """Of all prompts together, and every text is the golden one."""
    accepted = drafts = 0
    for c in GOLDEN if LONG else GOLDEN[:2]:
        got = answer(smollm2.GGUF, c["prompt"], N_TOKEN, "--ignore-eos", "--draft", HEAD, *tree)
        assert got["token_ids"] == c["greedy_ids"][:N_TOKEN], c["name"]
        accepted += got["metrics"]["num_accepted_tokens"]
        drafts += got["metrics"]["num_drafts"]
    return 1 + accepted / drafts


@case
def states_of_model_and_head_are_the_golden_ones():
    """Logits, captured states, fused features, the head's logits and its chains; every 61st value of each."""
    done = subprocess.run([os.path.join(BUILD, "tests/system/model_states"), smollm2.GGUF, HEAD,
                           os.path.join(ROOT, "tests/golden/smollm2.json"), "61",
                           os.path.join(ROOT, "tests/golden/smollm2-states.safetensors")],
                          capture_output=True, text=True, check=False, timeout=120 * SLOW)
    assert done.returncode == 0 and "24 compared, 0 wrong" in done.stdout, done.stdout + done.stderr


@case
def its_head_drafts_for_the_gguf_file():
    """What it was measured to accept on all ten prompts; in the short form that it accepts much."""
    trees = ((CHAIN_OF_6, 2.55), (tree_of("15"), 3.22), (tree_of("31"), 3.58), (tree_of("63"), 3.87))
    for tree, measured in trees if LONG else trees[::3]:
        got = acceptance(*tree)
        assert abs(got / measured - 1) <= 0.03 if LONG else got > 2, (tree, got)


def check_one_text(c, sampled, trees, transports):
    """With its head and with the model as its own draft."""
    told = (*sampled, "--ignore-eos")
    want = answer(smollm2.GGUF, c["prompt"], N_TOKEN, *told)["token_ids"]
    for transport, n, draft in itertools.product(transports, trees, (HEAD, smollm2.GGUF)):
        got = answer(smollm2.GGUF, c["prompt"], N_TOKEN, *told, "--draft", draft, "--transport", transport, *tree_of(n))
        assert got["token_ids"] == want and got["metrics"]["num_drafts"] > 0, (sampled, transport, n, draft)


@case
def one_text_whatever_drafts():
    """All transports, trees and temperatures in the long form."""
    trees, transports = (("1", "3", "15", "63"), ("shm", "tcp", "loop")) if LONG else (("15",), ("shm", "tcp"))
    each = ((GOLDEN[0], "0"), (GOLDEN[1], "0.7"), (GOLDEN[2], "1"))
    for c, temperature in each if LONG else each[-1:]:
        check_one_text(c, ("--temperature", temperature, "--seed", "7"), trees, transports)


@case
def bad_words_of_several_tokens_never_come():
    """Pitfall H5: after a newline each word is two or three tokens, after a blank one; both are what the text goes on with."""
    words = ("Lisbon", "Portugal")
    told = (" ".join(words) + "\n" + "\n".join(words) + "\n") * 6
    for text in (" " + words[0], words[0], " " + words[1], words[1]):
        assert len(ids_by(smollm2.GGUF, [text])[0]) == (1 if text[0] == " " else 3), text
    banned = [x for word in words for x in ("--bad-words", word)]
    free = answer(smollm2.GGUF, told, 60, "--ignore-eos")
    assert all(free["text"].count(word) >= 5 for word in words), free["text"]
    n = 400 if LONG else 100
    plain = answer(smollm2.GGUF, told, n, "--ignore-eos", *banned)
    assert not any(word in plain["text"] for word in words), plain["text"]
    got = answer(smollm2.GGUF, told, n, "--ignore-eos", *banned, "--draft", HEAD, *tree_of("15"))
    assert got["token_ids"] == plain["token_ids"] and got["metrics"]["num_drafts"] > 0


@case
def a_served_session_takes_text():
    told = ("--json", "--model", smollm2.GGUF, "--max-tokens", "5")
    with Serve("--spawn", "--model", smollm2.GGUF, spawn=False) as server:
        server.wait()
        first = json.loads(server.graft("run", *told, "--keep", "--prompt", "The capital of France is").stdout)
        assert first["text"].startswith(" Paris"), first
        second = json.loads(server.graft("session", "send", first["session"], *told, "--prompt", " It is not").stdout)
        whole = ids_by(smollm2.GGUF, ["The capital of France is"])[0] + first["token_ids"]
        whole += ids_by(smollm2.GGUF, [" It is not"])[0]
        assert second["token_ids"] == ids_of(smollm2.GGUF, whole, 5), second


@case
def it_is_there_within_a_second_and_a_half():
    """From a warm file cache until the first token: tokenizer, weights and what is measured at the start. Of all its
    processes and threads together, in CPU time, as other work on the machine is not its own. What shares its cores and
    caches makes that longer, so one start of ten has to be as short."""
    def seconds():
        begin = sum(os.times()[2:4])
        answer(smollm2.GGUF, "The", 1)
        return sum(os.times()[2:4]) - begin
    took = []
    while len(took) < 10 and not any(s < 2 * SLOW for s in took):
        took.append(seconds())
    assert min(took) < 2 * SLOW, took  # 1.3 on a machine of its own


@case
def ids_alone_are_shown_without_a_tokenizer():
    model = folder("bf16")
    prompt = os.path.join(WORK.name, "prompt.json")
    with open(prompt, "w", encoding="utf-8") as f:
        json.dump(GOLDEN[0]["prompt_ids"], f)
    done = run("run", "--model", model, "--prompt-ids", prompt, "--max-tokens", "5", "--ignore-eos", timeout=120)
    assert done.returncode == 0, done.stderr
    assert [int(x) for x in done.stdout.split()] == GOLDEN[0]["greedy_ids"][:5], done.stdout
    done = run("run", "--model", model, "--prompt", "Hello")
    assert done.returncode == 1 and "--prompt-ids" in done.stderr and done.stderr.count("\n") == 1, done.stderr


@case
def one_fingerprint_whatever_the_files():
    tool = os.path.join(BUILD, "tests/system/model_folder")
    seen = {subprocess.run([tool, path], check=True, timeout=120 * SLOW, capture_output=True, text=True).stdout
            for path in (smollm2.GGUF, folder("bf16"), folder("f32"))}
    assert len(seen) == 1 and len(seen.pop()) == 17, seen


@case
def a_gguf_file_drafts_for_a_folder():
    """Its drafts are the folder's own words, and the log says what the weights cost."""
    prompt = os.path.join(WORK.name, "short.json")
    with open(prompt, "w", encoding="utf-8") as f:
        json.dump(GOLDEN[0]["prompt_ids"], f)
    done = run("run", "--json", "--model", folder("f32"), "--draft", smollm2.GGUF, "--prompt-ids", prompt, "--max-tokens",
               "24", "--ignore-eos", "--num-speculative-tokens", "4", "--tree-shape", "chain", "--log-level", "info",
               timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == GOLDEN[0]["greedy_ids"][:24]
    assert re.search(r"target: info: .*matrices as bf16 \(\d+\.\d MB\)", done.stderr), done.stderr


if __name__ == "__main__":
    reason = smollm2.unavailable()
    if reason is not None:
        print(f"1..0 # SKIP SmolLM2 cannot be had: {reason}")
    else:
        sys.exit(main())
