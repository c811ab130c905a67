#!/usr/bin/env python3
"""The page at / in headless Chromium: a person chats, stops, loads it again, goes by keyboard, on a phone, in the dark.
Screenshots lie in BUILD_DIR/page. Skipped, with the reason, where there is no Chromium.

usage: test_browser.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import http.client
import http.server
import json
import os
import re
import signal
import threading
import time

import browser
from harness import BUILD, ROOT, SLOW, Skip, case, main, wait_for
from endpoint import PROMPT, Endpoint, Journalled
from served import Folder, worker

FORM = ("--chat-template", "llama3")
SHOTS = os.path.join(BUILD, "page")
KEY = "sk-page-0123456789abcdef"
SESSION = "00c0ffee00c0ffee"
WIDE, PHONE = (1360, 860), (360, 740)
SET = """(() => { for (const [k, v] of Object.entries(%s)) { const e = document.getElementById(k);
    e.type === 'checkbox' ? e.checked = v : e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); } })()"""
PLAIN = {"mode": "plain", "spec": "8", "temperature": "0", "tokens": "60"}
LONG = 4000  # tokens of an answer that is met in its midst
DONE = "!abort && turns.length > 1 && document.getElementById('send').textContent === 'Send'"


def text_of(s):
    return s.complete(prompt=PROMPT, max_tokens=LONG, num_speculative_tokens=8)["choices"][0]["text"]


@contextlib.contextmanager
def opened(server, size=WIDE, dark=False, path="/", **set_to):
    """The page of a server, with a fleet, and nothing to complain of at the end."""
    if browser.PROGRAM is None:
        raise Skip("there is no Chromium (apt-get install --no-install-recommends chromium)")
    with browser.Browser(*size, dark) as b:
        b.go(f"http://127.0.0.1:{server.port}{path}")
        if set_to:
            b.eval(SET % json.dumps(set_to))
        yield b
        assert b.complaints() == [], b.complaints()
        home = f"http://127.0.0.1:{server.port}{path.split('?')[0]}"
        others = [a for a in b.asked() if not a.startswith((home, "data:", "about:"))]
        assert not others, others


def shoot(b, name):
    os.makedirs(SHOTS, exist_ok=True)
    b.shoot(os.path.join(SHOTS, name + ".png"))


def is_up(b):
    b.wait("document.getElementById('state').className === 'good'")


def send(b, words, key="Enter"):
    b.eval("document.getElementById('prompt').focus()")
    b.type(words)
    b.press(key)


def last_text(b):
    return b.eval("[...document.querySelectorAll('#log .assistant .text')].at(-1)?.textContent")


# ---- with a real fleet ----

@case
def an_answer_streams_and_is_the_servers():
    with Endpoint(*FORM) as s, opened(s, **PLAIN) as b:
        is_up(b)
        shoot(b, "empty")
        want = s.complete(prompt=PROMPT, max_tokens=60, num_speculative_tokens=8)
        send(b, PROMPT)
        b.wait(DONE)
        shoot(b, "answer")
        assert last_text(b) == want["choices"][0]["text"], last_text(b)
        used = want["metrics"]["speculative_decoding"]
        assert b.eval("facts.accepted") == used["num_accepted_tokens"] and b.eval("facts.tokens") == 60
        # What is marked is what rounds say was drafted and taken, or a part that was no whole character.
        drafted = b.eval("[...document.querySelectorAll('#log .assistant .d')].map(e => e.textContent).join('')")
        taken = b.eval("rounds.map(r => r.tree ? r.tree.path.map(i => r.tree.tokens[i]).join('') : '').join('')")
        assert drafted == taken and taken, (drafted, taken)
        assert "60 tokens" in b.eval("document.querySelector('#log .assistant .note').textContent")
        assert b.eval("document.querySelectorAll('#tree svg .on rect').length") == \
            b.eval("rounds.at(-1).tree ? rounds.at(-1).tree.path.length : 0")
        b.wait("document.querySelectorAll('#workers li').length === 2 && before.totals.rounds > 0")
        send(b, "\n")  # nothing but white space is not sent
        assert b.eval("turns.length") == 2


def ended(s, n):
    """So many answers were stopped at the server, which has nothing to do any more."""
    wait_for(lambda: s.metrics()['graft_request_success_total{finished_reason="stop"}'] == n)
    wait_for(s.is_quiet)
    assert s.metrics()['graft_request_success_total{finished_reason="abort"}'] == 0


@case
def a_conversation_is_stopped_and_gone_on_with():
    with Endpoint(*FORM) as s, opened(s, mode="chat", temperature="0", tokens="3000", spec="8") as b:
        is_up(b)
        send(b, "def add(a, b):")
        b.wait("rounds.length > 3")
        assert b.eval("document.getElementById('send').textContent") == "Stop"
        b.press("Escape")
        b.wait(DONE)
        stopped = last_text(b)
        note = b.eval("document.querySelector('#log .assistant .note').textContent")
        assert stopped and "stopped" in note and "Ask again" in note, note
        assert b.eval("document.getElementById('status').textContent") == "Stopped."
        ended(s, 1)
        b.eval(SET % json.dumps({"tokens": "10"}))
        b.click("#log .note button")
        b.wait(DONE + " && facts.usage?.tokens === 10")
        again = last_text(b)  # either may be the longer one
        assert stopped.startswith(again) or again.startswith(stopped), (stopped, again)
        assert b.eval("turns.length") == 2
        b.eval(SET % json.dumps({"tokens": "3000"}))
        send(b, "def add(a, b):")
        b.wait("rounds.length > 3")
        b.click("#fresh")
        assert b.eval("turns.length") == 0 and b.eval("document.activeElement.id") == "prompt"
        b.wait("document.querySelector('#log .empty')")
        ended(s, 2)
        b.eval(SET % json.dumps({"spec": "0"}))
        b.eval("(document.getElementById('prompt').value = 'def add(a, b):', send(), stop())")  # before it has a name
        b.wait(DONE)
        assert last_text(b) == "", last_text(b)
        ended(s, 3)


@case
def what_cannot_be_answered_is_said_and_given_back():
    with Endpoint() as s, opened(s, mode="chat") as b:  # a model without a chat template
        is_up(b)
        send(b, "Hello")
        b.wait("document.getElementById('alert').textContent")
        assert "template" in b.eval("document.getElementById('alert').textContent")
        assert b.eval("document.getElementById('prompt').value") == "Hello" and b.eval("turns.length") == 0
        b.reload()
        is_up(b)
        assert b.eval("document.getElementById('mode').value") == "chat"  # it was chosen


def resumed_whole(b, want):
    """The answer is over, and is the whole text; the page has gone on with it by itself."""
    b.wait(DONE, 120)
    note = b.eval("document.querySelector('#log .assistant .note').textContent")
    assert last_text(b) == want and "resumed" in note and f"{LONG} tokens" in note, (last_text(b), want, note)


@case
def a_page_that_is_loaded_in_mid_answer_goes_on():
    with Endpoint(*FORM) as s, opened(s, **dict(PLAIN, tokens=str(LONG))) as b:
        is_up(b)
        want = text_of(s)
        send(b, PROMPT)
        b.wait("rounds.length > 3")
        begun = last_text(b)
        b.reload()
        assert b.eval("turns[0].text") == PROMPT and b.eval("document.getElementById('tokens').value") == str(LONG)
        b.wait(f"turns[1].text.length > {len(begun)}")
        b.reload()
        resumed_whole(b, want)
        shoot(b, "reloaded")


@case
def a_page_goes_on_by_itself_when_its_server_is_killed():
    """Twice in one answer; the server is started again by its supervisor, on its journal."""
    with Journalled(*FORM) as s, worker("graft-target", s.folder, s.address, "--rejoin-timeout", "300"):
        s.wait()
        want = text_of(s)
        with opened(s, **dict(PLAIN, tokens=str(LONG), spec="0")) as b:
            is_up(b)
            send(b, PROMPT)
            for name in ("killed", "killed-again"):
                had = len(last_text(b) or "")
                b.wait(f"turns[1]?.text.length > {had} + 200")
                s.p.send_signal(signal.SIGSTOP)  # the supervisor, so that there is nobody for a while
                s.kill()
                b.wait("turns[1].waits && document.getElementById('state').className === 'bad'")
                shoot(b, name)
                s.p.send_signal(signal.SIGCONT)
                b.wait("!turns[1].waits && turns[1].live.again")
                is_up(b)
            resumed_whole(b, want)
            assert b.eval("a_round(facts)") == "1.00", b.eval("facts")  # rounds that nobody was told do not count


@case
def a_key_stays_in_the_tab():
    folder = Folder()
    keys = folder.path("api.keys")
    with open(keys, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(KEY + "\n")
    with Endpoint("--api-key-file", keys, *FORM, folder=folder, key=KEY) as s, opened(s, **PLAIN) as b:
        b.wait("document.getElementById('state').textContent === 'an API key is needed'")
        assert b.eval("document.getElementById('settings').open")
        shoot(b, "key")
        send(b, PROMPT)
        b.wait("document.getElementById('alert').textContent")
        assert b.eval("document.activeElement.id") == "key"
        b.type(KEY)
        b.press("Tab")
        is_up(b)
        b.eval("document.getElementById('prompt').focus()")
        b.press("Enter")
        b.wait(DONE)
        assert KEY not in b.eval("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
        want = text_of(s)
        b.click("#fresh")
        b.eval(SET % json.dumps({"tokens": str(LONG)}))
        send(b, PROMPT)
        b.wait("rounds.length > 3")
        b.reload()  # the answer goes on when there is a key again
        b.wait("turns[1].cut && document.getElementById('state').textContent === 'an API key is needed'")
        shoot(b, "key-again")
        assert b.eval("document.activeElement.id") == "key"
        b.type(KEY)
        b.press("Tab")
        resumed_whole(b, want)
        b.reload()
        b.wait("document.getElementById('state').textContent === 'an API key is needed'")
        b.eval(SET % json.dumps({"key": KEY, "keep": True}))
        b.eval("poll()")
        is_up(b)
        b.reload()
        is_up(b)
        assert b.eval("document.getElementById('key').value") == KEY
        b.eval("document.getElementById('settings').open = true")
        b.click("#keep")
        assert KEY not in b.eval("JSON.stringify({...sessionStorage})"), b.eval("document.getElementById('keep').checked")


@case
def a_link_to_the_page_asks_nothing():
    with Endpoint(*FORM) as s, opened(s, path="/?q=hello&prompt=hello#hello", **PLAIN) as b:
        is_up(b)
        b.wait("polls > 1 && document.getElementById('model').value")
        assert b.eval("turns.length") == 0 and b.eval("document.getElementById('prompt').value") == ""
        assert s.metrics()["graft_requests_total"] == 0
        send(b, PROMPT)
        b.wait(DONE)
        assert s.metrics()["graft_requests_total"] == 1


class Threaded:
    """A server of this process, at a port of its own."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Proxy(Threaded):
    """Hands what is asked under /llm/ on to the endpoint at a port, without that part of the path, and bytes as they come."""

    def __init__(self, to):
        self.strays = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def hand_on(self):
                if not self.path.startswith("/llm/"):
                    proxy.strays.append(self.path)
                    self.send_error(404)
                    return
                asked = {k: v for k, v in self.headers.items() if k != "Connection"}
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", to, timeout=300 * SLOW)) as c, \
                        contextlib.suppress(OSError):  # of who goes away in mid-stream
                    c.request(self.command, self.path[len("/llm"):], body or None, asked)
                    r = c.getresponse()
                    self.send_response_only(r.status)
                    for name, value in r.getheaders():
                        if name not in ("Connection", "Transfer-Encoding"):
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    while some := r.read1(65536):
                        self.wfile.write(some)

            do_GET = do_POST = hand_on

        super().__init__(Handler)


