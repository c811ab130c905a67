#!/usr/bin/env python3
"""`graft serve` and its clients as a user starts them: texts against `graft run`, sessions over turns, keys and
addresses, clients that misbehave. Ends and workers are in test_serve_workers.py.

usage: test_serve.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

from harness import (BUILD, DRAFT, ENDLESS, GRAFT, ROOT, SLOW, TARGET, case, generate, is_plain, main, parent_of, run,
                     wait_for)
from served import A_IDS, B_IDS, FIXED, PLAIN, PROMPT, UNKNOWN, Folder, Serve, free_port, one_line, worker


# ---- a client written here, from docs/protocol.md ----

def pack(v):
    if isinstance(v, dict):
        head = bytes([0x80 | len(v)]) if len(v) < 16 else b"\xde" + struct.pack(">H", len(v))
        return head + b"".join(pack(k) + pack(x) for k, x in v.items())
    if isinstance(v, list):
        return b"\xdc" + struct.pack(">H", len(v)) + b"".join(pack(x) for x in v)
    if isinstance(v, str):
        e = v.encode()
        return b"\xd9" + bytes([len(e)]) + e
    if isinstance(v, bytes):
        return b"\xc4" + bytes([len(v)]) + v
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    return b"\xcf" + struct.pack(">Q", v)


def record(data):
    return struct.pack("<I", len(data)) + data


class Client:
    """HELLO as a client, then whatever the test likes to send."""

    def __init__(self, serve, key=None, receive_bytes=0, role=4):
        host, port = serve.address.rsplit(":", 1)
        self.s = socket.socket()
        if receive_bytes:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.s.settimeout(20 * SLOW)
        self.s.connect((host, int(port)))
        if key is None:
            with open(serve.folder.key, encoding="utf-8") as f:
                key = bytes.fromhex(f.read().strip())
        own = pack({"version": 3, "role": role, "incarnation": 1, "wanted": 0, "cluster": "", "tokenizer": 0, "model": 0, "fc": 0, "numerics_id": "",
                    "n_vocab": 0, "transports": 0, "feature_dtype": 0, "feature_width": 0, "feature_raw": 0, "captures": "",
                    "host_id": "", "small_bytes_max": 65536, "bulk_bytes_max": 0, "n_small_slot": 2, "n_bulk_slot": 0,
                    "secrecy": 0, "exchange": bytes(32), "nonce": os.urandom(32)})
        self.s.sendall(record(own))
        peer = self.read_record()
        mac = hmac.new(key, b"graft-hello-1" + bytes([role]) + record(own) + record(peer), hashlib.sha512).digest()[:32]
        self.s.sendall(record(b"\x82\xa4role" + bytes([role]) + b"\xa3mac\xc4\x20" + mac))
        self.read_record()

    def read_record(self):
        n = struct.unpack("<I", self.read(4))[0]
        return self.read(n)

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.s.recv(n - len(data))
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def send(self, **fields):
        self.s.sendall(record(pack(fields)))

    def is_cut_off(self):
        try:
            while self.s.recv(65536):
                pass
        except ConnectionError:
            pass
        return True


OPEN = {"t": "OPEN", "session": 0, "epoch": 0, "ids": [5, 6, 7], "segments": [0, 3], "max_tokens": 8,
        "temperature": 0.0, "min_p": 0.0, "top_p": 1.0, "top_k": 0, "seed": 1}


# ---- texts ----

@case
def connect_gives_runs_text():
    with Serve() as s:
        for args in (("--max-tokens", "48", *FIXED), ("--max-tokens", "48", "--temperature", "0.8", "--seed", "3", *FIXED),
                     ("--max-tokens", "32", *FIXED, "--tree-shape", "chain"),
                     ("--max-tokens", "24", "--method", "none")):
            want = generate("--draft", DRAFT, "--ignore-eos", *args)
            out = s.generate(*args)
            assert out["token_ids"] == want["token_ids"], args
            assert out["text"] == want["text"] and out["finish_reason"] == want["finish_reason"]
            assert (out["metrics"]["num_drafts"] > 0) == ("none" not in args), out["metrics"]
        assert out["metrics"]["ttft_ms"] > 0 and "session" not in out
        done = s.graft("run", "--connect", s.address, "--model", TARGET, "--prompt", PROMPT, "--max-tokens", "40",
                       "--verify-lossless", "--trace", *FIXED)
        assert "equal plain decoding" in done.stderr and "round 1:" in done.stderr, done.stderr
        assert s.sessions() == []
        s.end()
        assert "serving on 127.0.0.1:" in s.log()


@case
def many_slots_draft_as_well():
    """A drafter's passes have room for the usual trees of all its sessions; wider ones are cut, with the numbers."""
    with Serve("--sessions", "64", "--max-model-len", "256") as s:
        out = s.generate("--max-tokens", "24", *FIXED)
        assert out["metrics"]["num_drafts"] > 0 and out["metrics"]["fallbacks"] == 0, out["metrics"]
        wide = s.generate("--max-tokens", "24", "--draft-top-k", "17", *FIXED)
        assert wide["token_ids"] == out["token_ids"] and wide["metrics"]["num_drafts"] > 0, wide["metrics"]
        assert wide["metrics"]["fallbacks"] == 1, wide["metrics"]
        s.generate("--max-tokens", "24", "--draft-top-k", "17", *FIXED)
        lines = [x for x in s.log().splitlines() if "[spec][fallback]" in x]
        assert len(lines) == 1, lines  # the second session is counted, and told with the 10th
        assert "17 are asked for; a pass has 1024 rows for 64 sessions (--sessions), so 16 are taken" in lines[0], lines


