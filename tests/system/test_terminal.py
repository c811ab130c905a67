#!/usr/bin/env python3
"""What a person at a terminal sees: text beside trees, ctrl-C, a pipe that is closed, one line for an outage.

usage: test_terminal.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import tempfile
import time

from harness import DRAFT, ENDLESS, GRAFT, SLOW, TARGET, alive, case, children, generate, main, wait_for
from served import FIXED, Serve, worker
from terminal import Terminal

PROMPT = "def main(argv):\n"
TREE_LINE = re.compile(r"^(round \d+: .*|[|` ]*[|`]-[* ] '.*')$")
SUMMARY = re.compile(r"^\d+ prompt \+ \d+ generated tokens")


def on_terminal(*args):
    """The run's output, both streams on one terminal; and its exit status."""
    with Terminal("run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", *args) as t:
        status = t.end()
        return t.out, status


@case
def trees_do_not_tear_the_text():
    """Without the trees' lines, what is on the terminal is the text, line by line."""
    want = generate("--prompt", PROMPT, "--ignore-eos", "--max-tokens", "150")["text"]
    assert want.count("\n") > 5
    shown, status = on_terminal("--draft", DRAFT, *FIXED, "--max-tokens", "150", "--trace")
    assert status == 0, shown
    lines = shown.split("\n")
    trees = [x for x in lines if TREE_LINE.match(x)]
    assert trees, shown
    text = [x for x in lines if not TREE_LINE.match(x)]
    n = next(i for i, x in enumerate(text) if SUMMARY.match(x))
    assert "\n".join(text[:n]).rstrip("\n") == want.rstrip("\n"), (text[:n], want)
    first_tree = next(i for i, x in enumerate(lines) if TREE_LINE.match(x))
    assert first_tree < len(lines) - len(trees), "all trees came at the end"