@case
def a_proxy_may_have_it_under_a_path():
    """An answer, one that is resumed, and one that is stopped: all is asked for under that path."""
    with Endpoint(*FORM) as s, Proxy(s.port) as proxy, opened(proxy, path="/llm/", **PLAIN) as b:
        is_up(b)
        want = s.complete(prompt=PROMPT, max_tokens=60, num_speculative_tokens=8)["choices"][0]["text"]
        send(b, PROMPT)
        b.wait(DONE)
        assert last_text(b) == want, last_text(b)
        b.click("#fresh")
        b.eval(SET % json.dumps({"tokens": "30000"}))
        send(b, PROMPT)
        b.wait("rounds.length > 3")
        b.reload()
        b.wait(f"turns[1].live?.again && turns[1].text.length > {len(want)}")
        b.press("Escape")
        b.wait(DONE)
        assert last_text(b).startswith(want), last_text(b)
        ended(s, 1)
        assert not proxy.strays, proxy.strays


# ---- with a server that does what a real one cannot be made to ----

class Stand(Threaded):
    """Serves the page, and answers of its own: `told` are the pieces; the first stream breaks off after `hold` of them, or
    after `last`. `form` changes a stream's bytes, of which `step` are written at a time (0: all that there are)."""

    def __init__(self, told, hold, resumes=200, models=("stand",)):
        with open(os.path.join(ROOT, "orchestrator/http/look.html"), encoding="utf-8") as f:
            page = f.read().encode()
        self.told, self.hold, self.resumes, self.from_ = told, hold, resumes, []
        self.waits = threading.Event()  # set: a stream that is held ends
        self.form, self.step, self.last = (lambda text: text), 0, b""
        fleet = json.dumps({"models": [{"id": m, "chat": True} for m in models],
                            "workers": [{"worker": 1, "role": "target", "state": "<b>serving</b>", "slots": 4, "active": 1}],
                            "sessions": {}, "totals": {}}).encode()
        stand = self

        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def say(self, text):
                text = stand.form(text)
                step = stand.step or max(1, len(text))
                for i in range(0, len(text), step):
                    self.wfile.write(text[i:i + step])

            def head(self, status, kind, **more):
                self.send_response(status)
                for name, value in dict({"Content-Type": kind, "Connection": "close"}, **more).items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()

            def events(self, first, end):
                self.say(b"retry: 1100\n")
                for i in range(first, end):
                    round_ = {"round": i, "keep_len": i, "tokens": [stand.told[i]], "n_draft": 1, "verify_ns": 1000000,
                              "tree": {"tokens": [stand.told[i]], "parents": [-1], "path": []}}
                    for name, e in (("", {"choices": [], "graft": {"index": 0, "round": round_}}),
                                    (f"id: {SESSION}-1-{i + 1}\n", {"choices": [{"index": 0, "delta": {"content": stand.told[i]}}]})):
                        self.say(f"{name}data: {json.dumps(e)}\n\n".encode())

            def do_GET(self):
                if self.path == "/":
                    self.head(200, "text/html; charset=utf-8", Content_Security_Policy=stand.policy)
                    self.wfile.write(page)
                elif self.path == "/v1/graft/fleet":
                    self.head(200, "application/json")
                    self.wfile.write(fleet)
                elif m := re.fullmatch(rf"/v1/sessions/{SESSION}/stream\?from=(\d+)", self.path):
                    stand.from_.append(int(m[1]))
                    self.head(stand.resumes, "text/event-stream")
                    if stand.resumes == 200:
                        self.events(int(m[1]), len(stand.told))
                        self.wfile.write(b"data: [DONE]\n\n")
                else:
                    self.head(404, "application/json")

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.head(200, "text/event-stream", X_Graft_Session=SESSION)
                with contextlib.suppress(OSError):
                    self.events(0, stand.hold)
                    stand.waits.wait(60)
                    self.say(stand.last)

        with Endpoint(spawn=False, *("--model", os.path.join(ROOT, "models/demo/target"))) as s:
            self.policy = s.ask("GET", "/")[2].getheader("Content-Security-Policy")
        super().__init__(Handler)

    def __exit__(self, *_):
        self.waits.set()
        super().__exit__()