@case
def stop_strings_at_a_distance():
    with Serve() as s:
        whole = s.generate("--max-tokens", "64")
        stop = whole["text"][20:26]
        out = s.generate("--max-tokens", "64", "--stop", stop)
        assert out["finish_reason"] == "stop" and out["text"] == whole["text"][:whole["text"].index(stop)]
        n = len(out["token_ids"])
        assert out["token_ids"] == whole["token_ids"][:n] and n < 64
        wait_for(lambda: s.sessions() == [])


@case
def two_turns_equal_one_run():
    for draft in (True, False):
        with Serve(draft=draft) as s:
            first = s.turn(A_IDS, "--max-tokens", "20", "--keep", *FIXED)
            second = s.turn(B_IDS, "--max-tokens", "20", "--session", first["session"])
            whole = s.turn(A_IDS + first["token_ids"] + B_IDS, "--max-tokens", "20")
            assert second["session"] == first["session"]
            assert second["token_ids"] == whole["token_ids"]
            shown = s.sessions()
            assert len(shown) == 1 and shown[0]["state"] == "idle" and shown[0]["epoch"] == 1, shown
            assert shown[0]["tokens"] == len(A_IDS) + 20 + len(B_IDS) + 20
            more = second
            for _ in range(5):  # the drafter may be late for as few rounds as these
                if draft and more["metrics"]["num_drafts"] == 0:
                    more = s.turn(B_IDS, "--max-tokens", "20", "--session", first["session"])
            assert not draft or more["metrics"]["num_drafts"] > 0


@case
def stopped_turn_goes_on():
    """A stop string cuts a turn of a session that stays open; the next turn follows at once, while a pass may run."""
    with Serve() as s:
        whole = s.turn(A_IDS, "--max-tokens", "64")
        stop = whole["text"][20:26]
        for _ in range(3):
            first = s.turn(A_IDS, "--max-tokens", "64", "--stop", stop, "--keep")
            second = s.turn(B_IDS, "--max-tokens", "16", "--session", first["session"])
            want = s.turn(A_IDS + first["token_ids"] + B_IDS, "--max-tokens", "16")
            assert second["token_ids"] == want["token_ids"]


