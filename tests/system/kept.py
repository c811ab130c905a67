"""A client of streams that resume: it reads an answer with event ids, and goes on where a connection breaks (docs/http.md).

Everything that the server promises is held against here: ids rise, each comes once and names the answer's session, and the
stream ends with [DONE].
"""
import contextlib
import http.client
import json
import random
import re
import time

from harness import SLOW

EVENT_ID = re.compile(r"([0-9a-f]{16})-(\d+)-(\d+)")
AGAIN = (429, 502, 503, 504)  # of a server that is busy, or just being started again
BROKEN = (OSError, http.client.HTTPException)


class Refused(Exception):
    """The server's answer to a request that it does not take."""

    def __init__(self, status, text, is_final=False):
        super().__init__(f"{status}: {text}")
        self.status, self.text, self.is_final = status, text, is_final


class Failed(Exception):
    """An event that says that the answer has failed."""


class Answer:
    """What was read of an answer. session: its name, empty before a head came. ids: every id that was seen, in their order.
    n_break: connections that broke. finish: None while the end has not come."""

    def __init__(self):
        self.session, self.text, self.finish, self.usage = "", "", None, None
        self.ids, self.events, self.logprobs = [], [], []
        self.n_break, self.n_ping, self.done = 0, 0, False
        self.retry = []  # milliseconds, of each stream that was read

    @property
    def at(self):
        """The position after which a stream goes on."""
        return int(EVENT_ID.fullmatch(self.ids[-1]).group(3)) if self.ids else 0

    def take_id(self, name):
        m = EVENT_ID.fullmatch(name)
        assert m, f"an event has the id {name!r}"
        assert m.group(1) == self.session, f"an event of session {self.session} has the id {name}"
        assert int(m.group(3)) > self.at or not self.ids, f"{name} comes after {self.ids[-1]}"
        self.ids.append(name)

    def take(self, name, data):
        if name is not None:
            self.take_id(name)
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise Failed(event["error"]["message"])
        self.events.append(event)
        self.usage = event.get("usage") or self.usage
        for c in event["choices"]:
            piece = c["text"] if "text" in c else c["delta"].get("content") or ""
            assert piece == "" or name is not None, f"text without an id: {data}"
            self.text += piece
            self.finish = c["finish_reason"] or self.finish
            self.logprobs += [c["logprobs"]] if c.get("logprobs") else []


def lines_of(response):
    """Lines without their ends. A connection that ends in the midst of one has broken."""
    while line := response.readline():
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line)
        yield line[:-1].decode()


def read_events(response, answer, cut_after=None):
    """Takes events up to [DONE]. cut_after: the reader goes away after so many that have ids, so that each time brings it on.
    False: the stream broke."""
    name, data, n = None, [], 0
    n_retry = len(answer.retry)
    for line in lines_of(response):
        if line.startswith(":"):
            answer.n_ping += 1
        elif line.startswith("retry: "):
            assert name is None and not data, f"{line!r} does not stand before an event's other lines"
            answer.retry.append(int(line[7:]))
        elif line.startswith("id: "):
            name = line[4:]
        elif line.startswith("data: "):
            data.append(line[6:])
        elif line == "" and data:
            assert len(answer.retry) == n_retry + 1, "each stream tells once, and before its first data, when to come back"
            answer.take(name, "\n".join(data))
            n += name is not None
            name, data = None, []
            if answer.done or n == cut_after:
                return answer.done
        else:
            assert line == "", f"the stream has the line {line!r}"
    return False


class Kept:
    """server: an Endpoint, or what has its open(method, path, body, headers=...). key: an Idempotency-Key; with one a request
    whose answer has not begun is sent again. headers: more of every request. seconds: how long it is tried."""

    def __init__(self, server, path, body, key=None, headers=None, seconds=120):
        self.server, self.path, self.key, self.headers = server, path, key, headers or {}
        self.body = dict({"stream": True, "stream_options": {"include_usage": True}}, **body)
        self.answer = Answer()
        self.end = time.monotonic() + seconds * SLOW

    def ask(self, method, path, body=None, headers=None):
        c, r = self.server.open(method, path, body, headers=dict(self.headers, **(headers or {})))
        if r.status not in (200, 204):
            with contextlib.closing(c):
                raise Refused(r.status, r.read().decode(errors="replace"), r.getheader("X-Should-Retry") == "false")
        return c, r

    def begin(self):
        """The request itself: its connection, and its response."""
        once = {"Idempotency-Key": self.key} if self.key else {}
        c, r = self.ask("POST", self.path, self.body, dict(once, **{"X-Graft-Event-Ids": "1"}))
        self.answer.session = r.getheader("X-Graft-Session") or ""
        assert re.fullmatch("[0-9a-f]{16}", self.answer.session), r.getheaders()
        return c, r

    def resume(self):
        return self.ask("GET", f"/v1/sessions/{self.answer.session}/stream?from={self.answer.at}")

    def once(self, cut_after=None):
        """One connection, up to its end or cut. True: the answer is whole."""
        c, r = self.resume() if self.answer.session else self.begin()
        with contextlib.closing(c):
            if r.status == 204:
                self.answer.done = True
                return True
            assert r.getheader("Content-Type") == "text/event-stream", r.getheaders()
            return read_events(r, self.answer, cut_after)

    def read(self, cut_after=None):
        """The whole answer, whatever breaks on the way. cut_after: each connection is given up after so many events with ids."""
        wait = 0.05
        while True:
            n_before = len(self.answer.ids)
            try:
                if self.once(cut_after):
                    return self.answer
            except Refused as e:
                if e.status not in AGAIN or e.is_final or time.monotonic() > self.end:
                    raise
            except BROKEN:
                if not self.answer.session and not self.key:
                    raise  # it may have begun: to ask again could begin another
                if time.monotonic() > self.end:
                    raise
            self.answer.n_break += 1
            assert time.monotonic() < self.end, f"the answer is not whole after {self.answer.n_break} connections"
            wait = 0.05 if len(self.answer.ids) > n_before else min(2 * wait, 2)
            if cut_after is None or wait > 0.05:
                time.sleep(wait * random.uniform(0.5, 1))


def read_kept(server, path, body, **kw):
    """An answer as Kept.read() has it."""
    cut_after = kw.pop("cut_after", None)
    return Kept(server, path, body, **kw).read(cut_after)
