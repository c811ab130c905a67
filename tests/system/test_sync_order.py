#!/usr/bin/env python3
"""Nothing leaves a server before its record is as durable as was promised, and a start from what was synced is right.

kill -9 leaves what was written in the page cache, so it tests neither. Here every write, sync, rename and message is
noted in its order (sync_order.c), the disk is slow, and a journal is put back to its state at the last sync. A disk that
is very slow, or hangs, holds nobody but those who wait for a record.

usage: test_sync_order.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import bisect
import contextlib
import functools
import http.client
import itertools
import json
import os
import re
import signal
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from endpoint import Endpoint
from harness import BUILD, SLOW, TARGET, Skip, case, generate, main, run, wait_for
from served import Folder, free_port, worker

PROMPTS = ["import os", "class Stack:", "def fibonacci(n):", "for i in range(10):"]
TOKENS = 60
SMALL = ("--max-model-len", "1024")
DELAY_MS = 30  # of a sync
SEGMENT_HEAD, RECORD_HEAD, RECORD_TAIL = 96, 48, 8
END = re.compile(rb'"finish_reason":"[a-z]|\(timeout\)')  # a timeout is told as an error
EVENT_ID = re.compile(rb"id: ([0-9a-f]{16})-(\d+)-\d+\n")


class Watched(Folder):
    """Servers that are started in it have their order noted."""

    def __init__(self, delay_ms=DELAY_MS):
        super().__init__()
        self.log, self.hang, self.fail = self.path("order"), self.path("hang"), self.path("fail")
        self.delay_ms = delay_ms
        self.watches = True

    def env(self, **more):
        env = super().env(**more)
        if self.watches:
            env.update(LD_PRELOAD=os.path.join(BUILD, "tests/system/libsync_order.so"), GRAFT_ORDER_LOG=self.log,
                       GRAFT_ORDER_DELAY_MS=str(self.delay_ms), GRAFT_ORDER_HANG=self.hang,
                       GRAFT_ORDER_FAIL=self.fail)
        return env


class Stretch:
    """Bytes that events have added to a file or a socket."""

    def __init__(self):
        self.bytes = bytearray()
        self.ends = []  # (length after the event, its number)

    def add(self, number, data):
        self.bytes += data
        self.ends.append((len(self.bytes), number))

    def event_of(self, end):
        """The event that brought the byte before `end`."""
        return self.ends[bisect.bisect_left(self.ends, (end, 0))][1]


class Order:
    """What a log says."""

    def __init__(self, path):
        self.files, self.sockets, self.syncs, self.names, self.folder_syncs = {}, {}, {}, {}, []
        self.waits = []  # (number, number): of a sync's begin and its end
        with open(path, "rb") as f:
            data = f.read()
        at = number = begun = 0
        while at + 16 <= len(data):
            kind, n, inode = data[at:at + 1], *struct.unpack_from("<IQ", data, at + 4)
            body = data[at + 16:at + 16 + n]
            at += 16 + n
            number += 1
            if kind in b"WO":
                (self.files if kind == b"W" else self.sockets).setdefault(inode, Stretch()).add(number, body)
            elif kind == b"S":
                self.syncs.setdefault(inode, []).append(number)
                self.waits.append((begun, number))
            elif kind == b"B":
                begun = number
            elif kind == b"R":
                self.names[inode] = (body.decode(), number)
            elif kind == b"D":
                self.folder_syncs.append(number)

    def n_synced(self, inode):
        last = max(self.syncs.get(inode, [0]))
        return max([length for length, number in self.files[inode].ends if number < last], default=0)

    def durable(self, inode, end):
        """The event after which the file's bytes up to `end` are durable, and its name; None: there is none."""
        wrote = self.files[inode].event_of(end)
        name = self.names[inode][1]
        synced = [x for x in self.syncs.get(inode, []) if x > wrote]
        named = [x for x in self.folder_syncs if x > name]
        return max(synced[0], named[0]) if synced and named else None

    def records(self):
        """Of each record its session, its message's name and body, and when it was durable."""
        out = []
        for inode, (_, named) in self.names.items():
            p = self.files[inode].bytes
            head = [number for length, number in self.files[inode].ends if length >= SEGMENT_HEAD][0]
            assert any(head < x < named for x in self.syncs[inode]), "a segment had its name before its head was durable"
            at = SEGMENT_HEAD
            while at + RECORD_HEAD <= len(p):
                n, _, _, session = struct.unpack_from("<IIQQ", p, at)
                end = at + RECORD_HEAD + n + RECORD_TAIL
                body = p[at + RECORD_HEAD:end - RECORD_TAIL]
                name = re.match(rb".{1,3}\xa1t[\xa0-\xbf]([A-Z_]+)", body, re.S)
                if name:
                    out.append((session, name.group(1).decode(), body, self.durable(inode, end)))
                at = end
        return out

    def told(self):
        """Of each request for a stream when its response began, and when its end was sent (None: it was not)."""
        out = {}
        for s in self.sockets.values():
            head = re.search(rb"X-Request-Id: ([0-9a-f]{32})", s.bytes)
            if head and b"text/event-stream" in s.bytes:
                end = END.search(s.bytes)
                out[head.group(1).decode()] = (s.ends[0][1], s.event_of(end.end()) if end else None)
        return out

    def first_ids(self):
        """Of each session and epoch when the first event was sent that has a name of it."""
        out = {}
        for s in self.sockets.values():
            for m in EVENT_ID.finditer(s.bytes):
                at, key = s.event_of(m.end()), (int(m.group(1), 16), int(m.group(2)))
                out[key] = min(at, out.get(key, at))
        return out

    def streams(self):
        """Of each request that was answered the events in which something was sent to it."""
        out = {}
        for s in self.sockets.values():
            head = re.search(rb"X-Request-Id: ([0-9a-f]{32})", s.bytes)
            if head:
                out[head.group(1).decode()] = [number for _, number in s.ends]
        return out