@case
def stop_and_end_in_one_commit():
    """Wherever the turn's own limit lies after a stop string, and however many tokens a round brings: what was not shown
    is not kept, and the next turn does not depend on the size of the tree."""
    prompt = "class Reader:\n    def __init__(self, path):\n"
    for engine in ((), ("--transport", "loop")):
        with Serve(*engine) as s:
            whole = s.generate("--max-tokens", "64", "--method", "none", prompt=prompt)
            stop = whole["text"][46:51]
            want = None
            for tree in (("--method", "none"), ("--num-speculative-tokens", "16"), ("--num-speculative-tokens", "48")):
                for limit in range(17, 27) if not engine else (18, 21):
                    out = s.generate("--max-tokens", str(limit), "--stop", stop, "--keep", *tree, prompt=prompt)
                    assert out["finish_reason"] == "stop" and out["text"] == whole["text"][:46], (tree, limit, out)
                    shown = json.loads(s.graft("session", "show", out["session"], "--json").stdout)
                    assert shown["tokens"] == 31, (tree, limit, shown)
                    if limit % 3 == 0:
                        more = s.generate("--max-tokens", "8", "--session", out["session"], prompt="x = 1")
                        want = want or more["token_ids"]
                        assert more["token_ids"] == want, (tree, limit, more)
                    s.graft("session", "close", out["session"])


# ---- sessions ----

