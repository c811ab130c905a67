#!/usr/bin/env python3
"""Who may use the endpoint, and what those who should not can do to those who may.

usage: test_http_security.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time

from harness import ENDLESS, GRAFT, ROOT, SLOW, TARGET, Background, case, main, wait_for
from endpoint import PROMPT, Endpoint, read_all
from served import Folder

TLS_END = "graft_tls_not_after_seconds"
ALICE, BOB = "sk-alice-0123456789abcdef", "sk-bob-0123456789abcdef"
with open(os.path.join(ROOT, "orchestrator/http/pages.c"), encoding="utf-8") as source:
    ROWS = re.findall(r'^    \{\.path = "([^"]+)"(.*)\},?$', source.read(), re.M)
OPEN = {path for path, row in ROWS if ".open = true" in row}
PAGES = [("POST" if ".post = true" in row else "GET", path) for path, row in ROWS if path not in OPEN] + [("GET", "/nothing")]


def write(folder, name, text, mode=0o600):
    path = folder.path(name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def certificate(folder, name, days=2):
    cert, key = folder.path(name + ".pem"), folder.path(name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days),
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    os.chmod(key, 0o600)
    return cert, key


class Handshakes:
    """One client after the other, from before a change of certificates until after it: each must be served."""

    def __init__(self, port, context):
        self.port, self.context, self.n, self.wrong = port, context, 0, []
        self.threads = Background(self.shake)

    def shake(self):
        while not self.threads.stop.is_set():
            try:
                with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60 * SLOW, context=self.context)) as c:
                    c.request("GET", "/health")
                    c.getresponse().read()
                self.n += 1
            except (OSError, http.client.HTTPException) as e:
                self.wrong.append(e)

    def more(self):
        """Some have begun and ended since."""
        before = self.n
        wait_for(lambda: self.n >= before + 3 or self.wrong)

    def __enter__(self):
        self.threads.__enter__()
        return self

    def __exit__(self, *failure):
        self.threads.__exit__(*failure)


def served_until(s):
    """When the certificate ends that is served."""
    with contextlib.closing(s.connect()) as c:
        c.connect()
        return ssl.cert_time_to_seconds(c.sock.getpeercert()["notAfter"])


def serve_fails(folder, *args, words, status=2):
    done = subprocess.run([GRAFT, "serve", "--control", "127.0.0.1:0", "--model", TARGET, "--chat-template", "llama3", *args], capture_output=True,
                          text=True, timeout=60 * SLOW, env=folder.env())
    lines = done.stderr.splitlines()
    assert done.returncode == status and len(lines) == 1, (args, done.returncode, lines)
    for w in words:
        assert w in lines[0], (w, lines[0])


def raw(port, text, timeout=20):
    """All that comes back on a connection on which this was sent."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=timeout * SLOW)) as c:
        c.sendall(text)
        return read_all(c)


def hangup(s, words):
    """Has the server read its files again, and waits until it has said so."""
    before = s.log().count(words)
    s.p.send_signal(signal.SIGHUP)
    wait_for(lambda: s.log().count(words) > before)


@case
def every_page_but_health_needs_a_key():
    folder = Folder()
    keys = write(folder, "keys", f"# of the house\n{ALICE} alice\n\n{BOB}\n")
    with Endpoint("--api-key-file", keys, folder=folder, draft=False) as s:
        wrong = [{}, {"Authorization": "Bearer " + ALICE + "x"}, {"Authorization": "Bearer " + ALICE[:-1]},
                 {"Authorization": "Bearer "}, {"Authorization": "Basic " + ALICE}, {"Authorization": ALICE},
                 {"Authorization": "Bearer alice"}, {"X-Api-Key": ALICE}]
        assert OPEN == {"/health", "/"} and len(PAGES) >= 9, (OPEN, PAGES)
        for method, path in PAGES:
            for headers in wrong if path == "/v1/completions" else wrong[:2]:
                got, answer, r = s.ask(method, path, {"prompt": "x"} if method == "POST" else None, headers=headers)
                error = answer["error"]
                assert got == 401 and error["code"] == "invalid_api_key", (path, headers, got, answer)
                assert set(error) == {"message", "type", "param", "code"} and ALICE[:6] not in str(answer), answer
                assert r.getheader("WWW-Authenticate") == "Bearer", r.getheaders()
        two = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {ALICE}\r\nAuthorization: Bearer {ALICE}\r\n\r\n"
        assert raw(s.port, two.encode()).startswith(b"HTTP/1.1 401"), "two headers"
        assert s.ask("GET", "/health")[0] == 200
        head = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert raw(s.port, head).startswith(b"HTTP/1.1 200"), "HEAD"
        for key in (f"Bearer {ALICE}", f"bearer  {BOB} "):
            assert s.ask("GET", "/v1/models", headers={"Authorization": key})[0] == 200, key
            s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, headers={"Authorization": key})
        assert ALICE not in s.log() and BOB not in s.log()