WORDS = [f"word{i} " for i in range(40)]


@case
def a_page_that_is_loaded_again_resumes_its_answer():
    with Stand(WORDS, 17) as s, opened(s) as b:
        is_up(b)
        send(b, "Tell me")
        b.wait("turns.at(-1)?.live?.at === 17")
        b.reload()
        b.wait(DONE)
        assert s.from_ == [17], s.from_
        assert last_text(b) == "".join(WORDS), last_text(b)
        assert "resumed" in b.eval("document.querySelector('#log .assistant .note').textContent")
        shoot(b, "resumed")


@case
def an_answer_whose_connection_breaks_is_resumed():
    with Stand(WORDS, 9) as s, opened(s) as b:
        is_up(b)
        send(b, "Tell me")
        b.wait("turns.at(-1)?.live?.at === 9")
        broke = time.monotonic()
        s.waits.set()
        b.wait(DONE)
        assert b.eval("retry_ms") == 1100 and time.monotonic() - broke > .8  # it has waited as it was told
        assert s.from_ == [9] and last_text(b) == "".join(WORDS), (s.from_, last_text(b))


@case
def an_answer_that_the_server_does_not_hold_is_cut_with_a_word():
    with Stand(WORDS, 5, resumes=404) as s, opened(s) as b:
        is_up(b)
        send(b, "Tell me")
        b.wait("turns.at(-1)?.live?.at === 5")
        b.reload()
        b.wait(DONE)
        note = b.eval("document.querySelector('#log .assistant .note').textContent")
        assert "does not hold this answer any more" in note and "Ask again" in note, note
        shoot(b, "cut")
        assert s.from_ == [5] and last_text(b) == "".join(WORDS[:5]), s.from_