@case
def an_orchestrator_is_found_by_the_file_alone():
    """Without --connect sessions are sent to where the configuration has the orchestrator, or to the default address."""
    with Serve() as s:
        config = s.folder.path("graft.yaml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(f"orchestrator:\n  control: {s.address}\n  key_file: {s.folder.key}\n")
        told = ("--config", config, "--model", TARGET, "--max-tokens", "4", "--prompt")
        opened = run("session", "open", *told, "import os")
        assert opened.returncode == 0, opened.stderr
        sent = run("session", "send", opened.stdout.strip(), *told, "x = ")
        assert sent.returncode == 0 and sent.stdout, sent.stderr


@case
def list_show_close_purge():
    with Serve() as s:
        ids = [s.graft("session", "open", "--model", TARGET, "--prompt", "import os", "--max-tokens", str(n)).stdout.strip()
               for n in (1, 4, 6)]
        shown = s.sessions()
        assert [x["id"] for x in shown] == ids and all(x["state"] == "idle" for x in shown), shown
        assert shown[1]["target"] > 0 and shown[1]["drafter"] > 0 and shown[1]["rounds"] >= 1, shown
        assert "idle" in s.graft("session", "list").stdout
        assert f"session {ids[1]}: idle" in s.graft("session", "show", ids[1]).stdout
        text = s.graft("session", "send", ids[1], "--model", TARGET, "--prompt", "x = ", "--max-tokens", "4").stdout
        assert len(text) > 0
        one_line(s.graft("session", "refresh", ids[0], status=1), "SpecPV")
        s.graft("session", "close", ids[0])
        assert len(s.sessions()) == 2
        assert "2 idle sessions closed" in s.graft("session", "purge").stdout
        assert s.sessions() == []
        wait_for(lambda: all(w["sessions"] == 0 for w in s.list()["workers"]))


@case
def unknown_sessions():
    with Serve(draft=False) as s:
        for args in (("show", UNKNOWN), ("close", UNKNOWN), ("send", UNKNOWN, "--model", TARGET, "--prompt", "x")):
            one_line(s.graft("session", *args, status=1), "no session " + UNKNOWN)
        for args in (("show", "1"), ("show", UNKNOWN + "0"), ("show", "0" * 16), ("show",), ("fly",), ("close", "-1"), ()):
            one_line(s.graft("session", *args, status=2), "graft session")
        one_line(s.graft("session", "send", UNKNOWN, "--model", TARGET, "--prompt", "x", "--seed", "1", status=2), "--seed")
        one_line(s.graft("run", "--connect", s.address, *PLAIN, "--prompt", "x", "--threads", "1", status=2), "--threads")
        one_line(s.graft("serve", "--threads", "1", status=2), "--threads", "--spawn")
        one_line(s.graft("serve", "--specpv", "maybe", status=2), "--specpv")


@case
def limits_are_told():
    with Serve("--max-model-len", "64", draft=False) as s:
        first = s.generate("--max-tokens", "30", "--keep")
        done = s.graft("session", "send", first["session"], "--model", TARGET, "--prompt", "word " * 60, status=1)
        one_line(done, "64", "appended")
        shown = s.sessions()[0]
        assert shown["state"] == "idle" and shown["tokens"] == 9 + 30
        out = s.generate("--max-tokens", "60", "--session", first["session"], prompt="x")
        assert out["finish_reason"] == "length" and len(out["token_ids"]) < 60


@case
def session_ttl():
    with Serve("--session-ttl", "1", draft=False) as s:
        begin = time.monotonic()
        session = s.generate("--max-tokens", "2", "--keep")["session"]
        wait_for(lambda: s.sessions() == [])
        assert time.monotonic() - begin >= 1
        assert f"session {session} is closed: idle for longer than session_ttl" in s.log(), s.log()


@case
def eviction_changes_nothing():
    """The pool holds one of two idle sessions: the other is opened again from its transcript."""
    with Serve("--kv-blocks", "8", draft=False) as s:
        a = s.turn(A_IDS, "--max-tokens", "60", "--keep")
        b = s.turn(B_IDS, "--max-tokens", "60", "--keep")
        again = s.turn(B_IDS, "--max-tokens", "20", "--session", a["session"])
        epochs = {x["id"]: x["epoch"] for x in s.sessions()}
        assert epochs[a["session"]] == 2 and b["session"] in epochs, epochs
        want = s.turn(A_IDS + a["token_ids"] + B_IDS, "--max-tokens", "20")
        assert again["token_ids"] == want["token_ids"]


# ---- the engine's switches ----

@case
def kill_switches():
    with Serve("--force-single-token") as s:
        m = s.generate("--max-tokens", "8", *FIXED)["metrics"]
        assert m["num_drafts"] == 0 and m["rounds"] == 7, m
    with Serve() as s:
        for flag in ("--force-single-token", "--disable-multi-token"):
            m = s.generate("--max-tokens", "8", flag, *FIXED)["metrics"]
            assert m["num_drafts"] == 0 and m["rounds"] == 7, (flag, m)
        assert s.generate("--max-tokens", "8", "--disable-specpv", *FIXED)["metrics"]["num_drafts"] > 0


@case
def trace_file():
    with tempfile.TemporaryDirectory() as d, Serve() as s:
        path = os.path.join(d, "t.json")
        for args in (("--connect", s.address), ("--draft", DRAFT)):
            env = dict(s.env(), **{"GRAFT_CONNECT": ""})
            env.pop("GRAFT_CONNECT")
            done = subprocess.run([GRAFT, "run", *PLAIN, "--prompt", "x = 1", "--max-tokens", "24", "--trace-file", path,
                                   *FIXED, *args], capture_output=True, text=True, env=env)
            assert done.returncode == 0, done.stderr
            with open(path, encoding="utf-8") as f:
                events = json.load(f)["traceEvents"]
            tracks = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
            assert set(tracks) == {"draft", "wire", "verify", "walk", "commit"}
            spans = [e for e in events if e["ph"] == "X"]
            assert all(e["dur"] > 0 and e["ts"] > 0 for e in spans)
            assert {e["name"] for e in spans} >= {"draft", "verify", "walk", "commit"}
            drafts = [e["dur"] for e in spans if e["name"] == "draft"]
            assert len(drafts) == 1 or len(set(drafts)) > 1, drafts  # each tree's own time
            for tid in tracks.values():  # spans of one track never overlap
                row = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == tid)
                assert all(a[1] <= b[0] + 0.01 for a, b in zip(row, row[1:])), tid