@case
def a_key_is_revoked_while_a_stream_runs():
    folder = Folder()
    keys = write(folder, "keys", f"{ALICE}\n{BOB}\n")
    with Endpoint("--api-key-file", keys, folder=folder, key=BOB) as s:
        body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        c, r = s.open("POST", "/v1/completions", body, headers={"Authorization": f"Bearer {ALICE}"})
        with contextlib.closing(c):
            assert r.status == 200 and r.readline(), r.status
            write(folder, "keys", f"{BOB}\n")
            hangup(s, "were read again")
            assert s.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {ALICE}"})[0] == 401
            assert s.ask("GET", "/v1/models")[0] == 200
            assert r.read().endswith(b"data: [DONE]\n\n"), "the stream was cut"
        for text, mode in (("", 0o600), (f"{ALICE}\n", 0o644), ("a,b\n", 0o600)):
            write(folder, "keys", text, mode)
            hangup(s, "goes on with the keys and certificates that it had")
            assert s.ask("GET", "/v1/models")[0] == 200
        os.remove(keys)
        hangup(s, "goes on with the keys and certificates that it had")
        assert s.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {ALICE}"})[0] == 401
        s.complete()


@case
def keys_take_turns_in_the_queue():
    """One slot, which is taken; then one key has five requests there, and after them another has two."""
    folder = Folder()
    keys = write(folder, "keys", f"{ALICE} alice\n{BOB} bob\n")
    served, streams = [], {}
    with Endpoint("--api-key-file", keys, "--sessions", "1", folder=folder, key=ALICE, draft=False) as s, \
            contextlib.ExitStack() as stack:
        def ask(key):
            body = {"prompt": PROMPT, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
            c, r = s.open("POST", "/v1/completions", body, headers={"Authorization": f"Bearer {key}"})
            stack.callback(c.close)
            streams[r.getheader("X-Graft-Session")] = (key, c)

        def runs():
            return [x["id"] for x in s.sessions() if x["state"] == "running" and x["id"] in streams]
        for n, key in enumerate(6 * [ALICE] + 2 * [BOB]):
            ask(key)
            wait_for(lambda n=n: s.metrics()["graft_num_requests_waiting"] == n and runs())
        while streams:
            wait_for(runs)
            key, c = streams.pop(runs()[0])
            served.append(key)
            c.close()
        assert served[0] == ALICE and served[1:5].count(BOB) == 2, [k.split("-")[1] for k in served]


@case
def what_is_wrong_is_told_at_the_start():
    folder = Folder()
    keys = write(folder, "keys", f"{ALICE}\n")
    here = ("--http", "127.0.0.1:0")
    for http in ("0.0.0.0:0", ":0", "[::]:0"):
        serve_fails(folder, "--http", http, words=("--api-key-file", "127.0.0.1", "--insecure"))
    for text, mode, words in ((f"{ALICE}\n", 0o640, ("0640", "chmod 600")), ("# none\n", 0o600, ("no key",)),
                              ("good-key-0123456789\nbad\u00e4key-0123456789\n", 0o600, ("line 2", "character 4")),
                              (f"{ALICE} a\n{ALICE} b\n", 0o600, ("line 2", "line 1"))):
        path = write(folder, "bad", text, mode)
        serve_fails(folder, *here, "--api-key-file", path, words=(path, *words))
    serve_fails(folder, *here, "--api-key-file", folder.path("none"), words=("No such file",), status=1)
    serve_fails(folder, *here, "--api-key-file", folder.dir.name, words=("no regular file",))
    cert, key = certificate(folder, "a")
    _, other = certificate(folder, "b")
    serve_fails(folder, *here, "--tls-cert", cert, words=("--tls-key",))
    serve_fails(folder, *here, "--tls-key", key, words=("--tls-cert",))
    serve_fails(folder, *here, "--tls-cert", cert, "--tls-key", other, words=("does not belong", other))
    serve_fails(folder, *here, "--tls-cert", keys, "--tls-key", key, words=("--tls-cert " + keys,))
    serve_fails(folder, *here, "--tls-cert", cert, "--tls-key", keys, words=("--tls-key " + keys,))
    os.chmod(key, 0o644)
    serve_fails(folder, *here, "--tls-cert", cert, "--tls-key", key, words=("0644",))


@case
def browsers_get_no_leave():
    with Endpoint("--http-host", "llm.example", draft=False) as s:
        for host, status in (("localhost", 200), (f"localhost:{s.port}", 200), ("[::1]:9", 200), ("llm.example", 200),
                             ("llm.example:443", 200), ("evil.test", 403), ("localhost.evil.test", 403),
                             ("127.0.0.1.nip.io", 403), ("localhost:1.evil", 403), ("0.0.0.0", 403)):
            for path in ("/v1/models", "/health"):
                got, answer, _ = s.ask("GET", path, headers={"Host": host})
                assert got == status and (status == 200 or "--http-host" in answer["error"]["message"]), (host, path, got, answer)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", None):
            got, answer, _ = s.ask("POST", "/v1/completions", {"prompt": "x"}, headers={"Content-Type": kind})
            assert got == 415, (kind, got, answer)
        assert s.ask("POST", "/tokenize", {"prompt": "x"}, headers={"Content-Type": "Application/JSON; charset=utf-8"})[0] == 200
        for line in (b"/health HTTP/1.1\r\n", b"/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
                     b"/health%00x HTTP/1.1\r\nHost: localhost\r\n"):
            got = raw(s.port, b"GET " + line + b"Connection: close\r\n\r\n")
            assert b" 400 " in got[:20], (line, got)
        assert b" 200 " in raw(s.port, b"GET /health HTTP/1.0\r\n\r\n")[:20]
        for length in (b"Content-Length: 2\r\nContent-Length: 3", b"Content-Length: 2\r\nTransfer-Encoding: chunked"):
            got = raw(s.port, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + length + b"\r\n\r\n{}")
            assert b" 400 " in got[:20] and got.count(b"HTTP/1.1") == 1, (length, got)  # and the connection is closed
        from_page = {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST",
                     "Access-Control-Request-Headers": "content-type"}
        for method, path in (("OPTIONS", "/v1/completions"), ("OPTIONS", "/health"), ("GET", "/v1/models"), ("GET", "/nothing")):
            got, _, r = s.ask(method, path, headers=from_page)
            assert (got == 405) == (method == "OPTIONS"), (method, path, got)
            assert not [k for k, _ in r.getheaders() if k.lower().startswith("access-control")], r.getheaders()


def half_a_hello():
    """Of a client of TLS."""
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    hello = said.read()
    return hello[:len(hello) // 2]


def who_never_shake_hands(s, stack, n):
    """Clients of TLS that say nothing, and others that stop within their first message."""
    half, all_of_them = half_a_hello(), []
    for i in range(2 * n):
        c = stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)))
        c.sendall(half if i % 2 else b"")
        all_of_them.append(c)
    return all_of_them


