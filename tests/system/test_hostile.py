#!/usr/bin/env python3
"""Hostile peers at every door of a fleet (control link, data path, endpoint) while it answers: they are turned away, and what
those with a key are told does not change.

usage: test_hostile.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import os
import resource
import socket
import struct
import subprocess
import threading
import time
import traceback

from harness import GRAFT, SLOW, Background, case, main, wait_for
from endpoint import PROMPT, Endpoint, read_all

LONG = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
HALF = struct.pack("<I", 300) + b"\x81"  # of a HELLO
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
UNDISTURBED = ("graft_workers_lost_total", "graft_reopens_total", "graft_desyncs_total", "graft_transcript_mismatches_total",
               "graft_evictions_total")


class Answers:
    """A fleet, with streams and whole answers one after another; each must be the text that it gave when it was alone."""

    def __init__(self, s):
        self.s, self.n, self.wrong = s, 0, None
        self.want = s.complete(**LONG)["choices"][0]["text"]
        self.workers = self.pids()

    def pids(self):
        return [(w["role"], w["pid"]) for w in self.s.list()["workers"]]

    def one(self, stream):
        if not stream:
            return self.s.complete(**LONG)["choices"][0]["text"]
        return "".join(c["text"] for e in self.s.stream("/v1/completions", **LONG) for c in e["choices"])

    def go_on(self):
        while not self.beside.stop.is_set() and self.wrong is None:
            try:
                got = self.one(self.n % 2 == 0)
                self.wrong = None if got == self.want else ("another text", got)
            except Exception as e:  # pylint: disable=broad-except
                self.wrong = "".join(traceback.format_exception(e)) + self.s.log()[-4000:]
            self.n += 1

    def __enter__(self):
        self.beside = Background(self.go_on)
        self.beside.__enter__()
        self.wait_for_more()
        return self

    def wait_for_more(self, n=1):
        """Until n answers were begun and told whole from here on."""
        then = self.n + n + 1
        wait_for(lambda: self.n >= then or self.wrong, 60)
        assert self.wrong is None, self.wrong

    def __exit__(self, failure, *rest):
        if failure is None:
            self.wait_for_more()
        self.beside.__exit__()
        if failure is None:
            assert self.wrong is None, self.wrong
            assert self.pids() == self.workers, (self.pids(), self.workers, self.s.log()[-4000:])
            moved = {k: v for k, v in self.s.metrics().items() if k.startswith(UNDISTURBED) and v}
            assert not moved, (moved, self.s.log()[-4000:])
            print(f"# {self.n} answers beside it")


def door(address):
    host, port = address.split(",")[0].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20 * SLOW)


def said(address, text):
    """All that comes back to who says this, until the other end hangs up."""
    with contextlib.closing(door(address)) as c:
        with contextlib.suppress(ConnectionError):
            c.sendall(text)
        return read_all(c)


def said_slowly(address, text, pause=.05):
    """The same of who says it byte by byte; also how long it was let."""
    begin, got = time.monotonic(), b""
    with contextlib.closing(door(address)) as c:
        c.settimeout(pause)
        for byte in [*text, *([text[-1]] * 100000)]:
            try:
                c.sendall(bytes([byte]))
                chunk = c.recv(4096)
                if not chunk:
                    break
                got += chunk
            except TimeoutError:
                assert time.monotonic() < begin + 60 * SLOW, "it is still there"
            except ConnectionError:
                break
    return got, time.monotonic() - begin


class Recorder:
    """Carries one connection to address and back, and keeps what its client said."""

    def __init__(self, address):
        self.to, self.said = address, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        near, _ = self.listener.accept()
        far = door(self.to)
        back = threading.Thread(target=self.carry, args=(far, near), daemon=True)
        back.start()
        self.carry(near, far, True)
        back.join()

    def carry(self, one, other, keep=False):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.said += data if keep else b""
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


def states(s):
    return [(w["worker"], w["state"]) for w in s.list()["workers"]]


def doors(s):
    """The control link, the target's data path, the endpoint."""
    target = next(w for w in s.list()["workers"] if w["role"] == "target")
    return s.address, target["address"], f"127.0.0.1:{s.port}"