NO_EVENTS = b': x\n\ndata:\n\nevent: ping\n\nevent: ping\ndata: {"choices": [{"delta": {"content": "no"}}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {"content": "end."}, "finish_reason": "length"}]}'


def other(line_end):
    return lambda text: text.replace(b": ", b":").replace(b"\n", line_end)


# What becomes of a stream's bytes, how many are written at a time, its last bytes, and whether it is told whole with them.
FORMS = ((lambda text: text.replace(b"\n\n", b"\n\n" + NO_EVENTS), 0, END + b"\n\n", True),
         (bytes, 0, END + b"\n", True), (bytes, 0, END, True), (bytes, 0, b"data: [DONE]", True),
         (bytes, 0, END[:-1], False), (bytes, 0, b"data: [DON", False),
         (other(b"\r\n"), 1, END + b"\n\n", True), (other(b"\r\n"), 1, END, True), (other(b"\r"), 1, END + b"\n\n", True))


@case
def a_stream_is_read_however_it_is_written():
    """Blocks that are no events between its own, line ends of all kinds, byte by byte, and ends that lack their empty line. One
    that is cut within an event is resumed before it."""
    with Stand(WORDS, len(WORDS)) as s, opened(s) as b:
        s.waits.set()
        is_up(b)
        for s.form, s.step, s.last, is_whole in FORMS:
            s.from_.clear()
            send(b, "Tell me")
            b.wait(DONE)
            want = "".join(WORDS) + ("end." if s.last.startswith(END) else "")
            assert last_text(b) == want and s.from_ == ([] if is_whole else [len(WORDS)]), (s.last, s.from_, last_text(b))
            b.click("#fresh")


