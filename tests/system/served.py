"""A running `graft serve` for the system tests, with workers of its own or started by hand."""
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile

from harness import BUILD, DRAFT, GRAFT, ROOT, SLOW, TARGET, alive, children, interrupt, run, wait_for

PROMPT = "def fibonacci(n):"
PLAIN = ("--ignore-eos", "--model", TARGET)
UNKNOWN = "0000000000000099"  # a session that nobody has
FIXED = ("--num-speculative-tokens", "4")  # drafts whatever it costs; `auto` may find that it does not pay
with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as golden:
    A_IDS, B_IDS = [c["prompt_ids"] for c in json.load(golden)["cases"][1:3]]  # two inputs of a conversation
B_IDS = B_IDS[5:12]


class Folder:
    """A temporary folder with a key in it; every process below gets the key's file."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        self.key = self.path("key")
        assert run("serve", "--make-key", self.key).returncode == 0

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def env(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRAFT_KEY")}
        return dict(env, GRAFT_KEY_FILE=self.key, **more)


class Serve:
    """A running `graft serve`; with workers unless spawn is False. before: the command that starts it, if another one does.
    Without an endpoint, unless the arguments name one, or http_as_it_is lets the default be."""

    def __init__(self, *args, spawn=True, draft=True, control="127.0.0.1:0", folder=None, before=(), http_as_it_is=False):
        self.folder, self.turns = folder or Folder(), []
        ready = self.folder.path("ready")
        if os.path.exists(ready):
            os.remove(ready)
        if spawn:
            args += ("--spawn", "--model", TARGET) + (("--draft", DRAFT) if draft else ())
        if "--http" not in args and not http_as_it_is:
            args += ("--http", "off")
        self.err = open(self.folder.path("serve.err"), "w+", encoding="utf-8")
        self.p = subprocess.Popen([*before, GRAFT, "serve", "--control", control, "--ready-file", ready, *args],
                                  stdout=subprocess.DEVNULL, stderr=self.err, env=self.folder.env(GRAFT_LOG="info"))
        wait_for(lambda: os.path.exists(ready) or self.p.poll() is not None)
        assert self.p.poll() is None, self.log()
        with open(ready, encoding="utf-8") as f:
            self.address = f.read().strip()
        if spawn:
            self.wait(*(("--draft", DRAFT) if draft else ()))

    def __enter__(self):
        return self

    def __exit__(self, failure, *rest):
        if self.p.poll() is None and failure is None:
            self.end()  # a sanitizer has its say in the exit status, and of workers it spawned in the log alone
            said = re.search(r".*(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error: ).*", self.log())
            assert not said, said[0]
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        self.err.close()

    def log(self):
        self.err.flush()
        with open(self.folder.path("serve.err"), encoding="utf-8") as f:
            return f.read()

    def env(self, **more):
        return self.folder.env(GRAFT_CONNECT=self.address, **more)

    def graft(self, *args, status=0, timeout=60, **kw):
        done = subprocess.run([GRAFT, *args], capture_output=True, text=True, timeout=timeout * SLOW, env=self.env(),
                              **kw)
        assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr, self.log())
        return done

    def wait(self, *args):
        self.graft("wait", "--timeout", "120", *args, timeout=150)

    def generate(self, *args, prompt=PROMPT, **kw):
        if not any(a.startswith("--prompt") for a in args):
            args = ("--prompt", prompt, *args)
        out = json.loads(self.graft("run", "--json", "--connect", self.address, *PLAIN, *args, **kw).stdout)
        m = out["metrics"]
        assert m["num_draft_tokens"] == m["num_accepted_tokens"] + m["num_rewound_tokens"], m
        assert m["completion_tokens"] == len(out["token_ids"]), m
        return out

    def turn(self, ids, *args):
        return self.generate(*args, "--prompt-ids", "-", input=json.dumps(ids))

    def start(self, *args, prompt=PROMPT, tokens=3000):
        if not any(a.startswith("--prompt") for a in args):
            args = ("--prompt", prompt, *args)
        self.turns.append(subprocess.Popen([GRAFT, "run", "--json", "--connect", self.address, *PLAIN,
                                            "--max-tokens", str(tokens), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                           text=True, env=self.env()))
        return self.turns[-1]

    def list(self):
        return json.loads(self.graft("session", "list", "--json").stdout)

    def sessions(self):
        return self.list()["sessions"]

    def child(self, name):
        """Waits for one: a worker that has died is being started again."""
        found = []

        def look():
            found[:] = [self.child_if_any(name)]
            return found[0] or self.p.poll() is not None
        wait_for(look)
        assert found[0], (name, self.log())
        return found[0]

    def child_if_any(self, name):
        found = [pid for pid, cmd in children(self.p.pid) if cmd.endswith(name)]
        return found[0] if found else 0

    def kill_child(self, name):
        """Kills such a child, and sees it dead, so that it is not taken for the next one."""
        pid = self.child(name)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid))

    def runs(self, rounds):
        return any(s["state"] == "running" and s["rounds"] >= rounds for s in self.sessions())

    def wait_running(self, rounds=3):
        """A failure at once where all turns that the test has not waited for are over: none will be seen."""
        turns = [p for p in self.turns if p.returncode is None]

        def look():
            are_over = len(turns) > 0 and all(p.poll() is not None for p in turns)  # first: one may end meanwhile
            found = self.runs(rounds)
            assert found or not are_over, "the turn was over before it was seen"
            return found
        wait_for(look)

    def start_running(self, *args, rounds=3, **kw):
        """A turn that was seen while it ran. One that was over unseen, as its client or this test had to wait, is begun
        again."""
        for _ in range(5):
            p = self.start(*args, **kw)
            wait_for(lambda p=p: self.runs(rounds) or p.poll() is not None)
            if p.poll() is None:
                return p
            out, err = p.communicate()
            assert p.returncode == 0, (out[-300:], err)
        raise AssertionError("five turns were over before they were seen")

    def wait_tokens(self, n):
        """Until the longest session has so many tokens more than now."""
        tokens = lambda: max((x["tokens"] for x in self.sessions()), default=0)
        begin = tokens()
        wait_for(lambda: tokens() >= begin + n)

    def interrupt(self, p):
        """Ends the client of an endless turn, and with it the turn. The object of JSON that it told."""
        told, _ = interrupt(p)
        return told[0]

    def end(self, seconds=60):
        self.p.send_signal(signal.SIGINT)
        status = self.p.wait(timeout=seconds * SLOW)
        assert status == 0, (status, self.log())


@contextlib.contextmanager
def worker(program, folder, address, *args, model=TARGET, **env):
    p = subprocess.Popen([os.path.join(BUILD, program), "--model", model, "--join", address, *args],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         env=folder.env(GRAFT_LOG="info", **env))
    try:
        yield p
    except AssertionError as e:
        p.kill()
        e.args = (f"{e}\n{program} said: {p.communicate(timeout=20 * SLOW)[1][-2000:]}",)
        raise
    finally:
        if p.poll() is None:
            p.kill()
        p.communicate(timeout=20 * SLOW)


def free_port():
    """Below the ports that the kernel hands out, or another program could have it before it is used."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port is free")


def one_line(done, *words):
    lines = [x for x in done.stderr.splitlines() if x.strip()]
    assert len(lines) == 1, lines
    for w in words:
        assert w in lines[0], (w, lines[0])