def say_another_key(s):
    stranger = dict({k: v for k, v in s.env().items() if k != "GRAFT_KEY_FILE"}, GRAFT_KEY="00" * 32)
    for words in (("session", "list"), ("worker", "drain", "1"), ("stop", "--now"), ("ping", "--count", "1")):
        done = subprocess.run([GRAFT, *words], capture_output=True, text=True, timeout=60 * SLOW, env=stranger, check=False)
        assert done.returncode == 1 and done.stdout == "" and "key" in done.stderr, (words, done)


def say_it_again(s):
    """All that a client has said who drained a worker: it opens with a proof that is of no use a second time."""
    before = states(s)
    r = Recorder(s.address)
    number = str(before[-1][0])
    s.graft("worker", "drain", number, "--connect", r.address)
    s.graft("worker", "undrain", number)
    assert states(s) == before and len(r.said) > 200, (states(s), before, r.said)
    n = s.log().count("does not hold our shared key")
    answer = said(s.address, r.said)
    assert len(answer) < 4096, len(answer)  # a HELLO, and nothing of the fleet
    wait_for(lambda: s.log().count("does not hold our shared key") > n)
    assert states(s) == before, states(s)


def say_too_much(s):
    """Sizes that are announced, and bytes that are no message."""
    control, data, endpoint = doors(s)
    for address in (control, data):
        for text in (b"\xff" * 64, struct.pack("<I", 0xffffffff), struct.pack("<I", 1 << 20) + b"x" * 100000, bytes(4),
                     os.urandom(70000), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9):
            assert len(said(address, text)) < 4096, text[:20]
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for text, status in ((HEAD + b"Content-Length: 999999999999\r\n\r\n", b" 413 "),
                         (HEAD + b"Content-Length: 18446744073709551617\r\n\r\n{}", b" 413 "),
                         (HEAD + b"Content-Length: -1\r\n\r\n{}", b" 400 "),
                         (chunked + b"zz\r\n", b" 400 "),
                         (chunked + b"1000000\r\n%s\r\n" % (b" " * 0x1000000) * 3 + b"0\r\n\r\n", b" 413 ")):
        got = said(endpoint, text)
        assert status in got[:16], (text[:160], got[:80])


def begin_to_be_slow(s, pool):
    """Byte by byte, and others who are no clients of HTTP: all that they say, and what becomes of it."""
    control, data, endpoint = doors(s)
    head = HEAD + b"Content-Length: 90\r\n\r\n{"
    trickles = [(control, HALF), (data, HALF), (endpoint, head[:1]), (endpoint, head[:-1]), (endpoint, head)]
    return [pool.submit(said_slowly, *t) for t in trickles for _ in range(2)] + \
        [pool.submit(lambda text: (said(endpoint, text), 0), text) for text in (b"\x16\x03\x01" + os.urandom(600), bytes(3000))]


def stop_half_way(s, stack):
    """Half of a message and then nothing, with both ways open and with one; some vanish with a reset."""
    for address, text in zip(doors(s), (HALF, HALF, HEAD[:60])):
        for i in range(30):
            c = door(address)
            stack.callback(c.close)
            c.sendall(text)
            if i % 3 == 1:
                c.shutdown(socket.SHUT_WR)
            elif i % 3 == 2:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()


@case
def hostile_peers_disturb_nobody():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    with Endpoint("--http-request-timeout", str(int(2 * SLOW))) as s, Answers(s) as a, contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(16))
        slow = begin_to_be_slow(s, pool)
        for act in (say_another_key, say_it_again, say_too_much, lambda s: stop_half_way(s, stack)):
            act(s)
            a.wait_for_more()
        for job in slow:
            got, seconds = job.result()
            assert b" 200 " not in got[:16] and seconds < 30 * SLOW, (got[:80], seconds)
        idle, n = [], min(340, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 300) // 3)
        for address in doors(s):
            idle += [stack.enter_context(contextlib.closing(door(address))) for _ in range(n)]
        begin = time.monotonic()
        assert [state for _, state in states(s)] == ["serving", "serving"] and s.ask("GET", "/health")[0] == 200
        a.wait_for_more()
        print(f"# beside {len(idle)} idle connections a client was in and an answer told after {time.monotonic() - begin:.1f} s")


main()