def epoch_of(body):
    """Of an OPEN or a KEPT, whose first field it is: a msgpack number."""
    at = body.index(b"\xa5epoch") + 6
    width = {0xcc: 1, 0xcd: 2, 0xce: 4}.get(body[at], 0)
    return int.from_bytes(body[at + 1:at + 1 + width], "big") if width else body[at]


def check_ids(order):
    """No event's name left before a record of its epoch was durable. Returns how many epochs each session's names had."""
    begun, n = {}, {}
    for session, name, body, durable in order.records():
        if name in ("OPEN", "KEPT") and durable is not None:
            key = (session, epoch_of(body))
            begun[key] = min(durable, begun.get(key, durable))
    for (session, epoch), sent in order.first_ids().items():
        durable = begun.get((session, epoch))
        assert durable is not None and durable < sent, \
            f"{session:016x}-{epoch} was told at {sent}, its record was durable at {durable}"
        n[f"{session:016x}"] = n.get(f"{session:016x}", 0) + 1
    return n


def check(order):
    """Returns for each request that was told something its session, and whether its end was told."""
    records, told, sessions = order.records(), order.told(), {}
    for request, (began, ended) in told.items():
        opened = [(s, durable) for s, name, body, durable in records if name == "OPEN" and request.encode() in body]
        assert len(opened) == 1, (request, opened)
        session, durable = opened[0]
        assert durable is not None and durable < began, f"an answer began at {began}, its opening was durable at {durable}"
        sessions[f"{session:016x}"] = (request, ended is not None)
        if ended:
            ends = [durable for s, name, _, durable in records if s == session and name == "FINISHED"]
            assert ends and ends[0] is not None and ends[0] < ended, \
                f"an end was told at {ended}, and was durable at {ends}"
    assert set(check_ids(order)) <= set(sessions), sessions
    return sessions