# ---- keys, addresses, files ----

@case
def keys():
    with Serve(draft=False) as s:
        assert os.stat(s.folder.key).st_mode & 0o777 == 0o600
        one_line(run("serve", "--make-key", s.folder.key), "exists")
        wrong = {"GRAFT_KEY": "11" * 32}
        done = run("session", "list", "--connect", s.address, env=wrong)
        assert done.returncode == 1
        one_line(done, "key")
        none = run("session", "list", "--connect", s.address)
        assert none.returncode == 1
        one_line(none, "--make-key")
        os.chmod(s.folder.key, 0o640)
        for args in (("session", "list"), ("serve", "--control", "127.0.0.1:0")):
            done = subprocess.run([GRAFT, *args], capture_output=True, text=True, env=s.env())
            assert done.returncode != 0
            one_line(done, "0640", "chmod 600")
        with worker("graft-target", s.folder, s.address) as w:
            _, err = w.communicate(timeout=20 * SLOW)
            assert w.returncode == 2 and "chmod 600" in err, err
        os.chmod(s.folder.key, 0o600)
        assert s.sessions() == []


@case
def second_orchestrator():
    with Serve(spawn=False) as s:
        done = s.graft("serve", "--control", s.address, status=1)
        one_line(done, s.address, "in use", "ss -ltnp")


@case
def yaml_of_serve():
    folder = Folder()
    path = folder.path("c.yaml")

    def serve(text):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run([GRAFT, "serve", "--config", path], capture_output=True, text=True, env=folder.env(),
                              timeout=20 * SLOW)
        assert done.returncode in (1, 2), done
        return done.stderr
    assert f"{path}:2:3" in serve("orchestrator:\n  cntrol: 127.0.0.1:0\n")
    assert f"{path}:1:1" in serve("orkestrator:\n  control: 127.0.0.1:0\n")
    assert f"{path}:2:16" in serve("orchestrator:\n  session_ttl: soon\n")
    assert f"{path}:2:3" in serve("speculative_config:\n  force_singel_token: true\n")
    assert f"{path}:3:" in serve("orchestrator:\n  session_ttl: 5\n control: [\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"orchestrator:\n  control: 127.0.0.1:0\n  http: off\n  key_file: {folder.key}\n  ready_file: {folder.path('r')}\n"
                f"target:\n  model: {TARGET}\nspeculative_config:\n  disable_multi_token: true\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRAFT_")}
    p = subprocess.Popen([GRAFT, "serve", "--config", path, "--spawn"], stderr=subprocess.PIPE, text=True, env=env)
    try:
        wait_for(lambda: os.path.exists(folder.path("r")))
        with open(folder.path("r"), encoding="utf-8") as f:
            address = f.read().strip()
        done = subprocess.run([GRAFT, "wait", "--config", path, "--connect", address], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
    finally:
        p.send_signal(signal.SIGINT)
        assert p.wait(timeout=20 * SLOW) == 0


# ---- clients that misbehave ----

@case
def garbage_and_wrong_messages():
    with Serve(draft=False) as s:
        p = s.start(tokens=ENDLESS)
        s.wait_running(1)
        host, port = s.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as c:
            c.sendall(b"GET / HTTP/1.1\r\n\r\n" * 40)
            c.settimeout(20 * SLOW)
            with contextlib.suppress(ConnectionError):
                while c.recv(4096):
                    pass
        for data in (b"\xff" * 64, record(b"\xc1"), record(pack({"t": "PING", "x": 1})), record(pack({"t": "DETACH", "session": 1})),
                     record(pack({"t": "JOIN", "role": 2, "pid": 1, "incarnation": 1, "n_vocab": 1, "n_ctx_max": 1,
                                  "address": "", "numerics_id": ""})), struct.pack("<I", 1 << 30)):
            c = Client(s)
            c.s.sendall(data)
            assert c.is_cut_off()
        kept = s.generate("--max-tokens", "2", "--keep")["session"]
        c = Client(s)
        c.send(t="APPEND", session=int(kept, 16), epoch=9, keep_len=0, hash=0, ids=[5], max_tokens=1)
        assert b"is in epoch 1, not 9" in c.read_record()
        c.send(t="APPEND", session=int(kept, 16), epoch=1, keep_len=3, hash=77, ids=[5], max_tokens=1)
        assert b"hashes differ" in c.read_record()
        c.s.close()
        for change in ({"session": 5}, {"epoch": 1}, {"segments": [1, 3]}, {"segments": [0, 2]}, {"max_tokens": 0},
                       {"ids": []}, {"ids": [10**6]}, {"top_p": 0.0}):
            c = Client(s)
            c.send(**dict(OPEN, **change))
            reply = c.read_record()
            while b"OPENED" in reply:  # the target knows better than the orchestrator
                reply = c.read_record()
            assert b"ERROR" in reply or b"FINISHED" in reply, (change, reply)
            c.s.close()
        assert p.poll() is None, p.communicate()
        is_plain(s.interrupt(p)["token_ids"], prompt=PROMPT)


@case
def client_that_does_not_read():
    want = generate("--ignore-eos", "--max-tokens", "200")["token_ids"]
    with Serve(draft=False) as s:
        p = s.start(tokens=200)
        lazy = Client(s, receive_bytes=4096)
        lazy.send(**dict(OPEN, max_tokens=30000, keep_open=1))
        lazy.s.settimeout(0.2)
        with contextlib.suppress(OSError):
            while True:
                lazy.s.sendall(record(pack({"t": "LIST"})) * 100)
        wait_for(lambda: "does not read" in s.log())
        wait_for(lambda: [x["state"] for x in s.sessions() if x["keep_open"]] == ["idle"])  # its turn is cut
        out, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0 and json.loads(out)["token_ids"] == want, err


@case
def client_that_goes_away():
    with Serve(draft=False) as s:
        for args, left in (((), []), (("--keep",), ["idle"])):
            p = s.start(*args, tokens=30000)
            s.wait_running(2)
            p.kill()
            p.communicate()
            wait_for(lambda: [x["state"] for x in s.sessions()] == left)
        p = s.start(tokens=30000)
        s.wait_running(2)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20 * SLOW)
        assert p.returncode == 130 and "interrupted" in err and json.loads(out)["error"] == "interrupted", (out, err)
        wait_for(lambda: len(s.sessions()) == 1)