@case
def a_text_does_not_command_the_terminal():
    """Control characters of a model's text are spelled there, and are as they are in a pipe."""
    with open(os.path.join(TARGET, "tokenizer.json"), encoding="utf-8") as f:
        escape = json.load(f)["model"]["vocab"][chr(256 + 0x1b)]  # as the byte-level alphabet spells it
    args = ("--max-tokens", "4", "--logit-bias", f"{escape}=100")
    assert generate("--prompt", PROMPT, "--ignore-eos", *args)["text"] == 4 * "\x1b"
    piped = subprocess.run([GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", *args], capture_output=True,
                           timeout=60 * SLOW, check=True)
    assert piped.stdout.startswith(4 * b"\x1b"), piped.stdout
    with Serve(draft=False) as s:
        shown, status = on_terminal(*args)
        session = s.graft("session", "open", "--model", TARGET, "--prompt", PROMPT, *args).stdout.strip()
        known = {"GRAFT_CONNECT": s.address, "GRAFT_KEY_FILE": s.folder.key}
        with Terminal("session", "show", session, "--text", "--model", TARGET, env=known) as t:
            status = status or t.end()
            for out in (shown, t.out):
                assert status == 0 and 4 * r"\x1b" in out and "\x1b" not in out.replace("\x1b[K", ""), out


@case
def a_line_says_that_models_load():
    shown, status = on_terminal("--draft", DRAFT, "--max-tokens", "4")
    assert status == 0 and "loading the models" in shown and "prompt tokens" not in shown.split("loading")[1][:40], shown
    assert "loading the model\x1b" in on_terminal("--max-tokens", "4")[0].replace("\r", "")


def interrupted(p, sig, n_bytes=200):
    """The run's outputs when a signal has come in the middle of its text."""
    out = b""
    while len(out) < n_bytes:
        data = os.read(p.stdout.fileno(), 4096)
        assert data, p.stderr.read()
        out += data
    p.send_signal(sig)
    rest, err = p.communicate(timeout=30 * SLOW)
    return (out + rest).decode(), err.decode()


@case
def ctrl_c_tells_what_there_is():
    want = generate("--prompt", PROMPT, "--ignore-eos", "--max-tokens", "1000")["text"]
    base = [GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", "--max-tokens", "100000"]
    with Serve() as s:
        for args, env in (((), None), (("--draft", DRAFT, *FIXED), None), (("--connect", s.address), s.env())):
            for sig in (signal.SIGINT, signal.SIGTERM):
                p = subprocess.Popen([*base, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
                out, err = interrupted(p, sig)
                assert p.returncode == 128 + sig, (p.returncode, err)
                n = min(len(out), len(want))
                at = next((i for i in range(n) if out[i] != want[i]), n)
                assert n >= 200 and at == n, (args, sig, len(out), len(want), at, out[at - 20:at + 20], want[at - 20:at + 20])
                assert any(SUMMARY.match(x) for x in err.splitlines()), err
                assert "interrupted" in err and "gone" not in err and "lost" not in err and "fallback" not in err, err
                assert not children(p.pid)


@case
def ctrl_c_while_models_load():
    p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--json", "--ignore-eos",
                          "--max-tokens", str(ENDLESS)],  # not over, however late the signal is
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: children(p.pid))
    pids = [pid for pid, _ in children(p.pid)]
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 130 and json.loads(out)["error"] == "interrupted", out
    assert not any(alive(x) for x in pids)


@case
def nobody_reads_any_more():
    """As `graft run ... | head -1': nothing is said, and the workers end."""
    base = [GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", "--draft", DRAFT]
    p = subprocess.Popen([*base, "--max-tokens", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(p.stdout.fileno(), 10)
    pids = [pid for pid, _ in children(p.pid)]
    p.stdout.close()
    err = p.stderr.read().decode()
    assert p.wait(timeout=30 * SLOW) == 128 + signal.SIGPIPE and err == "", (p.returncode, err)
    assert len(pids) == 2 and not any(alive(x) for x in pids)
    p.stderr.close()
    p = subprocess.Popen([*base, "--max-tokens", "400", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.close()
    err = p.stderr.read().decode()
    assert p.wait(timeout=30 * SLOW) == 128 + signal.SIGPIPE and err == "", (p.returncode, err)
    p.stderr.close()
    with Serve(draft=False) as s:
        for args in (("list",), ("list", "--json")):
            p = subprocess.Popen([GRAFT, "session", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=s.env())
            p.stdout.close()
            err = p.stderr.read().decode()
            assert p.wait(timeout=30 * SLOW) == 128 + signal.SIGPIPE and err == "", (args, err)
            p.stderr.close()


def is_full(pipe):
    """Whether a write to it would wait."""
    return not select.select([], [pipe], [], 0)[1]


def n_unread(fd):
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def ended_at_a_full_pipe(sig, outputs, args, env=None):
    """Status and whatever else was said, of a graft run whose outputs nobody reads when the signal comes."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    streams = {name: writer if name in outputs else subprocess.PIPE for name in ("stdout", "stderr")}
    p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", *args], env=env, **streams)
    wait_for(lambda: is_full(writer), 60)  # JSON comes when all of it is generated
    p.send_signal(sig)
    out, err = p.communicate(timeout=20 * SLOW)
    os.close(reader)
    os.close(writer)
    assert not children(p.pid)
    return p.returncode, ((out or b"") + (err or b"")).decode()


@case
def a_pipe_that_nobody_reads_ends_with_a_signal():
    endless = ("--max-tokens", "100000")
    drafted = ("--draft", DRAFT, *FIXED, *endless)
    for sig in (signal.SIGINT, signal.SIGTERM):
        status, said = ended_at_a_full_pipe(sig, ("stdout",), drafted)
        assert status == 128 + sig and any(SUMMARY.match(x) for x in said.splitlines()), (status, said)
        assert ended_at_a_full_pipe(sig, ("stdout", "stderr"), (*drafted, "--trace"))[0] == 128 + sig
    assert ended_at_a_full_pipe(signal.SIGINT, ("stderr",), (*drafted, "--trace"))[0] == 130
    assert ended_at_a_full_pipe(signal.SIGINT, ("stdout",), ("--json", "--max-tokens", "900"))[0] == 130
    with Serve(draft=False) as s:
        assert ended_at_a_full_pipe(signal.SIGINT, ("stdout",), ("--connect", s.address, *endless), s.env())[0] == 130
        assert not [x for x in s.sessions() if x["state"] == "running"]


@case
def a_terminal_that_stands_still_ends_with_a_signal():
    """As after ctrl-S, or where the far end of ssh is gone. A terminal makes room again without waking who waits for
    it, so a JSON object that has begun and goes on no more stands still, too."""
    for args, sig in (("--trace", signal.SIGTERM), ("--trace", signal.SIGINT), ("--json", signal.SIGTERM)):
        lead, follow = pty.openpty()
        p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--draft", DRAFT, *FIXED, "--prompt", PROMPT, "--ignore-eos",
                              "--max-tokens", "3000", args], stdin=follow, stdout=follow, stderr=follow)
        asleep = ("wait_woken", "n_tty_write", *(("poll_schedule_timeout.constprop.0",) if args == "--json" else ()))
        stuck = lambda p=p, w=asleep: open(f"/proc/{p.pid}/wchan", encoding="utf-8").read() in w
        wait_for(lambda: is_full(follow) or n_unread(lead) > 1000 and stuck(), 120)
        p.send_signal(sig)
        assert p.wait(timeout=20 * SLOW) == 128 + sig, args
        os.close(follow)
        os.close(lead)


@case
def a_client_hears_the_same_signals():
    with Serve(draft=False) as s:
        p = s.start("--ignore-eos", tokens=20000)
        s.wait_running(3)
        p.send_signal(signal.SIGHUP)
        out, _ = p.communicate(timeout=20 * SLOW)
        assert p.returncode == 128 + signal.SIGHUP and json.loads(out)["error"] == "interrupted", out
        status, _ = ended_at_a_full_pipe(signal.SIGTERM, ("stderr",), ("--connect", s.address, "--trace", "--max-tokens", "300"),
                                         s.env())
        assert status == 128 + signal.SIGTERM, status


@case
def a_trace_file_that_nobody_reads_ends_with_a_signal():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fifo")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", "--max-tokens", "200",
                              "--trace-file", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: is_full(writer))
        p.send_signal(signal.SIGINT)
        assert p.wait(timeout=20 * SLOW) == 130
        os.close(reader)
        os.close(writer)


@case
def nothing_is_said_of_an_end_that_was_asked_for():
    """Whichever worker goes first, neither takes the other's end for a loss."""
    argv = [GRAFT, "run", "--model", TARGET, "--draft", DRAFT, "--prompt", PROMPT, "--ignore-eos", "--max-tokens", "100000"]
    for _ in range(20):
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(p.stdout.fileno(), 5)
        p.stdout.close()
        err = p.stderr.read().decode()
        assert p.wait(timeout=30 * SLOW) == 128 + signal.SIGPIPE and err == "", err
        p.stderr.close()


@case
def an_outage_is_one_line():
    """The drafter of a target that is gone: not at level error, and once."""
    with Serve(spawn=False) as s, worker("graft-draft", s.folder, s.address, model=DRAFT) as d:
        with worker("graft-target", s.folder, s.address):
            s.wait("--draft", DRAFT)
            p = s.start(*FIXED, tokens=ENDLESS)
            s.wait_running(3)
        time.sleep(0.5)  # the attempts of that time are what is looked at
        with worker("graft-target", s.folder, s.address):
            wait_for(lambda: any(x["state"] == "running" and x["epoch"] > 1 for x in s.sessions()))
            time.sleep(0.5)
            p.kill()
            p.communicate()
            d.kill()
            said = [x for x in d.communicate(timeout=20 * SLOW)[1].splitlines() if "cannot connect" in x]
            assert len(said) <= 1 and not any("error:" in x for x in said), said


sys.exit(main())
