#!/usr/bin/env python3
"""Links to the orchestrator through a forwarder that records or alters what crosses; and that no log tells what was asked.

usage: test_secrecy.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading

from harness import GRAFT, SLOW, TARGET, case, main, wait_for
from endpoint import Endpoint
from served import PLAIN, PROMPT, Serve, worker

IDS = [100, 200, 300, 400, 500, 600, 700, 800]  # of a prompt


class Forwarder:
    """Listens, and carries bytes to `address` and back. change(data) may alter what the orchestrator sends."""

    def __init__(self, address, change=lambda data: data):
        self.to, self.change, self.seen = address, change, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                host, port = self.to.rsplit(":", 1)
                far = socket.create_connection((host, int(port)))
                threading.Thread(target=self.carry, args=(near, far, lambda data: data), daemon=True).start()
                threading.Thread(target=self.carry, args=(far, near, self.change), daemon=True).start()

    def carry(self, one, other, change):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                with self.lock:
                    self.seen += data
                other.sendall(change(data))
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *rest):
        self.listener.close()


def ask(serve, forwarder, *args, n=24, prompt=("--prompt", PROMPT), **env):
    return subprocess.run([GRAFT, "run", "--json", "--connect", forwarder.address, *PLAIN, *prompt, "--max-tokens", str(n),
                           *args], capture_output=True, text=True, timeout=60 * SLOW, env=serve.env(**env), check=False)


def as_msgpack(ids):
    """As arrays of ids are written: the shortest form of each."""
    return b"".join(bytes([i]) if i < 128 else b"\xcc" + bytes([i]) if i < 256 else b"\xcd" + struct.pack(">H", i) for i in ids)


@case
def a_recorded_link_tells_no_tokens():
    """The same search finds them where encryption is off, so it would find them."""
    with Serve(draft=False) as s:
        path = s.folder.path("ids")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(IDS, f)
        for mode, found in (("on", False), ("off", True)):
            with Forwarder(s.address) as f:
                done = ask(s, f, "--control-encryption", mode, prompt=("--prompt-ids", path))
                assert done.returncode == 0, done.stderr
                assert len(json.loads(done.stdout)["token_ids"]) == 24
                words = [b"COMMIT", b"session", b"temperature"] + [as_msgpack(IDS)]
                assert [w in f.seen for w in words] == len(words) * [found], (mode, [w for w in words if w in f.seen])
        assert s.log().count("is not encrypted: --control-encryption is off at one of its ends") == 1, s.log()


@case
def required_refuses_an_end_that_says_off():
    with Serve("--control-encryption", "required", draft=False) as s:
        with Forwarder(s.address) as f:
            done = ask(s, f, GRAFT_CONTROL_ENCRYPTION="off")
            assert done.returncode == 1 and "control encryption: ours is off, the peer's is required" in done.stderr, done
            done = ask(s, f)
            assert done.returncode == 0, done.stderr


class Altered:
    """What comes, but for the last byte of a record, which is its seal's: however the bytes come in pieces."""
    N_BEFORE, HEADER, RECORD = 2, 24, 5  # HELLO and its proof; bytes before the first record; which one is altered

    def __init__(self):
        self.seen = b""

    def last_byte(self):
        """Where it is, or a place beyond what has come so far."""
        at = 0
        for i in range(self.N_BEFORE + self.RECORD):
            at += self.HEADER if i == self.N_BEFORE else 0
            if at + 4 > len(self.seen):
                break
            at += 4 + struct.unpack_from("<I", self.seen, at)[0]
        else:
            return at - 1
        return len(self.seen)

    def __call__(self, data):
        begin, self.seen = len(self.seen), self.seen + data
        at = self.last_byte() - begin
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:] if 0 <= at < len(data) else data


