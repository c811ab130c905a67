#!/usr/bin/env python3
"""Two targets and two drafters under one `graft serve`: sessions are shared out, and workers are drained and filled again
during turns, without a change in any text.

usage: test_fleet.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import sys
import threading
import urllib.request

from harness import DRAFT, ROOT, SLOW, TARGET, Background, alive, case, children, generate, main, run, wait_for
from served import FIXED, UNKNOWN, Folder, Serve, one_line, worker

with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as golden:
    GOLDEN = [(c["prompt_ids"], c["greedy_ids"]) for c in json.load(golden)["cases"][1:3]]
N_CLIENT, N_TOKEN = 8, 800
MORE_IDS = GOLDEN[1][0][5:12]


@contextlib.contextmanager
def fleet(n_target=2, n_draft=2):
    with Serve(spawn=False) as s, contextlib.ExitStack() as stack:
        for _ in range(n_target):
            stack.enter_context(worker("graft-target", s.folder, s.address, "--sessions", str(N_CLIENT // 2)))
        for _ in range(n_draft):
            stack.enter_context(worker("graft-draft", s.folder, s.address, model=DRAFT))
        wait_for(lambda: len(workers(s)) == n_target + n_draft, 60)
        yield s


def workers(s):
    return json.loads(s.graft("worker", "list", "--json").stdout)["workers"]


def numbers(s, role):
    return [w["worker"] for w in workers(s) if w["role"] == role]


def of(s, number):
    return next(w for w in workers(s) if w["worker"] == number)


def holders(s, key):
    """How many sessions each worker has, by what the sessions say."""
    held = [x[key] for x in s.sessions()]
    return {n: held.count(n) for n in held if n > 0}


def plain(ids, n):
    return generate("--ignore-eos", "--prompt-ids", "-", "--max-tokens", str(n), stdin=json.dumps(ids))["token_ids"]


def begin_turns(s):
    """The clients, and for each the text that it must get."""
    want, paths = [], []
    for ids, greedy in GOLDEN:
        want.append(plain(ids, N_TOKEN))
        assert want[-1][:len(greedy)] == greedy
        paths.append(s.folder.path(f"ids{len(paths)}"))
        with open(paths[-1], "w", encoding="utf-8") as f:
            json.dump(ids, f)
    clients = [s.start("--keep", *FIXED, "--prompt-ids", path, tokens=N_TOKEN) for path in N_CLIENT // 2 * paths]
    return clients, N_CLIENT // 2 * want


def end_turns(clients, want):
    """The sessions' numbers."""
    ids = []
    for p, text in zip(clients, want):
        out, err = p.communicate(timeout=120 * SLOW)
        assert p.returncode == 0, (out, err)
        out = json.loads(out)
        assert out["token_ids"] == text
        ids.append(out["session"])
    return ids


def next_turns(s, ids, texts):
    """A turn more of each session; its text is that of one long prompt."""
    for i, session in enumerate(ids):
        out = s.turn(MORE_IDS, "--max-tokens", "8", "--session", str(session))
        texts[i] = texts[i] + MORE_IDS
        assert out["token_ids"] == plain(GOLDEN[i % 2][0] + texts[i], 8)
        texts[i] = texts[i] + out["token_ids"]