@case
def clients_that_were_killed_make_room():
    """Their sessions are closed when their passes are done; until then a request waits."""
    with Serve("--sessions", "4") as s:
        for _ in range(8):
            clients = [s.start(*FIXED, tokens=3000) for _ in range(4)]
            wait_for(lambda: sum(x["state"] == "running" and x["rounds"] >= 2 for x in s.sessions()) == 4)
            for p in clients:
                p.kill()
            s.generate("--max-tokens", "4")
            for p in clients:
                p.communicate()


# ---- mpirun ----

@case
def mpirun_survives_a_killed_drafter():
    if shutil.which("mpirun") is None:
        raise AssertionError("mpirun is not installed: apt-get install openmpi-bin (tools/prepare --tests does)")
    want = generate("--draft", DRAFT, "--ignore-eos", "--max-tokens", "1500")["token_ids"]  # longer than to ask for the list
    folder = Folder()
    address = f"127.0.0.1:{free_port()}"
    env = folder.env(GRAFT_BIN=BUILD, GRAFT_ADDRESS=address, GRAFT_TARGET=TARGET, GRAFT_DRAFT=DRAFT, GRAFT_LOG="info")
    with open(folder.path("mpi.err"), "w", encoding="utf-8") as err:
        job = subprocess.Popen([os.path.join(ROOT, "examples/mpirun.sh")], stdout=err, stderr=err, env=env)
    try:
        client = dict(folder.env(), GRAFT_CONNECT=address)
        ask = lambda *args: subprocess.run([GRAFT, *args], capture_output=True, text=True, env=client, timeout=60 * SLOW)
        done = ask("wait", "--timeout", "30", "--draft", DRAFT)
        assert done.returncode == 0, (done.stderr, open(folder.path("mpi.err"), encoding="utf-8").read())
        start = lambda: subprocess.Popen([GRAFT, "run", "--json", *PLAIN, *FIXED, "--prompt", PROMPT, "--max-tokens", "1500",
                                          "--connect", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                         env=client)
        p = start()
        look = lambda: json.loads(ask("session", "list", "--json").stdout)
        wait_for(lambda: any(x["rounds"] >= 3 for x in look()["sessions"]))
        draft = [w["pid"] for w in look()["workers"] if w["role"] == "draft"][0]
        os.kill(draft, signal.SIGKILL)
        out, text = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0 and json.loads(out)["token_ids"] == want, text
        assert ask("wait", "--timeout", "30", "--draft", DRAFT).returncode == 0  # it is back, under its supervisor
        # The rank itself: nobody restarts it, and the job goes on without.
        rank = parent_of([w["pid"] for w in look()["workers"] if w["role"] == "draft"][0])
        p = start()
        wait_for(lambda: any(x["rounds"] >= 3 for x in look()["sessions"]))
        os.kill(rank, signal.SIGKILL)
        out, text = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0 and json.loads(out)["token_ids"] == want, text
        wait_for(lambda: [w["role"] for w in look()["workers"]] == ["target"])
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=30 * SLOW) == 0
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=30 * SLOW)


