"""kill -9 of one process after another of a job that serves several sessions, under mpirun and under Slurm: what is killed
comes back, texts are plain's, and every other process of the job is the one that it was."""
import json
import os
import re
import signal

from cluster import (
    MPIRUN, PAIR, SRUN, TURN, Job, belongs, ids_of, job, nothing_is_left, parent_and_start, path, plain, plain_text, processes,
    processes_of, slurm, workers
)
from harness import DRAFT, ENDLESS, GRAFT, case, wait_for
from stream import running_again

KEY = "ab" * 32
N_CLIENT = 3
TOKENS = 500  # of a turn that is waited for


class Served:
    """A job without a command whose target is a group of two processes, and those who ask it."""

    def __init__(self, start, folder):
        self.folder = folder
        self.job = Job(*start, GRAFT, "launch", *PAIR, "-tp", "2", "--threads", "1", "--draft-threads", "1", "--job-dir", folder,
                       GRAFT_KEY=KEY)
        self.job.wait_for("roles are up")
        port = re.search(r"orchestrator at port (\d+)", self.job.said()).group(1)
        self.env = {"GRAFT_KEY": KEY, "GRAFT_CONNECT": f"127.0.0.1:{port}"}

    def sessions(self):
        done = job(GRAFT, "session", "list", "--json", **self.env)
        return json.loads(done.stdout)["sessions"] if done.returncode == 0 else []

    def clients(self, *how, tokens):
        command = [word for word in TURN[1:] if word != "--json"]
        return [Job(GRAFT, *command, *how, "--max-tokens", str(tokens), "--num-speculative-tokens", "4", **self.env)
                for _ in range(N_CLIENT)]

    def endless(self, *how):
        """Turns that run, all of them at once."""
        started = self.clients(*how, tokens=ENDLESS)
        wait_for(lambda: [x["state"] for x in self.sessions() if x["rounds"] > 3] == N_CLIENT * ["running"], 30)
        return started

    def closed(self, clients):
        """What there is of such turns, all of it plain's."""
        there = self.sessions()
        assert len(there) == len(clients), there
        for x in there:
            assert job(GRAFT, "session", "close", x["id"], **self.env).returncode == 0, x
        answers = [json.loads(c.end().stdout) for c in clients]
        want = plain(max(len(x["token_ids"]) for x in answers))
        for x in answers:
            assert x["finish_reason"] == "closed" and x["token_ids"] == want[:len(x["token_ids"])], x
        return answers

    def orchestrator(self):
        return [pid for pid in processes(("graft", "serve")) if belongs(pid, self.folder)]

    def members(self):
        """The two processes of the target: its first, and the one that this has started."""
        pids = workers("graft-target", self.folder)
        return sorted(pids, key=lambda pid: parent_and_start(pid)[0] in pids) if len(pids) == 2 else []

    def killed(self, pid, replaced):
        """Kills it; what is to be looked at once it is back: nobody but `replaced' is another process than before."""
        before = processes_of(self.folder)
        n_restart = self.job.said().count("starting it again")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.job.said().count("starting it again") > n_restart, 30)

        def look():
            after = processes_of(self.folder)
            gone, come = before.keys() - after.keys(), after.keys() - before.keys()
            assert {p for p, _ in gone} == set(replaced), (gone, replaced, before, self.job.said())
            assert sorted(after[p] for p in come) == sorted(before[p] for p in gone), (come, gone, before, after)
        return look


def killed_drafter(served):
    clients = served.endless("--json")
    victim, = workers("graft-draft", served.folder)
    look = served.killed(victim, [victim])
    begin = {x["id"]: x["tokens"] for x in served.sessions()}
    assert len(begin) == N_CLIENT, begin
    wait_for(lambda: sum(x["tokens"] > begin[x["id"]] + 30 for x in served.sessions()) == N_CLIENT)
    served.closed(clients)
    wait_for(lambda: workers("graft-draft", served.folder))
    look()


def killed_member(served):
    """The group ends as a whole and comes back; its sessions go on where they were."""
    clients = served.endless("--json")
    group = served.members()
    look = served.killed(group[1], group)
    running_again(served.sessions, N_CLIENT)
    assert [x["metrics"]["reopens"] for x in served.closed(clients)] == N_CLIENT * [1]
    look()


def killed_orchestrator(served):
    """Its turns end with a line and with what was right so far; workers join the next one, and turns that begin then are whole."""
    clients = served.endless()
    victim, = served.orchestrator()
    look = served.killed(victim, [victim])
    for c in clients:
        done = c.end()
        assert done.returncode == 1 and done.stderr.strip(), (done.returncode, done.stderr)
        text, want = done.stdout.rstrip("\n"), plain_text(TOKENS)
        assert text[:len(want)] == want[:len(text)], text
    assert job(GRAFT, "wait", "--draft", DRAFT, "--timeout", "40", **served.env).returncode == 0, served.job.said()
    for c in served.clients("--json", tokens=TOKENS):
        assert ids_of(c.end()) == plain(TOKENS)
    look()


def killed_one_after_another(start, folder):
    served = Served(start, folder)
    assert not processes((KEY,))
    try:
        for kill in (killed_drafter, killed_member, killed_orchestrator):
            kill(served)
    finally:
        served.job.p.terminate()
        served.job.end()
        nothing_is_left(folder)


@case
def mpirun_killed_one_after_another():
    """[E4]"""
    killed_one_after_another((*MPIRUN, "-np", "3"), path("mpirun-kills"))


@slurm
def srun_killed_one_after_another():
    """[C5, C6]"""
    killed_one_after_another((*SRUN, "-N3", "-n3"), path("srun-kills"))