READ = """(async () => { const seen = new Set(), whole = new TextEncoder().encode(%s);
  for (let at = 0; at <= whole.length; at++) {
    const told = [], body = new ReadableStream({start: c => { c.enqueue(whole.slice(0, at)); c.enqueue(whole.slice(at)); c.close(); }});
    told.push(await events({body}, (id, data) => told.push([id, data])));
    seen.add(JSON.stringify(told));
  }
  return [...seen]; })()"""


@case
def a_stream_is_read_wherever_it_is_cut_in_two():
    with Stand(WORDS, 0) as s, opened(s) as b:
        for end in ("\n", "\r\n", "\r"):
            text = ': x\n\nid: 1\ndata: {"a":\ndata:"\u00e9"}\n\ndata:\n\nevent: ping\n\nid:2\ndata:[2]\n\n'
            for last, is_end in (("", False), ("data: [DONE]\n\n", True), ("data: [DONE]", True)):
                got = b.eval(READ % json.dumps((text + last).replace("\n", end)))
                assert [json.loads(g) for g in got] == [[["1", {"a": "\u00e9"}], ["2", [2]], is_end]], (end, last, got)


@case
def what_a_server_says_is_text():
    evil = ["<img src=x onerror=document.title='evil'>", "<script>document.title='evil'</script>", "\u202e\x00\x1b[2J",
            "javascript:alert(1)", "<svg/onload=document.title='evil'>"]
    with Stand(evil, len(evil), models=("<b>m</b>",)) as s, opened(s) as b:
        is_up(b)
        send(b, "<i>hello</i>")
        b.wait("turns.at(-1)?.live?.at === 5")
        s.waits.set()
        b.wait(DONE)
        assert last_text(b) == "".join(evil), last_text(b)
        assert b.eval("document.title") == "graft"
        assert b.eval("document.querySelectorAll('img, i i b, #workers span b, script').length") == 1
        assert b.eval("document.querySelector('#model').value") == "<b>m</b>"
        assert "<img" in b.eval("(pick(0), document.querySelector('#tree-said').textContent)")