@case
def mpirun_jobs_at_one_address_do_not_mix():
    folder = Folder()
    env = folder.env(GRAFT_BIN=BUILD, GRAFT_ADDRESS=f"127.0.0.1:{free_port()}", GRAFT_TARGET=TARGET, GRAFT_DRAFT=DRAFT)
    script = os.path.join(ROOT, "examples/mpirun.sh")
    with subprocess.Popen([script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as first:
        client = dict(folder.env(), GRAFT_CONNECT=env["GRAFT_ADDRESS"])
        ask = lambda *args: subprocess.run([GRAFT, *args], capture_output=True, text=True, env=client, timeout=60 * SLOW)
        try:
            assert ask("wait", "--timeout", "30", "--draft", DRAFT).returncode == 0
            second = subprocess.run([script], capture_output=True, text=True, env=env, timeout=60 * SLOW)
            assert second.returncode == 1 and "port in use" in second.stderr, second
            assert second.stderr.count("it belongs to another job") == 2, second.stderr
            assert len(json.loads(ask("session", "list", "--json").stdout)["workers"]) == 2
        finally:
            first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=30 * SLOW) == 0


@case
def mpirun_tells_that_ranks_have_failed():
    """From any folder, with a key that is named from there."""
    folder = Folder()
    script = os.path.join(ROOT, "examples/mpirun.sh")
    start = lambda **env: subprocess.run([script], capture_output=True, text=True, timeout=60 * SLOW, cwd=folder.dir.name,
                                         check=False, env=folder.env(GRAFT_BIN=BUILD, **env))
    os.chmod(folder.key, 0o644)  # all three refuse it
    done = start(GRAFT_ADDRESS=f"127.0.0.1:{free_port()}")
    assert done.returncode == 1 and done.stderr.count("rank failed with status") == 3, done
    os.chmod(folder.key, 0o600)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        env = dict(os.environ, GRAFT_BIN=BUILD, GRAFT_KEY_FILE="key", GRAFT_ADDRESS=f"127.0.0.1:{s.getsockname()[1]}",
                   GRAFT_JOIN_TIMEOUT="0")  # a port that another program has
        done = subprocess.run([script], capture_output=True, text=True, timeout=60 * SLOW, cwd=folder.dir.name, check=False,
                              env=env)
    assert done.returncode == 1 and "cannot listen" in done.stderr, done


sys.exit(main())
