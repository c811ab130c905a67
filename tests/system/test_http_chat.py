#!/usr/bin/env python3
"""What a conversation becomes over HTTP, against Jinja2's rendering of the models' own templates as transformers does it: the
same ids as of that text. Skipped where tests/chat/test_templates.py is: its templates, conversations and texts are used.

usage: test_http_chat.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import os
import shutil
import sys
import tempfile

from endpoint import Endpoint
from harness import ROOT, TARGET, Skip, case, main

sys.path.insert(0, os.path.join(ROOT, "tests/chat"))
import test_templates as known  # noqa: E402

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"  # of the demo model, whose vocabulary has no others of a template than Llama 3's
DATE = "26 Jul 2024"  # docs/chat.md: whatever day it is
N_TALK = 60  # of each template, evenly out of all


def all_templates():
    why, found = known.unavailable()
    if why:
        raise Skip(why)
    return {where: found[where] for where in known.KNOWN}


def served(folder, text):
    """A server of the demo model's tokenizer with this template; conversations need no worker to become ids."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(TARGET, name), folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(text)
    return Endpoint("--model", folder, spawn=False)


def messages_of(talk, in_parts=False):
    if in_parts:
        return [{"role": r, "content": [{"type": "text", "text": t[:2]}, {"type": "text", "text": t[2:]}]} for r, t in talk]
    return [{"role": r, "content": t} for r, t in talk]


def check(s, template, talk, thinking, goes_on=False):
    """Is it rendered by both, to the same ids? None: both refuse it, or graft alone does, as it may."""
    kwargs = {} if thinking is None else {"enable_thinking": thinking}
    render = known.rendered_open if goes_on else known.rendered
    want = render(template, talk, bos_token=BOS, eos_token=EOS, date_string=DATE, **kwargs)
    body = {"chat_template_kwargs": kwargs, **({"continue_final_message": True, "add_generation_prompt": False} if goes_on else {})}
    got, answer, _ = s.ask("POST", "/tokenize", dict(body, messages=messages_of(talk)))
    if got == 400 and answer["error"]["param"] == "messages" and (want is None or not known.sense(talk)):
        return None
    assert got == 200 and want is not None, (talk, want, answer)
    ids = s.post("/tokenize", {"prompt": want, "add_special_tokens": False})["tokens"] if want else []
    assert answer["tokens"] == ids, (talk, want, answer)
    assert s.post("/tokenize", dict(body, messages=messages_of(talk, True)))["tokens"] == ids, talk
    return ids


@case
def conversations_are_what_transformers_makes_of_them():
    for where, text in all_templates().items():
        template = known.environment().from_string(text)
        thoughts = (None, False) if known.KNOWN[where] in ("qwen3", "smollm3") else (None,)
        with tempfile.TemporaryDirectory() as folder, served(folder, text) as s:
            for thinking in thoughts:
                talks = known.TALKS[::len(known.TALKS) // N_TALK]
                n = sum(check(s, template, talk, thinking) is not None for talk in talks)
                assert n >= N_TALK // 4, (where, n)
                m = sum(check(s, template, [*talk, ("assistant", "It is ")], thinking, goes_on=True) is not None for talk in talks)
                assert m >= 4, (where, m)
                print(f"# {known.KNOWN[where]}: {n} of {len(talks)} conversations, {m} left open", flush=True)


@case
def an_open_message_goes_on():
    """The answer is what the model says after the message, which is not told again; what makes no sense is refused."""
    ask = [{"role": "user", "content": "def add(a, b):"}]
    with Endpoint("--chat-template", "llama3", draft=False) as s:
        more = {"continue_final_message": True, "add_generation_prompt": False}
        body = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
        messages = [*ask, {"role": "assistant", "content": "    return a"}]
        ids = s.post("/tokenize", {"messages": messages, **more})["tokens"]
        want = s.post("/v1/completions", dict(body, prompt=ids))["choices"][0]["text"]
        got = s.post("/v1/chat/completions", dict(body, messages=messages, **more))
        assert got["choices"][0]["message"]["content"] == want and got["usage"]["prompt_tokens"] == len(ids), (got, want)
        closed = s.post("/tokenize", {"messages": messages})["tokens"]
        assert closed[:len(ids)] == ids and len(closed) > len(ids), (ids, closed)
        for messages, more, param in ((ask, {"continue_final_message": True}, "continue_final_message"),
                                      (messages, {"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
                                      (messages, {"add_generation_prompt": False}, "add_generation_prompt")):
            error = s.post("/v1/chat/completions", dict(body, messages=messages, **more), status=400)["error"]
            assert error["param"] == param, error


if __name__ == "__main__":
    raise SystemExit(main())