# ---- how it looks and is reached ----

@case
def everything_is_reached_by_keyboard():
    with Endpoint(*FORM) as s, opened(s, **PLAIN) as b:
        is_up(b)
        send(b, PROMPT)
        b.wait(DONE)
        b.eval("document.querySelector('a').focus()")
        order = []
        for _ in range(30):
            b.press("Tab")
            order.append(b.eval("document.activeElement.id || document.activeElement.tagName"))
            if order[-1] == "BODY":
                break
        known = [o for o in order if o not in ("BODY", "A")]
        assert known[:3] == ["fresh", "SUMMARY", "log"] and known[-4:] == ["prompt", "send", "tree", "strip"], order
        b.eval("document.querySelector('summary').focus()")
        b.press("Enter")
        assert b.eval("document.getElementById('settings').open")
        b.press("Tab")
        assert b.eval("document.activeElement.id") == "model"
        b.eval("document.getElementById('strip').focus()")
        count = b.eval("rounds.length")
        b.press("Home")
        first = b.eval("document.getElementById('strip').getAttribute('aria-valuetext')")
        b.press("ArrowRight")
        assert first.startswith("round 0") and b.eval("picked") == 1, first
        assert b.eval("document.getElementById('strip').getAttribute('aria-valuenow')") == "1"
        shoot(b, "picked")
        b.press("End")
        assert b.eval("picked") == -1 and b.eval("document.getElementById('strip').getAttribute('aria-valuemax')") == str(count - 1)
        # Every field has a name that is read out.
        assert b.eval("[...document.querySelectorAll('input, select, textarea, button')].filter(e => "
                      "!(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).length") == 0


WIDER = """(() => { const said = %s; if (said) document.getElementById('state').textContent = said;
    return [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length &&
      e.getBoundingClientRect().right > 361 && !e.closest('#tree')).map(e => e.outerHTML.slice(0, 80)); })()"""


@case
def nothing_is_wider_than_a_phone():
    with Endpoint(*FORM) as s, opened(s, PHONE, **PLAIN) as b:
        is_up(b)
        send(b, PROMPT)
        b.wait(DONE)
        for name in ("chat", "rounds", "fleet"):
            b.click(f"nav [data-to={name}]")
            for state in ("", 4 * "the server cannot be reached "):
                wide = b.eval(WIDER % json.dumps(state))
                assert not wide and b.eval("document.documentElement.scrollWidth") <= 360, (name, state, wide)
            shoot(b, f"phone-{name}")
            seen = {n: b.eval(f"document.querySelector('{q}').getClientRects().length > 0")
                    for n, q in (("chat", "#prompt"), ("rounds", "#tree"), ("fleet", "#workers"))}
            assert [n for n, s_ in seen.items() if s_] == [name], seen
        b.click("nav [data-to=chat]")
        b.click("summary")
        shoot(b, "phone-settings")
        small = b.eval("[...document.querySelectorAll('button, select')].filter(e => e.getClientRects().length && "
                       "e.getBoundingClientRect().height < 28).length")
        assert small == 0, small


CONTRAST = """(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number), light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .03928 ?
    v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (rgb(c)[3] !== 0) return c; } return 'rgb(255, 255, 255)'; };
  return [...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) &&
    e.getClientRects().length && !e.closest('svg, script, style, option')).map(e => { const a = light(getComputedStyle(e).color), b = light(behind(e));
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.slice(0, 30)]; }).filter(c => c[0] < 4.5);
})()"""


@case
def it_is_read_in_the_dark_as_in_the_light():
    with Endpoint(*FORM) as s, opened(s, **PLAIN) as b:
        is_up(b)
        send(b, PROMPT)
        b.wait(DONE)
        b.wait("before?.totals.rounds > 0")
        b.eval("document.getElementById('settings').open = true")
        paper = []
        for dark in (False, True):
            b.look(*WIDE, dark)
            shoot(b, "dark" if dark else "light")
            assert b.eval(CONTRAST) == [], (dark, b.eval(CONTRAST))
            paper.append(b.eval("getComputedStyle(document.body).backgroundColor"))
        assert paper[0] != paper[1], paper


main()
