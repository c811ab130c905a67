#!/usr/bin/env python3
"""Sessions outlive the orchestrator: what a journal has is there again, and what was told stays true.

usage: test_journal.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

from endpoint import Endpoint
from harness import DRAFT, ENDLESS, GRAFT, SLOW, TARGET, Skip, case, generate, main, run, wait_for
from served import FIXED, UNKNOWN, Folder, Serve, free_port, one_line, worker

LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
WAITS = ("--rejoin-timeout", "60", "--max-model-len", "4096")
SEGMENT_HEAD, RECORD_HEAD, RECORD_TAIL = 96, 48, 8  # docs/journal.md
MANY = 1000 if SLOW < 10 else 300  # tokens of a turn that is met in its midst; a sanitizer's take ten times as long
TAIL = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n"
QUERIES, HITS = "graft_prefix_cache_queries_total", "graft_prefix_cache_hits_total"
PROMPTS = ["import os", "class Stack:", "def fibonacci(n):", "for i in range(10):"]


@functools.cache
def plain(prompt, tokens, *args):
    return generate("--prompt", prompt, "--ignore-eos", "--max-tokens", str(tokens), "--method", "none", *args)


class Kept(Serve):
    """A server with a journal, at a port that it keeps, under a supervisor; its workers are started by hand."""

    def __init__(self, *args, folder=None, supervise=True, port=None, **kw):
        folder = folder or Folder()
        self.journal = folder.path("journal")
        self.port = port or free_port()
        super().__init__("--journal", self.journal, *(("--supervise",) if supervise else ()), *args, spawn=False,
                         control=f"127.0.0.1:{self.port}", folder=folder, **kw)

    def server(self):
        """The process that serves."""
        return self.child("graft")

    def kill(self):
        """Ends with another process serving, unless nobody starts one."""
        old = self.server()
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: self.server() not in (0, old))
        wait_for(lambda: self.ask_now("session", "list").returncode == 0)

    def ask_now(self, *args):
        return run(*args, env=self.env())

    def n_gone_on(self):
        """How many turns the last server found in the journal in their midst."""
        found = re.findall(r"(\d+) turns go on", self.log())
        return int(found[-1]) if found else 0

    def text(self, session):
        return json.loads(self.graft("session", "show", session, "--text", "--json").stdout)

    def text_when_over(self, session):
        wait_for(lambda: self.text(session)["finish_reason"] != "running", 60)
        return self.text(session)


class KeptEndpoint(Kept, Endpoint):
    """The same with an endpoint."""


@contextlib.contextmanager
def served(*args, draft=True, workers=(), draft_workers=(), **kw):
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(Kept(*args, **kw))
        stack.enter_context(worker("graft-target", s.folder, s.address, *WAITS, *workers))
        if draft:
            stack.enter_context(worker("graft-draft", s.folder, s.address, "--target", TARGET, *WAITS, *draft_workers, model=DRAFT))
        s.wait(*(("--draft", DRAFT) if draft else ()))
        yield s


@case
def an_idle_session_is_there_again_and_goes_on():
    with served() as s:
        first = s.graft("session", "open", "--model", TARGET, "--prompt", PROMPTS[0], "--max-tokens", "20").stdout.strip()
        s.kill()
        assert [x["id"] for x in s.sessions()] == [first], s.sessions()
        one = json.loads(s.graft("session", "send", first, "--json", "--model", TARGET, "--prompt", "\nclass A:", "--max-tokens",
                                 "20").stdout)
        again = s.graft("session", "open", "--model", TARGET, "--prompt", PROMPTS[0], "--max-tokens", "20").stdout.strip()
        two = json.loads(s.graft("session", "send", again, "--json", "--model", TARGET, "--prompt", "\nclass A:", "--max-tokens",
                                 "20").stdout)
        assert one["token_ids"] == two["token_ids"], (one, two)
        s.graft("session", "close", first)
        s.kill()
        assert [x["id"] for x in s.sessions()] == [again], s.sessions()
        gone = s.ask_now("session", "show", first, "--text", "--json")
        assert gone.returncode == 1 and "no answer of it is kept" in gone.stderr, gone.stderr


class Idle:
    """Sessions that are kept after a turn, and what plain decoding gives in it and in the next one."""
    MORE = "\nclass A:"

    def __init__(self, n):
        prompts = [f"# {i}\nimport os\nimport sys\n\n\nclass Stack:\n    def __init__(self):\n        self.items = []\n"
                   for i in range(n)]
        with Serve(draft=False) as s:
            first = {p: self.plain(s, p) for p in prompts}
            self.want = {p: (one, self.plain(s, p + one["text"] + self.MORE)) for p, one in first.items()}
        self.sessions = {}

    @staticmethod
    def plain(s, prompt):
        return s.generate("--max-tokens", "20", "--method", "none", prompt=prompt)

    def begin(self, s):
        for prompt, (first, _) in self.want.items():
            got = s.generate("--keep", "--max-tokens", "20", prompt=prompt)
            assert got["token_ids"] == first["token_ids"], (got, first)
            self.sessions[prompt] = got["session"]

    def go_on(self, s):
        """All whole blocks of each text are found where they were computed."""
        for prompt, (first, second) in self.want.items():
            got = s.generate("--session", self.sessions[prompt], "--max-tokens", "20", prompt=self.MORE)
            n = (first["metrics"]["prompt_tokens"] + 20 - 1) // 16 * 16
            assert got["metrics"]["cached_tokens"] == n > 0, (n, got)
            assert got["token_ids"] == second["token_ids"], (got, second)


def killed_in_their_midst(s, prompts):
    """Turns of which the server is killed: the names of their sessions. None: one was over by then."""
    clients = [s.start(*FIXED, prompt=p, tokens=MANY) for p in prompts]
    at_work = lambda: [x["id"] for x in s.sessions() if x["state"] == "running" and x["rounds"] > 5]
    wait_for(lambda: len(at_work()) == len(clients) or any(c.poll() is not None for c in clients))
    before = set(at_work())
    s.kill()
    ends = [(*c.communicate(timeout=60), c.returncode) for c in clients]
    if s.n_gone_on() < len(clients):
        for out, err, status in ends:  # who was not told the end of its turn finds all of it all the same
            whole = status == 0 or s.text_when_over(json.loads(out)["session"])["finish_reason"] == "length"
            assert whole, (out, err, status)
        wait_for(lambda: all(x["state"] == "idle" for x in s.sessions()))  # room for others
        return None
    for out, err, status in ends:
        id_ = json.loads(out)["session"]
        assert status == 1 and id_ in before and f"is gone; the turn was in session {id_}, whose" in err, (out, err)
    return before


@case
def turns_go_on_and_can_be_read_when_they_are_over():
    """The next orchestrator has the same workers, whose KV serves sessions that are idle, too."""
    want = {p: plain(p, MANY) for p in PROMPTS}
    idle, room = Idle(8), ("--sessions", "12")
    with served(workers=room, draft_workers=room) as s:
        pids = sorted(w["pid"] for w in s.list()["workers"])
        idle.begin(s)
        before = next(filter(None, (killed_in_their_midst(s, PROMPTS) for _ in range(5))))
        wait_for(lambda: sorted(w["pid"] for w in s.list()["workers"]) == pids)
        idle.go_on(s)
        got = [s.text_when_over(x) for x in before]
        assert all(x["finish_reason"] == "length" and x["error"] == "" for x in got), got
        text_of = {tuple(x["token_ids"]): x["text"] for x in want.values()}
        assert {tuple(x["token_ids"]) for x in got} == set(text_of), [len(x["token_ids"]) for x in got]
        s.kill()  # an answer that is over is still there
        assert s.text(got[0]["session"])["token_ids"] == got[0]["token_ids"]
        shown = s.graft("session", "show", got[0]["session"], "--text", "--model", TARGET).stdout
        assert shown == text_of[tuple(got[0]["token_ids"])] + "\n", shown
        listed = s.ask_now("session", "show", got[0]["session"])
        assert listed.returncode == 1 and "--text" in listed.stderr, listed.stderr
        s.graft("session", "close", got[0]["session"])
        assert s.ask_now("session", "show", got[0]["session"], "--text", "--json").returncode == 1
        assert s.ask_now("session", "close", UNKNOWN).returncode == 1


def outlive_a_kill(n, tokens):
    """n answers over HTTP, of which the server is killed when all have begun. The next one opens them with their whole texts,
    and the target finds every whole block of their prompts where it was computed. False: one was over by then."""
    prompts = [p + "\n" + TAIL for p in PROMPTS]
    want = {p: plain(p, tokens)["token_ids"] for p in prompts}
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(KeptEndpoint("--model", TARGET, "--queue-timeout", "60", http=f"127.0.0.1:{free_port()}"))
        stack.enter_context(worker("graft-target", s.folder, s.address, "--rejoin-timeout", "60", "--sessions", str(n),
                                   "--max-model-len", str(tokens + 128)))
        s.wait()
        lengths = [len(s.post("/tokenize", {"prompt": prompts[i % len(prompts)]})["tokens"]) for i in range(n)]
        body = {"max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        opens = lambda i: s.open("POST", "/v1/completions", dict(body, prompt=prompts[i % len(prompts)]))[0]  # noqa: E731
        with concurrent.futures.ThreadPoolExecutor(n) as pool:  # at once: each waits for a sync
            for c in pool.map(opens, range(n)):
                stack.callback(c.close)
        at_work = lambda x: x["state"] == "running" and x["rounds"] > 10  # noqa: E731
        wait_for(lambda: len(there := s.sessions()) < n or all(map(at_work, there)), 60)
        wait_for(lambda: s.metrics()[QUERIES] >= sum(lengths), 60)  # the next server is told of what comes then alone
        before = {x["id"]: x["tokens"] for x in s.sessions()}
        begin = time.monotonic()
        os.kill(s.server(), signal.SIGKILL)

        def moves():
            if s.ask_now("session", "list").returncode != 0:
                return False
            now = {x["id"]: x["tokens"] for x in s.sessions()}
            return all(x not in now or now[x] > before[x] for x in before)
        wait_for(moves, 60)
        if s.n_gone_on() < n:  # none of them is lost all the same
            assert all(s.text_when_over(x)["finish_reason"] == "length" for x in before), before
            return False
        took = time.monotonic() - begin
        print(f"# {n} streams: all moved again {took:.2f} s after the kill", flush=True)
        assert took < 10 * SLOW, took  # of a machine of its own: under 2 s
        found = sum((x - 1) // 16 * 16 for x in lengths)
        wait_for(lambda: s.metrics()[QUERIES] >= sum(lengths), 60)
        m = s.metrics()
        assert m[HITS] >= found >= 32 * n, (m[HITS], m[QUERIES], lengths)
        got = [s.text_when_over(x) for x in before]
        assert all(x["finish_reason"] == "length" and x["token_ids"] in want.values() for x in got), got
        assert len(before) == n
        return True


def streams_outlive_a_kill(n, tokens):
    assert any(outlive_a_kill(n, tokens) for _ in range(5))


@case
def eight_streams_outlive_a_kill():
    streams_outlive_a_kill(8, MANY)


@case
def sixty_four_streams_outlive_a_kill():
    if not LONG:
        raise Skip("in the long form")
    streams_outlive_a_kill(64, 400)


@case
def answers_to_one_prompt_share_its_kv():
    """Also where OPENED waits for the disk, so that the others can be opened only after it."""
    folder = Folder()
    with Endpoint("--journal", folder.path("journal"), "--prefix-cache", "off", draft=False, folder=folder) as s:
        answer = s.complete(prompt="import os\n" * 40, n=4, max_tokens=MANY, temperature=1, ignore_eos=True)
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3], answer
        assert len({c["text"] for c in answer["choices"]}) == 4, answer
        assert s.log().count("shares KV of") == 3, s.log()


@case
def another_order_of_sums_does_not_go_on():
    with served("--queue-timeout", "1", draft=False, workers=("--cpu-kernels", "c")) as s:
        c = s.start(prompt=PROMPTS[0], tokens=3000)
        s.wait_running()
        session = s.sessions()[0]["id"]
        pid = next(x["pid"] for x in s.list()["workers"])
        os.kill(s.server(), signal.SIGSTOP)  # it does not see its target go
        os.kill(pid, signal.SIGKILL)
        s.kill()
        c.communicate(timeout=60)
        with worker("graft-target", s.folder, s.address, *WAITS, "--cpu-kernels", "ref"):
            s.wait()
            got = s.text_when_over(session)
    assert got["finish_reason"] == "unserved" and "computes it in the same order" in got["error"], got


@case
def a_torn_last_record_is_left_out():
    with served(draft=False) as s:
        first = s.graft("session", "open", "--model", TARGET, "--prompt", PROMPTS[0], "--max-tokens", "20").stdout.strip()
        last = max(os.listdir(s.journal))
        os.kill(s.server(), signal.SIGSTOP)
        with open(os.path.join(s.journal, last), "ab") as f:
            f.write(b"a record that was never whole")
        s.kill()
        assert "29 bytes are no whole record" in s.log(), s.log()
        assert [x["id"] for x in s.sessions()] == [first], s.sessions()


def flip_in_record_of(session, folder):
    """A bit in the first record of a session, which others follow."""
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "r+b") as f:
            whole, at = f.read(), SEGMENT_HEAD
            while at + RECORD_HEAD <= len(whole):
                n, _, _, of = struct.unpack_from("<IIQQ", whole, at)
                if of == int(session, 16):
                    f.seek(at + RECORD_HEAD + n // 2)
                    f.write(bytes([whole[at + RECORD_HEAD + n // 2] ^ 4]))
                    return
                at += RECORD_HEAD + n + RECORD_TAIL
    raise AssertionError(f"no record is of session {session}")


def bytes_of(folder):
    out = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            out[name] = f.read()
    return out


@case
def damage_in_the_midst_costs_one_session():
    """Each start names it, the other answers are as they were, and nothing of the journal is changed."""
    alone = {"supervise": False, "port": free_port()}
    with KeptEndpoint("--model", TARGET, **alone) as s:
        with worker("graft-target", s.folder, s.address, *WAITS):
            s.wait()
            told = [stream_of(s, p, 40) for p in PROMPTS[:3]]
        s.end()
        ids = [session for session, *_ in told]
        assert all(ended for *_, ended in told), told
        flip_in_record_of(ids[1], s.journal)
        before = bytes_of(s.journal)
        for n in (1, 2):
            with Kept(folder=s.folder, **alone) as again:
                assert again.log().count("is not served") == again.log().count(f"session {ids[1]}") == 1, again.log()
                assert "2 answers can be read, 1 sessions are damaged" in again.log(), again.log()
                gone = again.ask_now("session", "show", ids[1], "--text", "--model", TARGET)
                assert gone.returncode == 1 and gone.stdout == "", gone
                one_line(gone, ids[1], "are damaged or lost")
                for i in (0, 2):
                    shown = again.graft("session", "show", ids[i], "--text", "--model", TARGET).stdout
                    assert shown == told[i][1] + "\n" and len(again.text(ids[i])["token_ids"]) == 40, shown
                again.end()
            now = bytes_of(s.journal)
            assert all(now.get(name, b"") == was for name, was in before.items()), (n, sorted(before), sorted(now))


class SmallDisk:
    """A folder with a file system of 1 MiB, which a process holds that has its own view of mounts. before: a command in that
    view. Skips where there can be none."""

    def __init__(self, path):
        os.mkdir(path, 0o700)
        make = 'mount -t tmpfs -o size=1m,mode=700 none "$1" && echo made && exec cat >/dev/null'
        try:
            self.p = subprocess.Popen(["unshare", "-m", "sh", "-c", make, "sh", path], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as e:
            raise Skip("unshare is not there") from e
        self.before = ("nsenter", "-t", str(self.p.pid), "-m", "--")
        self.seen = f"/proc/{self.p.pid}/root{os.path.realpath(path)}"
        made = shutil.which("nsenter") and self.p.stdout.readline() == b"made\n"
        if not made or subprocess.run([*self.before, "true"], check=False).returncode != 0:
            self.close()
            raise Skip("no mount namespace can be had here")

    def close(self):
        self.p.stdin.close()
        self.p.stdout.close()
        self.p.wait()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    def leave(self, n):
        """So many bytes are free from now on."""
        now = os.statvfs(self.seen)
        with open(os.path.join(self.seen, "ballast"), "ab") as f:
            f.write(bytes(max(0, now.f_bavail * now.f_frsize - n)))

    def free(self):
        os.remove(os.path.join(self.seen, "ballast"))


def stream_of(s, prompt, tokens=8):
    """A stream's session and text, and whether its end was told; where there is none, None and what was said."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    c, r = s.open("POST", "/v1/completions", body)
    with contextlib.closing(c):
        text = r.read().decode()
    if r.status != 200:
        return None, (r.status, text), False
    events = [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: {")]
    choices = [c for e in events for c in e.get("choices", ())]
    return r.getheader("X-Graft-Session"), "".join(c["text"] for c in choices), any(c["finish_reason"] for c in choices)


@case
def a_full_disk_loses_nothing_that_was_told():
    """It fills up: no turn begins, a server that is started on it says what to do, and with room every answer is there."""
    folder, port = Folder(), free_port()
    with SmallDisk(folder.path("journal")) as disk, contextlib.ExitStack() as stack:
        def start():
            return stack.enter_context(KeptEndpoint("--model", TARGET, folder=folder, port=port, supervise=False, before=disk.before))
        s = start()
        stack.enter_context(worker("graft-target", folder, s.address, "--rejoin-timeout", "300", "--max-model-len", "1024"))
        s.wait()
        ids = s.post("/tokenize", {"prompt": "import os\nimport sys\n" * 200})["tokens"][:900]
        disk.leave(48 << 10)
        told, session = {}, ""
        while session is not None:  # its opening alone takes a record of some KiB
            prompt = ids + [len(told) + 3]
            session, said, ended = stream_of(s, prompt)
            if session:
                told[session] = (prompt, said, ended)
                assert len(told) < 100, "the disk does not fill up"
        assert sum(ended for *_, ended in told.values()) >= 3, told
        wait_for(lambda: s.metrics()["graft_journal_failed"] == 1)
        session, said, _ = stream_of(s, ids)
        assert session is None and said[0] == 503 and "the journal of this server has failed" in said[1], said
        full = "No space left on device; nothing more is written to the journal: free space"
        assert s.log().count(full) == 1, s.log()
        first = next(iter(told))
        assert s.text(first)["finish_reason"] == "length"  # it is read as ever
        s.p.kill()
        s.p.wait()
        disk.leave(0)
        done = subprocess.run([*disk.before, GRAFT, "serve", "--journal", s.journal, "--control", "127.0.0.1:0"], check=False,
                              capture_output=True, text=True, timeout=60 * SLOW, env=folder.env())
        assert done.returncode == 1 and full in done.stderr.splitlines()[-1], done
        disk.free()
        again = start()
        again.wait()
        for session, (prompt, said, ended) in told.items():
            assert again.text_when_over(session)["finish_reason"] == "length"
            shown = again.graft("session", "show", session, "--text", "--model", TARGET).stdout
            want, = (c["text"] for c in again.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0,
                                                                       "ignore_eos": True})["choices"])
            assert shown == want + "\n" and (said == want if ended else want.startswith(said)), (session, shown, said, want)
        print(f"# {len(told)} answers that had begun are whole after the disk was full", flush=True)


@case
def a_cut_turn_stays_cut():
    with served(draft=False, workers=("--max-model-len", "32768")) as s:
        c = s.start(prompt=PROMPTS[0], tokens=ENDLESS)
        s.wait_running()
        session = s.sessions()[0]["id"]
        c.send_signal(signal.SIGKILL)
        c.communicate()
        wait_for(lambda: s.text(session)["finish_reason"] == "closed")
        told = s.text(session)
        s.kill()
        assert s.text(session) == told


@case
def one_server_has_a_journal():
    with served(draft=False) as s:
        s.graft("session", "open", "--model", TARGET, "--prompt", "import os")
        one_line(run("serve", "--journal", s.journal, "--control", "127.0.0.1:0", env=s.folder.env()), s.journal)
        assert len(s.sessions()) == 1


if __name__ == "__main__":
    raise SystemExit(main())
