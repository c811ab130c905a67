#!/usr/bin/env python3
"""Many streams of a server whose processes are killed one after the other: every answer is what plain decoding gives, none is
lost, doubled or cut, nobody dies but who was killed, and every request is counted once.

GRAFT_TEST_KILLS=N: kills of both storms together (default 40; the long form has 5000). GRAFT_TEST_SEED=N draws victims and
moments. GRAFT_TEST_VICTIMS: names of programs that are killed, where not all of them are to be.

usage: test_storm.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import os
import random
import signal
import statistics
import subprocess
import threading
import time

from endpoint import Endpoint
from harness import BUILD, DRAFT, SLOW, TARGET, Skip, alive, case, children, generate, main, wait_for
from kept import Answer, Kept
from served import Folder, free_port

N_KILL = int(os.environ.get("GRAFT_TEST_KILLS", "40"))
LONG = os.environ.get("GRAFT_TEST_LONG", "") != ""
SEED = int(os.environ.get("GRAFT_TEST_SEED", str(int(time.time()))))
N_CLIENT = 64 if SLOW == 1 else 12
N_TOKEN = 240 if SLOW == 1 else 100  # an answer takes as long as several kills
WAIT_S = 300  # until every stream has moved again (it is a second or ten), and for an answer that breaks
VICTIMS = os.environ.get("GRAFT_TEST_VICTIMS", "graft-draft graft-target graft").split()
PROMPTS = ("import os", "class Stack:", "def fibonacci(n):", "for i in range(10):")


def bodies():
    """What is asked for, and the text that plain decoding gives: greedy or drawn, whoever drafts."""
    for i, prompt in enumerate(PROMPTS):
        for drawn in (False, True):
            how = ("--temperature", "0.9", "--seed", str(i)) if drawn else ()
            want = generate("--prompt", prompt, "--ignore-eos", "--method", "none", "--max-tokens", str(N_TOKEN), *how)["text"]
            body = {"prompt": prompt, "ignore_eos": True, "max_tokens": N_TOKEN, "temperature": 0}
            if drawn:
                body.update(temperature=0.9, seed=i)
            if i % 2:
                body["num_speculative_tokens"] = 3
            yield body, want


class Fleet:
    """A server with a journal under a supervisor. Its workers are its own, or have a supervisor each."""

    def __init__(self, stack, spawned):
        self.folder, self.spawned, self.supervisors = Folder(), spawned, {}
        args = ("--journal", self.folder.path("journal"), "--supervise", "--quarantine", "0", "--resume-grace", "600")
        args += self.sizes() if spawned else ("--model", TARGET)
        self.s = stack.enter_context(Endpoint(*args, spawn=spawned, folder=self.folder, http=f"127.0.0.1:{free_port()}",
                                              control=f"127.0.0.1:{free_port()}"))
        self.supervisors["graft"] = self.s.p
        if not spawned:
            self.start(stack, "graft-target", "--model", TARGET, *self.sizes())
            self.start(stack, "graft-draft", "--model", DRAFT, "--target", TARGET, *self.sizes())
        self.s.wait("--draft", DRAFT)
        wait_for(lambda: len(self.processes()) == 3)

    @staticmethod
    def sizes():
        return ("--sessions", str(N_CLIENT), "--max-model-len", str(N_TOKEN + 64))

    def start(self, stack, program, *args):
        err = stack.enter_context(open(self.folder.path(f"{program}.err"), "w", encoding="utf-8"))
        argv = [os.path.join(BUILD, program), "--join", self.s.address, "--supervise", *args]
        p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=err, env=self.folder.env(GRAFT_LOG="info"))
        stack.callback(lambda: (p.terminate(), p.wait(60 * SLOW)))
        self.supervisors[program] = p

    def processes(self):
        """Of each program the process that does the work, where there is one now."""
        found = {os.path.basename(cmd): pid for p in self.supervisors.values() for pid, cmd in children(p.pid)}
        if self.spawned and "graft" in found:
            own = [(os.path.basename(cmd), pid) for pid, cmd in children(found["graft"])]
            found.update((name, pid) for name, pid in own if name != "graft")  # one that was only just forked
        return found

    def n_process(self):
        def below(pid):
            return sum(1 + below(child) for child, _ in children(pid))
        return sum(1 + below(p.pid) for p in self.supervisors.values())

    def die_with(self, victim):
        """Who may be gone after a kill."""
        return set(self.processes()) if victim == "graft" and self.spawned else {victim}


class Told(Answer):
    """An answer whose client sees it move."""

    def __init__(self, client):
        super().__init__()
        self.client = client

    def take(self, name, data):
        super().take(name, data)
        self.client.n_event += 1


class Client:
    """Asks for one answer after the other, goes on with each where its stream breaks, and holds it against what it must be."""

    def __init__(self, s, asked, name, seed):
        self.s, self.asked, self.name, self.rng = s, asked, name, random.Random(seed)
        self.n_event, self.n_asked, self.n_answer, self.wrong = 0, 0, 0, None

    def answer(self, body):
        """Text, how it ended, and how many tokens it had."""
        self.n_asked += 1
        kept = Kept(self.s, "/v1/completions", body, key=f"{self.name}-{self.n_asked}", seconds=WAIT_S)
        kept.answer = Told(self)
        got = kept.read()
        return got.text, got.finish, got.usage["completion_tokens"]

    def go_on(self, stop):
        try:
            while not stop.is_set():
                body, want = self.rng.choice(self.asked)
                got = self.answer(body)
                assert got == (want, "length", N_TOKEN), (body, got, want)
                self.n_answer += 1
        except Exception as e:  # pylint: disable=broad-except
            self.wrong = f"{type(e).__name__}: {e}"


class Load:
    """So many clients beside a `with` block; at its end each has its last answer whole."""

    def __init__(self, s, rng):
        asked = list(bodies())
        self.clients = [Client(s, asked, f"client-{i}", rng.random()) for i in range(N_CLIENT)]
        self.n_at_start, self.restarted = 0, False  # answers when the server was last killed
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=c.go_on, args=(self.stop,)) for c in self.clients]

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.wait_until_all_move()
        return self

    def __exit__(self, failure, *rest):
        self.stop.set()
        for t in self.threads:
            t.join()
        assert failure or not self.wrong(), self.wrong()

    def wrong(self):
        return [c.wrong for c in self.clients if c.wrong]

    def wait_until_all_move(self):
        """Until each has got something from now on."""
        seen = [c.n_event for c in self.clients]
        wait_for(lambda: self.wrong() or all(c.n_event > n for c, n in zip(self.clients, seen)), WAIT_S)
        assert not self.wrong(), self.wrong()[0]

    def n_answer(self):
        return sum(c.n_answer for c in self.clients)


def one_kill(fleet, load, victim):
    """Seconds until every stream has moved again. Of a drafter nobody waits for the next one."""
    before, gone = fleet.processes(), fleet.die_with(victim)
    if victim == "graft":
        load.n_at_start, load.restarted = load.n_answer(), True
    begin = time.monotonic()
    os.kill(before[victim], signal.SIGKILL)
    wait_for(lambda: not alive(before[victim]))
    if victim != "graft-draft":  # what had been told before is no sign of the next one
        wait_for(lambda: fleet.processes().get(victim, before[victim]) != before[victim], WAIT_S)
    load.wait_until_all_move()
    died = [name for name, pid in before.items() if name not in gone and not alive(pid)]
    assert not died, f"{died} died with {victim}"
    assert all(p.poll() is None for p in fleet.supervisors.values()), "a supervisor ended"
    return time.monotonic() - begin


def storm(spawned, n_kill):
    rng = random.Random(SEED + spawned)
    took = {victim: [] for victim in VICTIMS}
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack, spawned)
        with Load(fleet.s, rng) as load:
            for _ in range(n_kill):
                there = fleet.processes()
                victim = rng.choice([v for v in VICTIMS if v in there])
                took[victim].append(one_kill(fleet, load, victim))
                time.sleep(rng.uniform(.1, .5))  # a moment of the load, not a time to wait for anything
        for victim, times in took.items():
            if times:
                print(f"# {victim}: {len(times)} kills, all streams move again after {statistics.median(times):.2f} s "
                      f"(most {max(times):.2f})", flush=True)
        print(f"# {load.n_answer()} answers of {N_TOKEN} tokens, {N_CLIENT} at a time", flush=True)
        is_counted(fleet, load)


def is_counted(fleet, load):
    """Nothing runs, every request has ended in one way, and there are as many processes as at the start. A server that was
    started again counts what it has taken over and what it was asked; some answers were over before, and only read since."""
    wait_for(fleet.s.is_quiet)
    m = fleet.s.metrics()
    ended = {k: v for k, v in m.items() if k.startswith("graft_request_success_total") and v}
    assert list(ended.values()) == [m["graft_requests_total"]] and '"length"' in next(iter(ended)), (ended, m["graft_requests_total"])
    n, slack = load.n_answer() - load.n_at_start, N_CLIENT if load.restarted else 0
    assert n - slack <= m["graft_requests_total"] <= n, (m["graft_requests_total"], n)
    wait_for(lambda: len(fleet.processes()) == 3, WAIT_S)
    assert fleet.n_process() == (4 if fleet.spawned else 6), fleet.n_process()


@case
def a_server_that_is_killed_is_soon_there_again():
    """Its workers keep their KV, and its clients go on where they were; limits are wide, and the times are told."""
    if "graft" not in VICTIMS:
        raise Skip("the server is no victim")
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack, False)
        with Load(fleet.s, random.Random(SEED)) as load:
            took = [one_kill(fleet, load, "graft") for _ in range(3)]
        print(f"# {N_CLIENT} streams all move again {', '.join(f'{t:.2f}' for t in took)} s after their server was killed", flush=True)
        assert min(took) < (2 if LONG else 30) * SLOW, took  # the short form shares its machine with others


@case
def workers_of_the_server():
    storm(True, (N_KILL + 1) // 2)


@case
def workers_with_supervisors_of_their_own():
    storm(False, N_KILL // 2)


if __name__ == "__main__":
    print(f"# GRAFT_TEST_SEED={SEED}", flush=True)
    raise SystemExit(main())
