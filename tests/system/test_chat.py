#!/usr/bin/env python3
"""`graft chat`: turns over a kept session give what each conversation gives anew; a terminal, its keys and its history.

usage: test_chat.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import termios

from harness import BUILD, DRAFT, GRAFT, SLOW, TARGET, case, children, main, run, wait_for
from served import FIXED, Serve
from terminal import Terminal

FORM = ("--model", TARGET, "--chat-template", "llama3")
ASKED = ["def add(a, b):", "  Zürich\u3000", "class Stack:", "<|eot_id|> import os"]


def ids_of(messages):
    """Of the conversation rendered anew: the template's own tokens, and text where a user spells one."""
    tool = os.path.join(BUILD, "tests/chat/chat_render")
    asked = json.dumps({"template": "llama3", "messages": messages}) + "\n"
    done = subprocess.run([tool, TARGET], input=asked, capture_output=True, text=True, check=True, timeout=20 * SLOW)
    return json.loads(done.stdout)["ids"]


def answers_anew(asked, n, system=None):
    """Each answer by a run of its own, of the whole conversation before it."""
    said = [["system", system]] if system else []
    out = []
    for text in asked:
        said.append(["user", text])
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(ids_of(said), f)
            f.flush()
            done = run("run", "--json", "--model", TARGET, "--prompt-ids", f.name, "--max-tokens", str(n),
                       "--stop", "<|eot_id|>")
        assert done.returncode == 0, done.stderr
        said.append(["assistant", json.loads(done.stdout)["text"]])
        out.append(said[-1][1])
    return out


def shown(answers):
    return "".join(a if a.endswith("\n") else a + "\n" for a in answers)


def chat(lines, *args, **kw):
    return run("chat", *FORM, *args, stdin="".join(x + "\n" for x in lines), **kw)


@case
def turns_are_those_of_the_whole_conversation():
    for args, system in (((), None), (("--draft", DRAFT, *FIXED), "Be brief.")):
        want = shown(answers_anew(ASKED, 60, system))
        done = chat(ASKED, "--max-tokens", "60", *args, *(("--system", system) if system else ()))
        assert done.returncode == 0 and done.stdout == want, (done.stdout, want, done.stderr)
        assert "new session" not in done.stderr, done.stderr


@case
def at_a_running_orchestrator():
    want = answers_anew(ASKED, 40)
    with Serve() as s:
        lead = subprocess.Popen([GRAFT, "chat", *FORM, "--max-tokens", "40"], stdin=subprocess.PIPE, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=s.env())
        out = ""
        for i, text in enumerate(ASKED):
            lead.stdin.write(text + "\n")
            lead.stdin.flush()
            while len(out) < len(shown(want[:i + 1])):
                out += lead.stdout.read(1)
            wait_for(lambda: all(x["state"] == "idle" for x in s.sessions()))
            assert len(s.sessions()) == 1, s.sessions()
            if i == 1:  # it is closed under the conversation, which goes on
                s.graft("session", "purge")
                wait_for(lambda: not s.sessions())
        rest, err = lead.communicate("/reset\n" + ASKED[0] + "\n/quit\n", timeout=30 * SLOW)
        assert lead.returncode == 0 and err.count("goes on in a new session") == 1, err
        assert out + rest == shown(want + want[:1]), (out + rest, want)
        wait_for(lambda: not s.sessions())


@case
def commands():
    done = chat(["/help", "/stats", ASKED[0], "/stats", "/reset", "/stats", "/nothing"], "--draft", DRAFT, *FIXED,
                "--max-tokens", "30")
    assert done.returncode == 0, done.stderr
    for word in ("/reset", "/quit", "/exit", "ctrl-C", "context: 0 of ", "tokens/s", "tokens a round", "mean acceptance length"):
        assert word in done.stdout, (word, done.stdout)
    n_prompt = len(ids_of([["user", ASKED[0]]]))
    assert f"context: {n_prompt + 30} of " in done.stdout, done.stdout
    assert done.stdout.count("last answer: ") == 1 and done.stdout.count("context: 0 of ") == 2, done.stdout
    assert "/nothing is no command" in done.stderr and "cut after --max-tokens 30" in done.stderr, done.stderr


@case
def two_names_of_the_end():
    for name in ("/quit", "/exit"):
        done = chat(["/stats", name, "/nothing"])
        assert done.returncode == 0 and done.stdout.count("context: ") == 1 and done.stderr == "", (name, done)


@case
def a_full_context_is_a_line():
    done = chat([ASKED[0], "more", "and more", "/reset", ASKED[0]], "--max-model-len", "64", "--max-tokens", "50")
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) >= 2, done.stderr
    assert all("/reset begins a new" in x for x in lines if "context" in x), lines
    assert any("context is full" in x for x in lines) and any("the context has 64" in x for x in lines), lines
    first = done.stdout[:20]
    assert done.stdout.count(first) == 2, done.stdout


@case
def refused_in_one_line():
    for args, word in ((("--model", TARGET), "has no chat template"),
                       (("--model", "/nowhere"), "/nowhere"),
                       ((*FORM, "--prompt", "x"), "--prompt"),
                       ((*FORM, "--session", "1"), "--session")):
        done = run("chat", *args, stdin="x\n")
        assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and word in done.stderr, done.stderr
        assert done.stdout == "", done.stdout