@case
def an_altered_record_ends_that_link_alone():
    with Serve(draft=False) as s:
        with Forwarder(s.address, Altered()) as f:
            done = ask(s, f, n=64)
            cut = json.loads(done.stdout)
            assert done.returncode == 1 and cut["finish_reason"] == "error", done
            assert "of a control link is not what the other end sent next" in done.stderr, done.stderr
        with Forwarder(s.address) as f:
            whole = json.loads(ask(s, f, n=64).stdout)["token_ids"]
            assert len(whole) == 64 and len(cut["token_ids"]) < 64 and whole[:len(cut["token_ids"])] == cut["token_ids"]
        assert s.p.poll() is None


MARK = "zyzzyva-okapi-7f3a"
LOGS = ("--log-level", "debug", "--log-format", "json")
MARKED = {"prompt": MARK, "stop": [MARK * 2], "user": MARK, "cache_salt": MARK, "temperature": 0, "ignore_eos": True,
          "max_tokens": 15000}


def without_the_mark(*logs):
    """Each line is JSON, but for what a command prints for its user, and tells nothing of what was asked. How many there are,
    by level."""
    lines = [x for log in logs for x in log.splitlines()]
    assert not [x for x in lines if MARK in x], [x for x in lines if MARK in x]
    levels = [json.loads(x)["level"] for x in lines if not x.startswith("serving ")]
    return {x: levels.count(x) for x in levels}


@case
def what_was_asked_is_in_no_log():
    """Of any process, at level debug, nor in what metrics, `graft top` and `session list` tell: of requests that are wrong, wait
    too long, are one too many, run, and lose their target."""
    with Endpoint(*LOGS, "--chat-template", "llama3", "--sessions", "1", "--queue-max", "1") as s, contextlib.ExitStack() as stack:
        path = "/v1/completions"
        for more, status in (({"temperature": MARK}, 400), ({"prompt": MARK * 25000}, 400), ({"n": [MARK]}, 400), ({"model": MARK}, 404)):
            s.post(path, dict(MARKED, **more), status=status)
        assert s.ask("POST", path, raw=b'{"prompt": "%s' % MARK.encode())[0] == 400
        for message, status in (({"role": MARK, "content": MARK}, 400), ({"role": "user", "content": MARK}, 200)):
            s.post("/v1/chat/completions", {"messages": [message], "max_tokens": 4}, status=status)
        running, r = s.open("POST", path, dict(MARKED, stream=True))
        stack.callback(running.close)
        assert r.readline().startswith(b"data: ")
        s.post(path, dict(MARKED, timeout=.2), status=408)
        waiting = stack.enter_context(contextlib.closing(s.connect()))
        waiting.request("POST", path, json.dumps(MARKED), {"Content-Type": "application/json"})
        wait_for(lambda: s.metrics()["graft_num_requests_waiting"] == 1)
        s.post(path, MARKED, status=429)
        session = r.getheader("X-Graft-Session")
        clients = [s.graft(*words, *LOGS) for words in (("session", "list"), ("session", "list", "--json"), ("top", "--once"),
                                                        ("top", "--once", "--json"))]
        told = [c.stdout for c in clients]
        assert all(session in t for t in told), (session, told)
        assert MARK not in s.ask("GET", "/metrics")[1] + "".join(told), told
        stack.close()
        wait_for(s.is_quiet)
        clients.append(s.graft("run", "--json", "--connect", s.address, *PLAIN, "--prompt", MARK, "--max-tokens", "4", *LOGS))
        s.end()
        told = without_the_mark(s.log(), *(c.stderr for c in clients))
        print(f"# {told}")
        assert told["debug"], told
    wait = "2s" if SLOW == 1 else "10s"
    with Endpoint(*LOGS, "--model", TARGET, "--queue-timeout", wait, spawn=False) as s, \
            worker("graft-target", s.folder, s.address, *LOGS) as target:
        s.wait()
        running, r = s.open("POST", "/v1/completions", dict(MARKED, stream=True))
        with contextlib.closing(running):
            assert r.readline().startswith(b"data: ")
            target.kill()
            text = r.read()
        error = json.loads(text.split(b"data: ")[-1])["error"]
        assert MARK not in json.dumps(error), error
        s.end()
        told = without_the_mark(s.log(), target.stderr.read())
        print(f"# {told}")
        assert told["warn"], told


sys.exit(main())