@contextlib.contextmanager
def watched(folder, port, watches, *args):
    folder.watches = watches
    with Endpoint("--journal", folder.path("journal"), "--model", TARGET, *args, spawn=False,
                  control=f"127.0.0.1:{port}", folder=folder) as s:
        folder.watches = False
        yield s


def begin(s, request, prompt, tokens, **more):
    body = dict({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}, **more)
    return s.open("POST", "/v1/completions", body,
                  headers={"X-Request-Id": request, "traceparent": f"00-{request}-00000000000000aa-01",
                           "X-Graft-Event-Ids": "1"})


def ask(s, request, prompt, tokens=TOKENS, **more):
    """A stream's text; what there was of it where the server went away."""
    text = b""
    try:
        c, r = begin(s, request, prompt, tokens, **more)
        with contextlib.closing(c):
            assert r.status == 200, r.read()
            while True:
                more = r.read1(1 << 16)
                if not more:
                    return text
                text += more
    except (OSError, http.client.HTTPException):
        return text


def ask_all(s, n, tokens=TOKENS):
    threads = [threading.Thread(target=ask, args=(s, f"{i + 1:032x}", PROMPTS[i % len(PROMPTS)], tokens))
               for i in range(n)]
    for t in threads:
        t.start()
    return threads


def text_when_over(s, session):
    def look():
        done = run("session", "show", session, "--text", "--json", env=s.env())
        assert done.returncode == 0, (done.stderr, s.log())
        return json.loads(done.stdout)
    wait_for(lambda: look()["finish_reason"] != "running", 60)
    return look()


def put_back(folder, order):
    """Its journal has what was synced, and nothing that was only written."""
    for name in os.listdir(folder.path("journal")):
        path = os.path.join(folder.path("journal"), name)
        os.truncate(path, order.n_synced(os.stat(path).st_ino))


def touch(path):
    with open(path, "w", encoding="utf-8"):
        pass


AGE, FAILED = "graft_journal_sync_age_seconds", "graft_journal_failed"


def needs_preload():
    if SLOW >= 10:
        raise Skip("a sanitizer comes before what is preloaded")


@case
def nothing_leaves_before_its_record():
    needs_preload()
    folder, port = Watched(), free_port()
    with watched(folder, port, True) as s, worker("graft-target", folder, s.address, *SMALL):
        s.wait()
        for t in ask_all(s, 8):
            t.join()
    sessions = check(Order(folder.log))
    assert len(sessions) == 8 and all(ended for _, ended in sessions.values()), sessions


@case
def names_of_a_new_epoch_and_every_end_wait_for_their_records():
    """A target is killed and comes back, one answer passes its time, another client closes one. A sync takes longer than to
    open a session again."""
    needs_preload()
    folder, port, n = Watched(1500), free_port(), 7000
    target = functools.partial(worker, "graft-target", folder, f"127.0.0.1:{port}", "--max-model-len", "8192")
    running = lambda s, epoch: [x for x in s.sessions() if x["state"] == "running" and x["epoch"] == epoch and x["rounds"] > 5]  # noqa: E731
    with watched(folder, port, True, "--queue-timeout", "60") as s, ThreadPoolExecutor(5) as pool:
        with target() as t:
            s.wait()
            short = [pool.submit(ask, s, f"{i + 1:032x}", PROMPTS[i], 1600) for i in range(3)]
            late = pool.submit(ask, s, f"{4:032x}", PROMPTS[0], n, timeout=12 if SLOW == 1 else 60)
            c, r = begin(s, f"{5:032x}", PROMPTS[1], n)
            closed = pool.submit(r.read)
            wait_for(lambda: len(running(s, 1)) == 5)
            t.kill()
            with target():
                wait_for(lambda: len(running(s, 2)) >= 4)
                s.graft("session", "close", r.getheader("X-Graft-Session"))
                texts = [x.result() for x in (*short, late, closed)]
    c.close()
    assert b"timeout" in texts[3] and b'"finish_reason":"closed"' in texts[4], (texts[3][-300:], texts[4][-300:])
    assert all(b'"finish_reason":"length"' in x for x in texts[:3]), [x[-300:] for x in texts]
    order = Order(folder.log)
    sessions, epochs = check(order), check_ids(order)
    assert len(sessions) == 5 and all(ended for _, ended in sessions.values()), sessions
    assert len(epochs) == 5 and sum(epochs.values()) >= 9, epochs  # that which passes its time may do so before