@case
def eight_clients_share_two_targets_and_two_drafters():
    with fleet() as s:
        targets = numbers(s, "target")
        clients, texts = begin_turns(s)
        wait_for(lambda: sum(holders(s, "drafter").values()) == N_CLIENT, 60)
        assert holders(s, "target") == dict.fromkeys(targets, N_CLIENT // 2), s.list()
        drafted = holders(s, "drafter")
        first, drafter = targets[0], max(drafted, key=drafted.get)
        # Both are emptied while turns run: the drafter at once, the target when its turns are over.
        told = json.loads(s.graft("worker", "drain", str(first), "--json").stdout)
        assert told["draining"] and told["in_turn"] <= N_CLIENT // 2, told
        assert f"worker {drafter} takes no sessions any more" in s.graft("worker", "drain", str(drafter)).stdout
        assert of(s, first)["state"] in ("draining", "drained"), s.list()  # its turns may be over already
        wait_for(lambda: of(s, drafter)["sessions"] == 0)
        ids = end_turns(clients, texts)
        wait_for(lambda: of(s, first)["sessions"] == 0)
        assert of(s, first)["state"] == of(s, drafter)["state"] == "drained", s.list()
        next_turns(s, ids, texts)
        assert set(holders(s, "target")) == {targets[1]}, s.list()
        held = of(s, targets[1])["sessions"]
        for number in (first, drafter):
            assert f"worker {number} takes sessions again" in s.graft("worker", "undrain", str(number)).stdout
        wait_for(lambda: of(s, targets[1])["sessions"] <= (held + 1) // 2)  # the others go where they fit best
        next_turns(s, ids, texts)
        assert "serving" in s.graft("worker", "list").stdout and "drain" not in s.graft("worker", "list").stdout


@contextlib.contextmanager
def spawned(*args):
    """A fleet that `graft serve` starts itself."""
    more = ("--spawn", "--model", TARGET, "--draft", DRAFT, "--threads", "1", "--draft-threads", "1", *args)
    with Serve(*more, spawn=False) as s:
        yield s


def kill_again(s, pid):
    """Kills it each time that it was started again, before it can join, until it is given up."""
    given_up = lambda: s.log().count("times in a row")
    known, before = {p for p, _ in children(s.p.pid)} - {pid}, given_up()
    for _ in range(5):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda p=pid: not alive(p))
        fresh = []

        def look(fresh=fresh):
            fresh[:] = {p for p, _ in children(s.p.pid)} - known
            return fresh or given_up() > before
        wait_for(look)
        if not fresh:
            return
        pid = fresh[0]


@case
def serve_starts_a_fleet_whose_workers_restart_on_their_own():
    with spawned("--n-target", "2", "--n-draft", "2", "--sessions", str(N_CLIENT // 2)) as s:
        wait_for(lambda: len(workers(s)) == 4, 60)
        clients, texts = begin_turns(s)
        wait_for(lambda: sum(holders(s, "drafter").values()) == N_CLIENT, 60)
        assert list(holders(s, "target").values()) == 2 * [N_CLIENT // 2], s.list()
        before = {w["pid"] for w in workers(s)}
        for role in ("target", "draft"):
            # On a busy machine one that was silent for long may have to join again.
            wait_for(lambda role=role: any(w["role"] == role for w in workers(s)))
            killed = next(w for w in workers(s) if w["role"] == role)
            os.kill(killed["pid"], signal.SIGKILL)
            wait_for(lambda role=role: re.search(f"the {role} worker [12] was killed .* starting it again", s.log()))
        wait_for(lambda: len({w["pid"] for w in workers(s)} - before) == 2, 60)
        assert len(workers(s)) == 4
        end_turns(clients, texts)


@case
def a_target_of_several_is_given_up_alone():
    with spawned("--n-target", "2") as s:
        wait_for(lambda: len(workers(s)) == 3, 60)
        first, last = (w["pid"] for w in workers(s) if w["role"] == "target")
        kill_again(s, first)
        wait_for(lambda: "it is given up, and the other targets go on" in s.log())
        assert s.generate("--max-tokens", "8")["token_ids"] == generate("--ignore-eos", "--max-tokens", "8")["token_ids"]
        kill_again(s, last)
        assert s.p.wait(20 * SLOW) == 1 and "5 times in a row" in s.log().splitlines()[-1], s.log()


@case
def a_list_says_how_many_serve_starts():
    with spawned() as s:
        wait_for(lambda: len(workers(s)) == 2, 60)
    folder = Folder()
    path = folder.path("fleet.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("targets:\n- count: 2\n  device: cpu,cpu\n- {}\ndrafts:\n- count: 2\n")
    with spawned("--config", path) as s:
        wait_for(lambda: len(workers(s)) == 5, 60)
        assert len(numbers(s, "target")) == 3
    for args, words in ((("--n-target", "2"), "without --spawn"),
                        (("--spawn", "--model", TARGET, "--n-draft", "2"), "no draft model is named"),
                        (("--spawn", "--model", TARGET, "--n-target", "2", "--transport", "loop"), "is one target"),
                        (("--spawn", "--model", TARGET, "--n-target", "2", "--target-device", "cpu,cpu,cpu"),
                         "3 devices for 2 workers (--n-target)"),
                        (("--spawn", "--model", TARGET, "--n-target", "2", "--config", path), "both say how many")):
        done = run("serve", "--control", "127.0.0.1:0", *args, env=folder.env())
        assert done.returncode == 2, (args, done.returncode, done.stderr)
        one_line(done, words)


class Load(Background):
    """Clients, each of which asks for one text again and again; failures: what went wrong."""

    def __init__(self, s, n_client, *args, tokens=60):
        super().__init__(*[self.ask_on] * n_client)
        self.s, self.args, self.tokens = s, args, tokens
        self.failures, self.n_done, self.n_refused = [], 0, 0
        self.want = generate("--ignore-eos", "--max-tokens", str(tokens))["token_ids"]
        self.lock = threading.Lock()

    def ask_on(self):
        while not self.stop.is_set():
            p = self.s.start(*self.args, tokens=self.tokens)
            out, err = p.communicate(timeout=120 * SLOW)
            with self.lock:
                self.note(p.returncode, out, err)

    def note(self, status, out, err):
        if status == 0 and json.loads(out)["token_ids"] == self.want:
            self.n_done += 1
        elif status == 1 and "requests wait already" in err:
            self.n_refused += 1
        else:
            self.failures.append((status, out[-500:], err))



@case
def each_worker_leaves_in_turn_under_load():
    """Each is told to end while turns run, with another one beside it: no turn is lost, none is told twice."""
    with Serve(spawn=False) as s, contextlib.ExitStack() as stack:
        models = {"graft-target": TARGET, "graft-draft": DRAFT}

        def start(program):
            n = len(workers(s))
            p = stack.enter_context(worker(program, s.folder, s.address, "--threads", "1", model=models[program]))
            wait_for(lambda: len(workers(s)) == n + 1, 60)
            return p
        running = [(program, start(program)) for program in 2 * list(models)]
        with Load(s, 3, *FIXED) as load:
            for program, p in running:
                wait_for(lambda n=load.n_done + 3: load.n_done >= n, 60)
                start(program)
                p.terminate()
                assert p.wait(60 * SLOW) == 0, p.communicate()
            wait_for(lambda n=load.n_done + 3: load.n_done >= n, 60)
        assert load.failures == [] and load.n_refused == 0, (load.failures, load.n_refused)
        assert len(workers(s)) == 4


@case
def busy_and_bad_requests_are_no_deaths():
    """More turns are asked for than run and may wait, and some that no target can do: nobody counts as lost."""
    with Serve("--queue-max", "1", spawn=False) as s, \
            worker("graft-target", s.folder, s.address, "--sessions", "1"), \
            worker("graft-draft", s.folder, s.address, model=DRAFT):
        wait_for(lambda: len(workers(s)) == 2, 60)
        before = workers(s)
        bad = [("--max-tokens", "4", "--served-model-name", "none"), ("--max-tokens", "4", "--session", UNKNOWN)]
        with Load(s, 3, tokens=300) as load:
            for i in range(12):
                p = s.start(*bad[i % 2])
                out, err = p.communicate(timeout=60 * SLOW)
                assert p.returncode == 1 and ("no model `none'" in err or f"no session {UNKNOWN}" in err), (out, err)
            wait_for(lambda: load.n_refused >= 5 and load.n_done >= 5, 60)
        assert load.failures == [], load.failures
        assert [(w["worker"], w["pid"]) for w in workers(s)] == [(w["worker"], w["pid"]) for w in before]
        assert not any(word in s.log() for word in ("is gone", "is dropped", "silent")), s.log()
        assert s.generate("--max-tokens", "60")["token_ids"] == load.want[:60]


class Posts:
    """Answers that clients of the endpoint wait for, all asked for at once."""

    def __init__(self, s, prompts, **body):
        port = int(re.search(r"at http://127\.0\.0\.1:(\d+)/v1", s.log()).group(1))
        self.url, self.body = f"http://127.0.0.1:{port}", dict(temperature=0, ignore_eos=True, **body)
        self.pool = concurrent.futures.ThreadPoolExecutor(len(prompts))
        before = self.n_taken()
        self.answers = [self.pool.submit(self.ask, p) for p in prompts]
        wait_for(lambda: self.n_taken() == before + len(prompts), 60)

    def ask(self, prompt):
        data = json.dumps(dict(self.body, prompt=prompt)).encode()
        request = urllib.request.Request(self.url + "/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120 * SLOW) as answer:
            return json.load(answer)["choices"][0]["text"]

    def n_taken(self):
        """Turns that the server has ever taken: some are over soon."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60 * SLOW) as answer:
            return int(re.search(r"^graft_requests_total (\d+)", answer.read().decode(), re.M)[1])

    def texts(self):
        with self.pool:
            return [a.result() for a in self.answers]


@case
def a_signal_sends_what_is_on_its_way_elsewhere():
    """A target and a drafter are told to end, by signals of their own, before they have read the OPENs and ATTACHes that
    were sent to them: the sessions go to the others, nobody is refused, and nothing counts as a failure."""
    prompts = ["def f(x):", "import os", "class Stack:", "x = 1"]
    want = 2 * [generate("--ignore-eos", "--prompt", p, "--max-tokens", "60")["text"] for p in prompts]
    prompts *= 2
    with Serve("--http", "127.0.0.1:0", "--model", TARGET, spawn=False) as s, contextlib.ExitStack() as stack:
        def start(program, model):
            return stack.enter_context(worker(program, s.folder, s.address, "--sessions", str(N_CLIENT), model=model))
        pairs = [(start("graft-target", TARGET), start("graft-draft", DRAFT)) for _ in range(3)]
        wait_for(lambda: len(workers(s)) == 6, 60)
        for _ in range(8):  # which of the two a worker meets first, the signal or what was sent, is the machine's choice
            if "it is opened elsewhere" in s.log():
                break  # what was read before the signal is done there
            if len(pairs) < 2:
                pairs.append((start("graft-target", TARGET), start("graft-draft", DRAFT)))
                wait_for(lambda: len(workers(s)) == 4, 60)
            leaving = pairs.pop()
            for p in leaving:
                p.send_signal(signal.SIGSTOP)
            posts = Posts(s, prompts, max_tokens=60)
            for p in leaving:
                p.send_signal(signal.SIGUSR1)
                p.send_signal(signal.SIGCONT)
            assert posts.texts() == want
            assert [p.wait(60 * SLOW) for p in leaving] == [0, 0]
        log = s.log()
        assert "it is opened elsewhere" in log and "[fallback]" not in log and "silent" not in log, log


@case
def an_overloaded_drafter_sheds_sessions_to_none():
    """Its trees take so long that tokens come sooner without: one session a second goes on plainly, and has trees again
    when another drafter comes. The slow one keeps a session, whose trees nobody delays, until it is drained."""
    n, tokens = 4, 500
    want = plain(GOLDEN[0][0], tokens)
    with Serve(spawn=False) as s, contextlib.ExitStack() as stack:
        def start(program, *args, model):
            k = len(workers(s))
            stack.enter_context(worker(program, s.folder, s.address, *args, model=model))
            wait_for(lambda: len(workers(s)) == k + 1, 60)
            return max(numbers(s, "draft"), default=0)
        start("graft-target", model=TARGET)
        slow = start("graft-draft", "--test-delay-us", "40000", model=DRAFT)
        path = s.folder.path("ids")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(GOLDEN[0][0], f)
        clients = [s.start(*FIXED, "--prompt-ids", path, tokens=tokens) for _ in range(n)]
        wait_for(lambda: f"goes on without a drafter: draft worker {slow} has too much to do" in s.log(), 60)
        assert "[fallback]" not in s.log(), s.log()
        fast = start("graft-draft", model=DRAFT)
        wait_for(lambda: of(s, fast)["sessions"] > 0, 60)
        s.graft("worker", "drain", str(slow))
        for p in clients:
            out, err = p.communicate(timeout=120 * SLOW)
            assert p.returncode == 0, err
            out = json.loads(out)
            assert out["token_ids"] == want and out["metrics"]["fallbacks"] == 0, out["metrics"]


@case
def turns_wait_for_a_drained_target():
    want = generate("--ignore-eos", "--max-tokens", "20")["token_ids"]
    with fleet(n_target=1, n_draft=0) as s:
        one_line(s.graft("worker", "drain", "9", status=1), "no worker 9")
        s.graft("worker", "drain", "x", status=2)
        number = numbers(s, "target")[0]
        s.graft("worker", "drain", str(number))
        p = s.start(tokens=20)
        wait_for(lambda: [x["state"] for x in s.sessions()] == ["waiting"])
        assert "no target: none takes sessions" in s.graft("session", "list").stdout
        s.graft("worker", "undrain", str(number))
        out, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0 and json.loads(out)["token_ids"] == want, err


if __name__ == "__main__":
    sys.exit(main())
