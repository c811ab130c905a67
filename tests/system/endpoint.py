"""A running `graft serve` with an endpoint, for the tests of it."""
import contextlib
import http.client
import json
import re

from harness import SLOW
from served import Serve

PROMPT = "def fibonacci(n):"


def read_all(c):
    """All that comes on a connection until the other end hangs up."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := c.recv(65536):
            got += chunk
    return got


class Endpoint(Serve):
    """A server with an endpoint on a port of its own."""

    def __init__(self, *args, http="127.0.0.1:0", key=None, tls=None, **kw):
        super().__init__("--http", http, *args, **kw)
        self.port = int(re.search(r"at https?://\S+:(\d+)/v1", self.log()).group(1))
        self.key, self.tls = key, tls  # of those who ask and say nothing else; an SSLContext

    def connect(self, timeout=300):
        if self.tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout * SLOW, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def open(self, method, path, body=None, headers=None, raw=None, timeout=300):
        c = self.connect(timeout)
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        known = {"Content-Type": "application/json"} if data is not None else {}
        if self.key:
            known["Authorization"] = f"Bearer {self.key}"
        headers = dict(known, **(headers or {}))
        c.request(method, path, data, {k: v for k, v in headers.items() if v is not None})
        return c, c.getresponse()

    def ask(self, method, path, body=None, **kw):
        c, r = self.open(method, path, body, **kw)
        with contextlib.closing(c):
            text = r.read()
            kind = r.getheader("Content-Type", "")
            return r.status, json.loads(text) if kind.startswith("application/json") else text.decode(), r

    def post(self, path, body, status=200, **kw):
        got, answer, _ = self.ask("POST", path, body, **kw)
        assert got == status, (got, answer, body)
        return answer

    def complete(self, **body):
        return self.post("/v1/completions", dict({"prompt": PROMPT, "temperature": 0, "max_tokens": 16}, **body))

    def talk(self, **body):
        messages = [{"role": "user", "content": "def add(a, b):"}]
        return self.post("/v1/chat/completions",
                         dict({"messages": messages, "temperature": 0, "max_completion_tokens": 12}, **body))

    def stream(self, path, **body):
        """The events of a stream, without [DONE], which has to be the last."""
        c, r = self.open("POST", path, dict({"stream": True}, **body))
        with contextlib.closing(c):
            assert r.status == 200, r.read()
            assert r.getheader("Content-Type") == "text/event-stream", r.getheaders()
            text = r.read().decode()
        assert "\r" not in text and text.endswith("data: [DONE]\n\n"), text[-200:]
        events = [e for e in text.split("\n\n") if e]
        return [json.loads(e.split("data: ", 1)[1]) for e in events[:-1]]

    def metrics(self):
        _, text, _ = self.ask("GET", "/metrics")
        return {k: float(v) for k, v in re.findall(r"^(graft_\S+) (\S+)$", text, re.M)}

    def is_quiet(self):
        m = self.metrics()
        return m["graft_num_requests_running"] == 0 and m["graft_num_requests_waiting"] == 0