@case
def streams_come_through_tls():
    """Beside clients that never shake hands."""
    folder = Folder()
    cert, key = certificate(folder, "first")
    keys = write(folder, "keys", f"{ALICE}\n")
    mine = ssl.create_default_context(cafile=cert)
    args = ("--tls-cert", cert, "--tls-key", key, "--api-key-file", keys, "--http-request-timeout", "5" if SLOW < 2 else "10")
    with Endpoint(*args, folder=folder, key=ALICE, tls=mine) as s, contextlib.ExitStack() as stack:
        strangers = who_never_shake_hands(s, stack, 200)
        begin = time.monotonic()
        assert s.ask("GET", "/health")[0] == 200
        print(f"# /health beside {len(strangers)} of these: {(time.monotonic() - begin) * 1e3:.1f} ms")
        assert time.monotonic() - begin < 4 * SLOW
        whole = s.complete(max_tokens=60)["choices"][0]["text"]
        events = s.stream("/v1/completions", prompt=PROMPT, max_tokens=60, temperature=0)
        assert "".join(c["text"] for e in events for c in e["choices"]) == whole, events
        assert s.ask("GET", "/v1/models", headers={"Authorization": "Bearer x"})[0] == 401
        assert b"200 OK" not in raw(s.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        s.tls = ssl.create_default_context(cafile=cert)
        s.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        assert s.ask("GET", "/version")[0] == 200
        s.tls = mine
        # who goes away is noticed, in the queue, in mid-stream and before the first byte
        body = {"prompt": PROMPT, "max_tokens": ENDLESS, "temperature": 0, "ignore_eos": True}
        for stream in (True, False):
            c = s.connect()
            c.request("POST", "/v1/completions", json.dumps(dict(body, stream=stream)),
                      {"Content-Type": "application/json", "Authorization": f"Bearer {ALICE}"})
            wait_for(lambda: s.metrics()["graft_num_requests_running"] == 1)
            c.close()
            wait_for(s.is_quiet)
        # another certificate, while a stream runs
        c, r = s.open("POST", "/v1/completions", dict(body, max_tokens=400, stream=True))
        with contextlib.closing(c):
            assert r.status == 200 and r.readline()
            until = served_until(s)
            assert s.metrics()[TLS_END] == until
            new_cert, new_key = certificate(folder, "second", days=9)
            both = ssl.create_default_context(cafile=cert)
            both.load_verify_locations(cafile=new_cert)
            with Handshakes(s.port, both) as others:
                others.more()
                os.replace(new_cert, cert)
                hangup(s, "goes on with the keys and certificates that it had")  # they do not belong together yet
                assert s.metrics()[TLS_END] == until
                others.more()
                os.replace(new_key, key)
                hangup(s, "were read again")
                others.more()
            assert others.n >= 9 and not others.wrong, (others.n, others.wrong)
            s.tls = ssl.create_default_context(cafile=cert)
            assert s.ask("GET", "/health")[0] == 200
            assert s.metrics()[TLS_END] == served_until(s) > until + 6 * 86400
            assert r.read().endswith(b"data: [DONE]\n\n"), "the stream was cut"
        try:
            s.tls = mine
            s.ask("GET", "/health")
            raise AssertionError("the former certificate is served")
        except ssl.SSLCertVerificationError:
            pass
        for c in strangers:
            read_all(c)  # until it is closed, or in vain after 20 s
        print(f"# all were closed after {time.monotonic() - begin:.1f} s at most")


@case
def requests_that_are_too_large_or_too_slow():
    with Endpoint("--http-request-timeout", "1" if SLOW < 2 else "5", "--http-idle-timeout", "2", draft=False) as s:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert b" 414 " in raw(s.port, b"GET /" + b"x" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[:20]
        for n in (70 << 10, 1 << 20):
            text = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"x" * n + b"\r\n\r\n"
            with contextlib.closing(socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)) as c:
                with contextlib.suppress(ConnectionError):
                    c.sendall(text)
                got = read_all(c)
            assert b" 431 " in got[:20] or n > 1 << 17 and got == b"", (n, got[:100])

        def slow(text, pieces):
            """All that comes back to one who sends the rest bit by bit, and after how long it ends."""
            begin, got = time.monotonic(), b""
            with contextlib.closing(socket.create_connection(("127.0.0.1", s.port))) as c:
                c.sendall(text)
                c.settimeout(.2)
                while time.monotonic() < begin + 30 * SLOW:
                    try:
                        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                            c.sendall(pieces)
                        chunk = c.recv(4096)
                        if not chunk:
                            return got, time.monotonic() - begin
                        got += chunk
                    except TimeoutError:
                        pass
                    except ConnectionResetError:
                        return got, time.monotonic() - begin
            raise AssertionError(f"a slow one is still there: {text}")

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = {"line": pool.submit(slow, b"GET /hea", b"x"),
                    "head": pool.submit(slow, head, b"X: y\r\n"),
                    "body": pool.submit(slow, head + b"Content-Length: 1000\r\n\r\n{", b" "),
                    "chunks": pool.submit(slow, head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
                    "idle": pool.submit(slow, b"", b""),
                    "next": pool.submit(slow, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", b"x"),
                    "pool": pool.submit(slow, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"")}
            for name, job in jobs.items():
                got, seconds = job.result()
                print(f"# {name}: {got[:26]} after {seconds:.1f} s")
                want = {"line": b"", "idle": b"", "next": b"HTTP/1.1 200", "pool": b"HTTP/1.1 200"}.get(name, b"HTTP/1.1 408")
                assert got.startswith(want) and (want or not got) and seconds > .9, (name, got, seconds)
        assert s.ask("GET", "/health")[0] == 200
        s.complete()
        slow_ones = {f'graft_http_requests_total{{path="{path}",code="408"}}': n for path, n in (("/v1/completions", 2), ("other", 1))}
        wait_for(lambda: {k: v for k, v in s.metrics().items() if 'code="408"' in k} == slow_ones)
        assert s.metrics()['graft_http_requests_total{path="other",code="none"}'] == 1  # headers of 1 MiB


@case
def idle_connections_are_in_nobodys_way():
    n = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, n + 500)), hard))
    with Endpoint(draft=False) as s, contextlib.ExitStack() as idle:
        want = s.complete(max_tokens=300, ignore_eos=True)["choices"][0]["text"]
        for i in range(n):
            c = idle.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)))
            c.sendall((b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
                       b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")[i % 4])
        got = []
        t = threading.Thread(target=lambda: got.append(s.complete(max_tokens=300, ignore_eos=True)["choices"][0]["text"]))
        t.start()
        times = []
        while t.is_alive() or len(times) < 50:
            at = time.monotonic()
            assert s.ask("GET", "/health")[0] == 200
            times.append(time.monotonic() - at)
        t.join()
        times.sort()
        print(f"# /health beside {n} idle connections: median {times[len(times) // 2] * 1e3:.1f} ms, worst {times[-1] * 1e3:.1f} ms")
        assert got == [want] and times[len(times) // 2] < .05 * SLOW, times[len(times) // 2]


@case
def beyond_the_limit_idle_connections_make_room():
    with Endpoint("--http-connections-per-address", "6", "--http-connections", "50", "--sessions", "8", draft=False) as s, \
            contextlib.ExitStack() as stack:
        idle = [stack.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)))
                for _ in range(20)]
        assert idle[0].recv(1) == b"", "the first is still there"
        s.complete()
        streams = []
        for _ in range(6):
            body = {"prompt": PROMPT, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
            c, r = s.open("POST", "/v1/completions", body)
            stack.callback(c.close)
            assert r.status == 200, r.status
            streams.append(r)
        got, answer, r = s.ask("POST", "/v1/completions", {"prompt": PROMPT})
        assert got == 429 and "--http-connections-per-address" in answer["error"]["message"], (got, answer)
        assert r.getheader("Retry-After") == "1" and r.getheader("Connection") == "close", r.getheaders()
        assert s.ask("GET", "/health")[0] == 200
        assert all(r.readline() for r in streams)


@case
def other_hosts_are_let_in_by_keys_or_by_leave():
    for args, status in ((("--insecure",), 200), (("--api-key-file",), 401)):
        folder = Folder()
        if status == 401:
            args = (*args, write(folder, "keys", ALICE))
        with Endpoint(*args, http="0.0.0.0:0", folder=folder, draft=False) as s:
            assert s.ask("GET", "/v1/models", headers={"Host": "gpu7.cluster"})[0] == status
            assert s.ask("GET", "/health", headers={"Host": "gpu7.cluster"})[0] == 200


main()