class ChatTerminal(Terminal):
    """`graft chat`, its state in a folder of its own."""

    def __init__(self, *args, state=None):
        self.state = state or tempfile.TemporaryDirectory()
        super().__init__("chat", *FORM, *args, env={"XDG_STATE_HOME": self.state.name})

    def edits(self):
        """Is a line being edited? Between two lines the terminal is the kernel's, which would keep a ctrl-D for itself."""
        return not termios.tcgetattr(self.lead)[3] & termios.ICANON

    def type(self, text):
        if text != "\x03":
            wait_for(self.edits)
        os.write(self.lead, text.encode())


def plain(text):
    """Without what moves the cursor, and the line that it wipes out."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x08|loading the models?", "", text)


@case
def a_conversation_at_a_terminal():
    want = answers_anew(ASKED[:2], 40)
    with ChatTerminal("--max-tokens", "40") as t:
        at = t.until("/help tells the commands.*> ")
        for text, answer in zip(ASKED, want):
            t.type(text + "\r")
            begin = at
            at = t.until("\n> $", at)
            assert shown([answer]) in plain(t.out[begin:at]), (plain(t.out[begin:at]), answer)
        t.type("/stats\r")
        at = t.until(r"last answer: \d+ new", at)
        t.type("\x04")
        assert t.end() == 0, t.out


@case
def ctrl_c_stops_the_answer_and_not_the_program():
    want = answers_anew(ASKED[:1], 1200)[0]
    with ChatTerminal("--max-tokens", "100000", "--ignore-eos") as t:
        at = t.until("> ")
        t.type("nobody wants this")
        at = t.until("wants this", at)
        t.type("\x03")
        at = t.until("\n> $", at)
        t.type(ASKED[0] + "\r")
        begin = t.until(r"\n[^\n]+\n[^\n]+\n", at)
        t.type("\x03")
        at = t.until("\n> $", begin)
        got = plain(t.out[:at]).split(ASKED[0], 1)[1].lstrip("\n").rsplit("\n> ", 1)[0].replace("^C", "")
        assert len(want) > 2000 and len(got) > 10 and want.lstrip("\n").startswith(got.rstrip("\n")[:2000]), (got[:200], want[:200])
        t.type("/stats\r")
        at = t.until("messages\n.*> $", at)
        assert "2 messages" in t.out[begin:at], t.out[begin:at]
        t.type("go on\r")
        at = t.until(r"\n.*# .{40}", at)
        t.type("\x03")
        t.until("\n> $", at)
        workers = children(t.p.pid)
        t.type("/quit\r")
        assert t.end() == 0 and workers and not children(t.p.pid), t.out


@case
def what_is_typed_during_an_answer_waits():
    """A question is asked next; ctrl-D ends the chat, after the answer, which is whole."""
    with ChatTerminal("--max-tokens", "1500", "--ignore-eos") as t:
        at = t.until("> ")
        t.type(ASKED[0] + "\r")
        at = t.until(r"\n[^\n]+\n[^\n]+\n", at)
        os.write(t.lead, b"/stats\r")
        at = t.until("cut after --max-tokens 1500.*last answer: ", at)
        at = t.until("\n> $", at)
        t.type(ASKED[2] + "\r")
        at = t.until(r"\n[^\n]+\n[^\n]+\n", at)
        os.write(t.lead, b"\x04")
        assert t.end() == 0 and "cut after --max-tokens 1500" in t.out[at:], t.out[at:]


@case
def lines_are_remembered():
    state = tempfile.TemporaryDirectory()
    path = os.path.join(state.name, "graft", "chat_history")
    with ChatTerminal("--max-tokens", "4", "--no-history", state=state) as t:
        at = t.until("> ")
        t.type("a secret\r")
        t.until("\n> $", at)
        t.type("\x04")
        assert t.end() == 0 and not os.path.exists(path), t.out
    with ChatTerminal("--max-tokens", "4", state=state) as t:
        at = t.until("> ")
        t.type("a wörd\r")
        at = t.until("\n> $", at)
        t.type("\x04")
        assert t.end() == 0, t.out
    assert os.stat(path).st_mode & 0o777 == 0o600
    with ChatTerminal("--max-tokens", "4", state=state) as t:
        at = t.until("> ")
        t.type("\x1b[A")
        at = t.until("a wörd", at)
        t.type("\r")
        at = t.until("\n> $", at)
        t.type("\x04")
        assert t.end() == 0 and "secret" not in t.out, t.out


@contextlib.contextmanager
def in_an_answer():
    """A chat in the middle of an answer that has no end."""
    with ChatTerminal("--max-tokens", "100000", "--ignore-eos") as t:
        at = t.until("> ")
        t.type(ASKED[0] + "\r")
        t.until(r"\n[^\n]+\n[^\n]+\n", at)
        yield t


@case
def a_worker_that_is_given_up_ends_it():
    """A target that is started again has no stack to run on."""
    with in_an_answer() as t:
        target = next(pid for pid, cmd in children(t.p.pid) if cmd.endswith("graft-target"))
        resource.prlimit(t.p.pid, resource.RLIMIT_STACK, (64 << 10, 64 << 10))  # of those that are started from here on
        os.kill(target, signal.SIGKILL)
        t.until("5 times in a row without a token")
        assert t.end() == 1, t.out


@case
def sigterm_ends_it():
    with in_an_answer() as t:
        workers = [pid for pid, _ in children(t.p.pid)]
        t.p.send_signal(signal.SIGTERM)
        assert t.end() == 128 + signal.SIGTERM and workers, t.out


if __name__ == "__main__":
    sys.exit(main())
