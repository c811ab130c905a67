#!/usr/bin/env python3
"""Chat templates against Jinja2's rendering of the models' own: byte for byte, over conversations with and without a
system message, of several turns, with empty, padded and non-ASCII messages, with special tokens in what a user says.

usage: test_templates.py CHAT_RENDER SOURCE_ROOT      prints TAP

The templates are those that llama.cpp's source carries (models/templates, tests/test-chat-template.cpp) and SmolLM2's
GGUF file; tools/fetch.py brings both. Nothing of them is kept.
"""
import ast
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tarfile

RENDER, ROOT = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tools"))
import fetch  # noqa: E402
import gguf_tokenizer  # noqa: E402

FOLDER, PROGRAM = "/models/templates/", "/tests/test-chat-template.cpp"
# Where a template comes from: the name that graft must give it.
KNOWN = {
    "Qwen-Qwen2.5-7B-Instruct.jinja": "qwen2.5",
    "Qwen-Qwen3-0.6B.jinja": "qwen3",
    "HuggingFaceTB-SmolLM3-3B.jinja": "smollm3",
    "meta-llama-Llama-3.1-8B-Instruct.jinja": "llama3.1",
    "meta-llama-Llama-3.2-3B-Instruct.jinja": "llama3.1",
    "meta-llama-Llama-3.3-70B-Instruct.jinja": "llama3.1",
    "google-gemma-2-2b-it.jinja": "gemma",
    "mistralai-Mistral-Nemo-Instruct-2407.jinja": "mistral-v3-tekken",
    "teknium/OpenHermes-2.5-Mistral-7B": "chatml",
    "Llama-3": "llama3",
    "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)": "mistral",
    "mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)": "mistral-v1",
    "Mistral-Large-Instruct-2407 (mistralai 'v3' template; modified to have system prompt at start)": "mistral-v3",
    "Mistral-Nemo-Instruct-2407 (mistralai 'v3-tekken' template; modified to have system prompt at start)":
        "mistral-v3-tekken",
    "mistralai/Mistral-Large-Instruct-2411 (mistralai 'v7' template)": "mistral-v7",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2",
}
TOKENS = {"llama3": ("<|begin_of_text|>", "<|eot_id|>"), "llama3.1": ("<|begin_of_text|>", "<|eot_id|>"),
          "gemma": ("<bos>", "<eos>")}
DATE = "07 Mar 2025"
ROLES = {"s": "system", "u": "user", "a": "assistant"}
TURNS = ("u", "su", "uau", "suau", "uauau", "suauau", "ua", "sua", "s", "usu", "uu", "au", "ssu", "uauauau")
TEXTS = ("Hello", "", "  two  blanks ", "\n\nnewlines\n\n", "\u3000Zürich 東京 🙂\u00a0",
         "<|im_end|>\n<|im_start|>system\n</s><s>[INST] <eos>", "a\x1cb\x1c", " \n ", "/no_think be brief /think now",
         "<think>\nhm\n</think>\n\nyes", "<think>\n\n</think>\n\n\nyes", "x</think>\n",
         "<tool_response>x</tool_response>")


def templates():
    """Where each comes from, and its text."""
    found = {}
    with tarfile.open(fetch.path_of("vocabularies")) as tar:
        for m in tar:
            if FOLDER in m.name and m.name.endswith(".jinja"):
                found[os.path.basename(m.name)] = tar.extractfile(m).read().decode()
            elif m.name.endswith(PROGRAM):
                found.update(of_program(tar.extractfile(m).read().decode()))
    gguf = fetch.path_of("smollm2")
    found[os.path.basename(gguf)] = gguf_tokenizer.Reader(gguf).fields["tokenizer.chat_template"]
    return found


def of_program(source):
    """The texts in the program's table, whose rows have a name and, as C strings, a text."""
    string = r'"((?:[^"\\]|\\.)*)"'
    row = r"/\* \.name= \*/ " + string + r".*?/\* \.template_str=? ?\*/ ?((?:" + string + r"\s*)+)"

    def text(c):
        return ast.literal_eval('"' + c.replace("\n", "\\n") + '"')
    return {text(m.group(1)): "".join(text(x) for x in re.findall(string, m.group(2)))
            for m in re.finditer(row, source, re.S)}


def conversations():
    rng = random.Random(5)
    for turns in TURNS:
        for text in TEXTS:
            yield [(ROLES[t], text) for t in turns]
        for _ in range(20):
            yield [(ROLES[t], rng.choice(TEXTS)) for t in turns]


TALKS = list(conversations())


def ask(questions):
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run([RENDER], input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-400:]
    return [json.loads(x) for x in done.stdout.splitlines()]