@case
def what_was_synced_is_enough_to_start_from():
    needs_preload()
    want = {p: generate("--prompt", p, "--ignore-eos", "--max-tokens", str(15 * TOKENS), "--method", "none")["token_ids"]
            for p in PROMPTS}
    folder, port = Watched(), free_port()
    with watched(folder, port, True) as s, worker("graft-target", folder, s.address, "--rejoin-timeout", "60", *SMALL):
        s.wait()
        ask(s, f"{99:032x}", PROMPTS[0], 10 * TOKENS)  # over, and told to be
        threads = ask_all(s, 6, 15 * TOKENS)

        def all_have_begun():
            n_ended = sum(v for k, v in s.metrics().items() if k.startswith("graft_request_success_total"))
            n_running = len([x for x in s.sessions() if x["state"] == "running" and x["rounds"] > 5])
            return n_ended - 1 + n_running == 6  # in this order: none is counted twice
        wait_for(all_have_begun)
        s.p.kill()
        s.p.wait()
        for t in threads:
            t.join()
        order = Order(folder.log)
        sessions = check(order)
        assert len(sessions) >= 1 and sum(ended for _, ended in sessions.values()) >= 1, sessions
        put_back(folder, order)
        with watched(folder, port, False) as again:
            for session, (request, ended) in sessions.items():
                got = text_when_over(again, session)
                prompt, n = (PROMPTS[0], 10) if int(request, 16) == 99 else (PROMPTS[(int(request, 16) - 1) % len(PROMPTS)], 15)
                assert got["finish_reason"] == "length" and got["token_ids"] == want[prompt][:n * TOKENS], (request, got)
        print(f"# {len(sessions)} answers that had begun are whole after a start from the last sync", flush=True)


@case
def a_slow_disk_holds_nobody_else():
    """Syncs take two seconds. Streams go on while others wait for their records, and the server answers and condemns nobody."""
    needs_preload()
    folder, port = Watched(2000), free_port()
    with watched(folder, port, True) as s, worker("graft-target", folder, s.address, "--max-model-len", "8192") as t:
        s.wait()
        over = threading.Event()

        def stream_on(k):
            while not over.is_set():
                ask(s, f"{1000 + next(k):032x}", PROMPTS[0], 2500)  # longer than some syncs

        count = itertools.count()
        streams = [threading.Thread(target=stream_on, args=(count,)) for _ in range(2)]
        for x in streams:
            x.start()
        wait_for(lambda: s.metrics()[AGE] > .5)  # of records that wait for their sync
        for i in range(4):
            ask(s, f"{i + 1:032x}", PROMPTS[i], 4)
            assert s.ask("GET", "/health", headers={"X-Request-Id": f"{2000 + i:032x}"})[0] == 200
        over.set()
        for x in streams:
            x.join()
        workers = s.list()["workers"]
        wait_for(lambda: s.metrics()[AGE] == 0)
        assert s.metrics()[FAILED] == 0
        lost = {k: v for k, v in s.metrics().items() if "workers_lost" in k}
        assert [x["pid"] for x in workers] == [t.pid] and lost and not any(lost.values()), (workers, lost, s.log())
    order = Order(folder.log)
    sessions, sent = check(order), order.streams()
    assert sum(ended for _, ended in sessions.values()) >= 6, sessions
    inside = [(begin, end, k) for begin, end in order.waits for k, x in sent.items()
              if int(k, 16) in range(1000, 2000) and x[0] < begin and end < x[-1]]
    moving = [x for x in inside if any(x[0] < e < x[1] for e in sent[x[2]])]  # else it is over, and waits to be told so
    assert moving, inside
    answered = [k for k, x in sent.items() if int(k, 16) >= 2000 and any(b < x[0] < e for b, e in order.waits)]
    assert answered, (sent, order.waits)
    print(f"# streams went on during {len(moving)} of {len(inside)} syncs, /health was answered during {len(answered)}",
          flush=True)


