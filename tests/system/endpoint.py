"""A running `graft serve` with an endpoint, for the tests of it."""
import contextlib
import http.client
import json
import os
import re
import signal

from harness import SLOW, TARGET, alive, wait_for
from served import Folder, Serve, free_port

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
        """No turn is anywhere, and each is counted as ended: one whose session is being closed is counted at its release."""
        m = self.metrics()
        return not any(m[name] for name in ("graft_num_requests_running", "graft_num_requests_waiting",
                                            'graft_sessions{state="closing"}'))

    def is_ready(self):
        try:
            return self.ask("GET", "/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False


class Journalled(Endpoint):
    """An endpoint with a journal, at ports that it keeps, under a supervisor; its workers are started by hand."""

    def __init__(self, *args, folder=None, **kw):
        folder = folder or Folder()
        super().__init__("--journal", folder.path("journal"), "--supervise", "--model", TARGET, "--queue-timeout", "300", *args,
                         http=f"127.0.0.1:{free_port()}", spawn=False, control=f"127.0.0.1:{free_port()}", folder=folder, **kw)

    def kill(self):
        """The process that serves. Its number; another one takes its place."""
        pid = self.child("graft")
        assert pid, self.log()
        os.kill(pid, signal.SIGKILL)
        return pid

    def restart(self, n_worker=1):
        """Kills it, and is back when the next one has its workers and serves."""
        pid = self.kill()
        wait_for(lambda: not alive(pid) and self.child("graft") not in (0, pid), 60)
        wait_for(lambda: self.is_ready() and len(self.list()["workers"]) == n_worker, 60)