def environment():
    """As transformers sets it up."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(why):
        raise ValueError(why)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = raise_exception
    return env


def rendered(template, talk, **more):
    """As transformers' apply_chat_template() does it. None: the template refuses it."""
    more = dict({"date_string": DATE, "add_generation_prompt": True, "tools": None}, **more)
    try:
        return template.render(messages=[{"role": r, "content": c} for r, c in talk], **more)
    except ValueError:
        return None


def rendered_open(template, talk, **more):
    """The same with continue_final_message: what stands before a mark at the end of the last message; where the template
    strips that end, it is stripped here as well."""
    tag = "CONTINUE_FINAL_MESSAGE_TAG "
    role, text = talk[-1]
    whole = rendered(template, [*talk[:-1], (role, text + tag)], add_generation_prompt=False, **more)
    if whole is None:
        return None
    at = whole.rindex(tag.strip())
    return whole[:at] if whole[at:at + len(tag)] == tag else whole[:at].rstrip()


def sense(talk):
    """Is the system first, if there is one? graft refuses others where turns are to alternate, and some texts do not."""
    return all(role != "system" for role, _ in talk[1:])


def check_open(text, name, thinking):
    """Conversations whose last message, the assistant's, goes on."""
    template = environment().from_string(text)
    bos, eos = TOKENS.get(name, ("<s>", "</s>"))
    more = {} if thinking is None else {"enable_thinking": thinking}
    talks = [t for t in TALKS if t[-1][0] == "assistant"] + [[*t, ("assistant", x)] for t in TALKS[::7] for x in TEXTS]
    asked = [{"jinja": text, "messages": t, "bos": bos, "eos": eos, "date": DATE, "thinking": thinking is not False,
              "goes_on": True} for t in talks]
    n = 0
    for talk, got in zip(talks, ask(asked)):
        want = rendered_open(template, talk, bos_token=bos, eos_token=eos, **more)
        if want is not None and got.get("refused") and not sense(talk):
            continue
        assert got.get("text") == want, (talk, want, got.get("text"))
        n += want is not None
    assert n >= 100, f"only {n} conversations were rendered"
    refused = ask([dict(q, messages=[*q["messages"], ["user", "x"]]) for q in asked[:20]])
    assert all(a.get("refused") for a in refused), refused


def check(text, name, thinking):
    template = environment().from_string(text)
    bos, eos = TOKENS.get(name, ("<s>", "</s>"))
    more = {} if thinking is None else {"enable_thinking": thinking}
    asked = [{"jinja": text, "messages": t, "bos": bos, "eos": eos, "date": DATE, "thinking": thinking is not False}
             for t in TALKS]
    n = 0
    for talk, got in zip(TALKS, ask(asked)):
        want = rendered(template, talk, bos_token=bos, eos_token=eos, **more)
        if want is not None and got.get("refused") and not sense(talk):
            continue
        assert got.get("text") == want, (talk, want, got.get("text"))
        n += want is not None
        marked = [] if want is None else [want.encode()[b:e].decode() for b, e in got["plain"]]
        assert all(any(piece in said.replace("/no_think", "").replace("/think", "") for _, said in talk) or
                   any(piece in said for _, said in talk) for piece in marked), (talk, marked)
    assert n >= 100, f"only {n} conversations were rendered"


def checks(found):
    for where, name in KNOWN.items():
        for thinking in ((None, True, False) if name in ("qwen3", "smollm3") else (None,)):
            said = "" if thinking is None else f", thinking {'on' if thinking else 'off'}"
            yield f"{name}: {where}{said}", lambda w=where, n=name, t=thinking: check(found[w], n, t)
            yield f"{name} open: {where}{said}", lambda w=where, n=name, t=thinking: check_open(found[w], n, t)


def names(found):
    """Those that are to be known are, under their names, and no other is."""
    asked = [{"jinja": text} for text in found.values()]
    got = {where: a["name"] for where, a in zip(found, ask(asked)) if a["name"] is not None}
    assert got == KNOWN, set(got.items()) ^ set(KNOWN.items())


def unavailable():
    if importlib.util.find_spec("jinja2") is None:
        return "there is no jinja2 (Debian: python3-jinja2)", None
    try:
        return None, templates()
    except fetch.CannotBeHad as e:
        return str(e), None


def main():
    why, found = unavailable()
    if why is not None:
        print(f"1..0 # SKIP {why}")
        return
    todo = [("fingerprints", lambda: names(found)), *checks(found)]
    failed = False
    print(f"1..{len(todo)}")
    for i, (name, run) in enumerate(todo, 1):
        try:
            run()
            print(f"ok {i} - {name}")
        except AssertionError as e:
            failed = True
            print(f"not ok {i} - {name}\n# {str(e)[:2000]}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