@case
def a_disk_that_fails_is_shown_and_nothing_that_was_told_is_lost():
    """A sync fails, and nothing of it is on the disk: no turn begins, and the next process has what this one had told."""
    needs_preload()
    folder, port, n = Watched(), free_port(), 400
    want = {p: generate("--prompt", p, "--ignore-eos", "--max-tokens", str(n), "--method", "none")["token_ids"] for p in PROMPTS[:2]}
    with watched(folder, port, True) as s, \
            worker("graft-target", folder, s.address, "--rejoin-timeout", "300", "--max-model-len", "2048"):
        s.wait()
        ask(s, f"{1:032x}", PROMPTS[0])
        c, r = begin(s, f"{2:032x}", PROMPTS[1], n)
        assert r.readline() and s.metrics()[FAILED] == 0
        touch(folder.fail)
        body = {"prompt": PROMPTS[2], "max_tokens": 4}
        got, answer, _ = s.ask("POST", "/v1/completions", body)  # its opening waits for the sync that fails, or comes after it
        assert got in (500, 503) and "journal" in answer["error"]["message"], (got, answer)
        wait_for(lambda: s.metrics()[FAILED] == 1)
        assert s.metrics()[AGE] == 0
        assert s.graft("top", "--once").stdout.startswith("the journal has failed; targets 1,")
        got, answer, _ = s.ask("POST", "/v1/completions", body)
        assert got == 503 and "the journal of this server has failed" in answer["error"]["message"], (got, answer)
        assert s.ask("GET", "/v1/models")[0] == 200 and s.log().count("cannot be synced: Input/output error") == 1, s.log()
        s.p.kill()
        s.p.wait()
        c.close()
        order = Order(folder.log)
        sessions = check(order)
        assert {request for request, _ in sessions.values()} == {f"{1:032x}", f"{2:032x}"}, sessions
        put_back(folder, order)
        with watched(folder, port, False) as again:
            again.wait()
            for session, (request, _) in sessions.items():
                got, i = text_when_over(again, session), int(request, 16) - 1
                assert got["finish_reason"] == "length" and got["token_ids"] == want[PROMPTS[i]][:(TOKENS, n)[i]], (request, got)
            assert again.metrics()[FAILED] == 0
            again.post("/v1/completions", body)


@case
def a_disk_that_hangs_does_not_hold_the_end():
    needs_preload()
    folder, port = Watched(), free_port()
    with watched(folder, port, True, "--drain-timeout", "1") as s, worker("graft-target", folder, s.address, *SMALL):
        s.wait()
        ask(s, f"{1:032x}", PROMPTS[0])
        touch(folder.hang)
        waits = threading.Thread(target=ask, args=(s, f"{2:032x}", PROMPTS[1], 900))
        waits.start()
        wait_for(lambda: len(s.sessions()) == 1)
        s.p.send_signal(signal.SIGTERM)
        assert s.p.wait(timeout=60 * SLOW) == 1, s.log()
        waits.join()
        assert s.log().count("has not synced records") == 1, s.log()
    sessions = check(Order(folder.log))
    assert [request for request, _ in sessions.values()] == [f"{1:032x}"], sessions


if __name__ == "__main__":
    raise SystemExit(main())
