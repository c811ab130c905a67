#!/usr/bin/env python3
"""`graft launch` under the launchers themselves: mpirun, and a Slurm of four nodes on this machine (slurm-local).

The nodes are one machine: they differ by name, and share /dev/shm, ports and process numbers. Names in brackets are the rows
of reports that a case comes from.

usage: test_cluster.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import csv
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from harness import BUILD, CASES, DRAFT, GRAFT, HEAD, ROOT, SLOW, TARGET, Background, case, generate, main, wait_for

LONG = bool(os.environ.get("GRAFT_TEST_LONG"))
HERE = os.path.dirname(os.path.abspath(__file__))
SLURM = os.path.join(HERE, "slurm-local")
PROMPT = "def fibonacci(n):"
ROLES = ("--roles", "serve:1,draft:1,target:1")
PAIR = (*ROLES, "--model", TARGET, "--draft", DRAFT)
TURN = ("graft", "run", "--json", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("GRAFT_", "SLURM", "OMPI_", "PMI"))}
STATE = {}  # dir: of the job folders; conf: of Slurm


def plain(tokens):
    if tokens not in STATE:
        STATE[tokens] = generate("--method", "none", "--ignore-eos", "--max-tokens", str(tokens))["token_ids"]
    return STATE[tokens]


def env_of(**more):
    env = dict(ENV, **more)
    if "conf" in STATE:
        env["SLURM_CONF"] = STATE["conf"]
    return env


def path(name):
    return os.path.join(STATE["dir"], name)


def job(*argv, timeout=90, **env):
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout * SLOW, env=env_of(**env),
                          stdin=subprocess.DEVNULL, cwd=STATE["dir"])


def ids_of(done):
    """The token ids of the JSON object that the command has printed."""
    found = re.search(r"^(?:\d+: )?(\{.*\})$", done.stdout, re.M)
    assert done.returncode == 0 and found, (done.returncode, done.stdout[-600:], done.stderr[-2000:])
    return json.loads(found.group(1))["token_ids"]


def has(done, *words):
    text = done.stdout + done.stderr
    for w in words:
        assert w in text, (w, text[-3000:])


def ranks(done):
    """rank -> (size, host, role, source) of the lines in which each rank tells what it is."""
    found = re.findall(r"graft launch: rank (\d+) of (\d+) on host (\S+): (\w+) \(ranks by (\w+)", done.stderr)
    out = {int(r): (int(n), h, role, s) for r, n, h, role, s in found}
    assert len(out) == len(found), done.stderr
    return out


def processes(words):
    """Numbers of the processes whose command lines have these words."""
    out = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                line = f.read().decode(errors="replace").split("\0")
        except (OSError, NotADirectoryError):
            continue
        if name.isdigit() and all(any(a.endswith(w) for a in line) for w in words):
            out.append(int(name))
    return out


def workers(program, job_dir):
    """The worker itself, below its supervisor."""
    mine = [p for p in processes((program, TARGET if program == "graft-target" else DRAFT))
            if "--supervise" not in open(f"/proc/{p}/cmdline", "rb").read().decode().split("\0")]
    return [p for p in mine if belongs(p, job_dir)]


def belongs(pid, job_dir):
    """Is it below a rank that was given this folder?"""
    while pid > 1:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if job_dir in f.read().decode(errors="replace").split("\0"):
                    return True
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                pid = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


class Job:
    """A job in the background, its output in files."""

    def __init__(self, *argv, **env):
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(argv, stdout=self.out, stderr=self.err, stdin=subprocess.DEVNULL, env=env_of(**env),
                                  cwd=STATE["dir"])

    def said(self):
        return os.pread(self.err.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_for(self, words):
        wait_for(lambda: words in self.said() or self.p.poll() is not None, 60)
        assert words in self.said(), self.said()[-3000:]

    def end(self, seconds=90):
        self.p.wait(timeout=seconds * SLOW)
        out = os.pread(self.out.fileno(), 1 << 24, 0).decode(errors="replace")
        return subprocess.CompletedProcess(self.p.args, self.p.returncode, out, self.said())


def killed_worker(start, program, folder):
    """kill -9 of a worker in a turn: it comes back, the text is right, and the job's status is the command's."""
    tokens = 1500
    want = plain(tokens)
    j = Job(*start, "--job-dir", folder, "--", *TURN, "--max-tokens", str(tokens), "--num-speculative-tokens", "4")
    j.wait_for("roles are up")
    wait_for(lambda: workers(program, folder))
    victim = workers(program, folder)[0]
    time.sleep(0.2)  # into the turn; wherever it hits, the text must be right
    os.kill(victim, signal.SIGKILL)
    done = j.end()
    assert ids_of(done) == want
    has(done, "starting it again")


def nothing_is_left(folder):
    wait_for(lambda: not [p for p in processes(("launch",)) if belongs(p, folder)], 20)


def slurm(fn):
    if shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0:
        CASES.append(fn)
    return fn


# ---- mpirun ----

@case
def mpirun_pair():
    """The demo pair with golden tokens, over a key that rank 0 draws."""
    begin = time.monotonic()
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--", *TURN, "--max-tokens", "64")
    assert ids_of(done) == plain(64)
    assert {r: v[2:] for r, v in ranks(done).items()} == {0: ("serve", "ompi"), 1: ("draft", "ompi"), 2: ("target", "ompi")}
    assert time.monotonic() - begin < 10 * SLOW


@case
def mpirun_many():
    """Two drafters and three targets, by a plan."""
    plan = path("plan.yaml")
    with open(plan, "w", encoding="utf-8") as f:
        f.write(f"target:\n  model: {TARGET}\n  threads: 1\ndraft:\n  model: {DRAFT}\n  threads: 1\n"
                "targets:\n- {count: 2, device: cpu}\n- {count: 1}\ndrafts:\n- {count: 2}\n")
    done = job(*MPIRUN, "-np", "6", GRAFT, "launch", "--plan", plan, "--", *TURN, "--max-tokens", "32")
    assert ids_of(done) == plain(32)
    assert [v[2] for _, v in sorted(ranks(done).items())] == ["serve"] + ["target"] * 3 + ["draft"] * 2


@case
def mpirun_head():
    """An EAGLE-3 head as the drafter, and a tree in each round."""
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *ROLES, "--model", TARGET, "--draft", HEAD, "--", *TURN, "--max-tokens", "64",
               "--num-speculative-tokens", "4")
    assert ids_of(done) == plain(64)
    assert '"num_accepted_tokens":0' not in done.stdout.replace(" ", ""), done.stdout


@case
def commands_are_printed():
    """--print-command, word by word. [C12]"""
    def line(rank, *args):
        done = job(GRAFT, "launch", "--print-command", *args, RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank))
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(ROOT + "/", "").strip()
    more = ("--threads", "2", "--draft-threads", "1", "--kv-blocks", "100", "--sessions", "3", "--specpv", "lossy", "--log-level",
            "info", "--", "echo", "it's")
    want = [
        "graft serve --control ANY:0; echo 'it'\\''s'",
        "graft-draft --join RANK0:PORT --sessions 3 --model models/demo/draft --threads 1 --log-level info --supervise",
        "graft-target --join RANK0:PORT --sessions 3 --model models/demo/target --threads 2 --kv-blocks 100 --log-level info"
        " --specpv on --listen OWN:0 --supervise"]
    for rank in range(3):
        assert line(rank, *PAIR, *more) == want[rank], (line(rank, *PAIR, *more), want[rank])
    assert line(2, *ROLES, "--model", TARGET, "--draft", HEAD, "--target-device", "cuda:local") == (
        "graft-target --join RANK0:PORT --sessions 8 --model models/demo/target --device cuda:local --head models/demo/eagle3"
        " --listen OWN:0 --supervise")


@case
def mpirun_command_status():
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--", "sh", "-c", "test -n \"$GRAFT_KEY\" && exit 7")
    assert done.returncode == 7, (done.returncode, done.stderr)
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--", "bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 128 + signal.SIGPIPE, (done.returncode, done.stderr)


@case
def mpirun_ranks_and_roles():
    """More ranks than roles, the reverse, and a job of two orchestrators: one line each with rank and host."""
    for n, word in (("4", "there are more ranks than roles"), ("2", "there are more roles than ranks")):
        done = job(*MPIRUN, "-np", n, GRAFT, "launch", *PAIR)
        assert done.returncode != 0
        has(done, word, "rank 0 on host")
    done = job(*MPIRUN, "-np", "2", GRAFT, "launch", "--roles", "serve:2,target:1", "--model", TARGET)
    assert done.returncode != 0
    has(done, "rank 1 is an orchestrator")


@case
def mpirun_killed_target():
    killed_worker((*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR), "graft-target", path("kill-target"))


@case
def mpirun_killed_drafter():
    killed_worker((*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR), "graft-draft", path("kill-draft"))


@case
def mpirun_that_starts_nothing():
    """What mpirun refuses to start never says that it is up. [E3]"""
    done = job("mpirun", "--allow-run-as-root", "-np", "99", GRAFT, "launch", *PAIR)
    assert "roles are up" not in done.stderr and "graft launch: rank" not in done.stderr, done.stderr


@case
def lines_are_whole():
    """Ranks and their workers that say much: no line stands in another. [E7]"""
    done = job(*MPIRUN, "--tag-output", "-np", "8", GRAFT, "launch", "--roles", "serve:1,draft:3,target:4", *PAIR[2:], "--threads",
               "1", "--draft-threads", "1", "--kv-blocks", "64", "--log-level", "debug", "--", *TURN, "--max-tokens",
               "64", GRAFT_LOG="debug")
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) > 40, (done.returncode, len(lines))
    begins = [len(re.findall(r"\d\d:\d\d:\d\d\.\d{3} \S+ (?:\S+ )?(?:graft|target|draft)\b.*?: ", x)) for x in lines]
    assert max(begins) == 1, [x for x, n in zip(lines, begins) if n > 1][:3]


@case
def a_folder_that_shows_names_late():
    """A name that is there only after the folder was listed, as over NFS: the ranks find each other all the same. [F1]"""
    folder = path("late")
    os.mkdir(folder, 0o700)
    late = {"LD_PRELOAD": os.path.join(BUILD, "tests/cluster/liblate_folder.so"), "GRAFT_LATE_DIR": folder}
    with open(os.path.join(folder, "there"), "w", encoding="utf-8"):
        pass
    assert job("cat", os.path.join(folder, "there"), **late).returncode != 0  # it does hide names
    os.unlink(os.path.join(folder, "there"))
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 0 ] && sleep 0.5; exec \"$@\""  # the others look before anything is there
    done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--job-dir", folder, "--", *TURN,
               "--max-tokens", "16", **late)
    assert ids_of(done) == plain(16)


@case
def mpirun_other_environment():
    """A variable that one rank alone has: the line names rank and variable. [B9]"""
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 1 ] && export GRAFT_X=1; exec \"$@\""
    done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR)
    assert done.returncode != 0
    has(done, "rank 1 on host", "GRAFT_X is 1, and on rank 0")
    assert done.stderr.count("graft: error: rank 1 on host") <= 2, done.stderr  # rank 0's line, and its answer at rank 1


@case
def other_model_other_key():
    """Ranks with different models, and with different keys."""
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 2 ] && set -- \"$@\" --model \"$OTHER\"; exec \"$@\""
    done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, OTHER=DRAFT)
    assert done.returncode != 0
    has(done, "rank 2 on host", "files of --model is")
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 1 ] && export GRAFT_KEY=" + "cd" * 32 + "; exec \"$@\""
    done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--rendezvous", "127.0.0.1:15055",
               "--start-within", "5", GRAFT_KEY="ab" * 32)
    assert done.returncode != 0
    has(done, "rank 1 on host", "key")


@case
def everybody_is_rank_0():
    """Processes that all take themselves for rank 0 and rank 1: the second of each is refused. [A2, F2]"""
    folder = path("twice")
    env = {"WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_PORT": "1"}
    lead = Job(GRAFT, "launch", *PAIR, "--job-dir", folder, "--start-within", "20", RANK="0", **env)
    lead.wait_for("serving on")
    first = Job(GRAFT, "launch", *PAIR, "--job-dir", folder, RANK="1", **env)
    first.wait_for("rank 1 of 3")
    second = Job(GRAFT, "launch", *PAIR, "--job-dir", folder, RANK="1", **env)
    for j in (lead, first, second):
        assert j.end().returncode != 0, j.said()
    assert "rank 1 comes twice" in lead.said(), lead.said()
    # The same of rank 0: neither waits for the ranks of the other.
    begin = time.monotonic()
    lead = Job(GRAFT, "launch", *PAIR, "--job-dir", folder, RANK="0", **env)
    lead.wait_for("serving on")
    second = Job(GRAFT, "launch", *PAIR, "--job-dir", folder, RANK="0", **env)
    assert second.end().returncode != 0 and lead.end().returncode != 0
    has(second.end(), "rank 0 says: rank 0 comes twice")
    assert time.monotonic() - begin < 30 * SLOW


@case
def signals_end_the_job():
    """SIGTERM to all ranks at once ends the job in order: status 0, nothing is left."""
    folder = path("term")
    j = Job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--job-dir", folder)
    j.wait_for("roles are up")
    begin = time.monotonic()
    for pid in processes(("launch", folder)):
        if b"mpirun" not in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(pid, signal.SIGTERM)
    done = j.end(30)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 15 * SLOW
    assert os.listdir(folder) == []
    nothing_is_left(folder)


@case
def a_signal_that_comes_twice():
    """SIGTERM to all ranks from two senders at once: the turns of eight clients end with their texts all the same."""
    folder, key, tokens = path("twice-term"), "ab" * 32, 2000
    want = plain(tokens)
    j = Job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--threads", "1", "--draft-threads", "1", "--job-dir", folder,
            "--drain-timeout", "200", "--grace", "210", GRAFT_KEY=key)
    j.wait_for("roles are up")
    port = re.search(r"orchestrator at port (\d+)", j.said()).group(1)
    env = {"GRAFT_KEY": key, "GRAFT_CONNECT": f"127.0.0.1:{port}"}
    clients = [Job(GRAFT, *TURN[1:], "--max-tokens", str(tokens), **env) for _ in range(8)]
    wait_for(lambda: job(GRAFT, "session", "list", **env).stdout.count("running") == 8, 30)
    ranks_of_job = [pid for pid in processes(("launch", folder)) if b"mpirun" not in open(f"/proc/{pid}/cmdline", "rb").read()]
    for _ in range(2):
        for pid in ranks_of_job:
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)  # the second sender is a little late
    for c in clients:
        assert ids_of(c.end(250)) == want
    assert j.end().returncode == 0, j.said()
    has(j.end(), "the job ended with status 0")


@case
def script_of_mpirun_ends_in_order():
    """SIGINT to examples/cluster/mpirun.sh: turns that mpirun's second would cut short end with their texts."""
    script, folder, key, tokens = os.path.join(ROOT, "examples/cluster/mpirun.sh"), path("script"), path("script.key"), 2000
    want = plain(tokens)
    assert job(GRAFT, "serve", "--make-key", key).returncode == 0
    env = {"GRAFT_BIN": BUILD, "GRAFT_JOB_DIR": folder, "GRAFT_KEY_FILE": key}
    j = Job(script, TARGET, DRAFT, **env)
    j.wait_for("roles are up")
    port = re.search(r"orchestrator at port (\d+)", j.said()).group(1)
    env["GRAFT_CONNECT"] = f"127.0.0.1:{port}"
    clients = [Job(GRAFT, *TURN[1:], "--max-tokens", str(tokens), **env) for _ in range(6)]
    wait_for(lambda: job(GRAFT, "session", "list", **env).stdout.count("running") == 6, 30)
    j.p.send_signal(signal.SIGINT)
    for c in clients:
        assert ids_of(c.end(250)) == want
    assert j.end().returncode == 0, j.said()
    assert os.listdir(folder) == []
    done = job(script, TARGET, **env)
    assert done.returncode == 2 and done.stderr.startswith("usage: "), done.stderr


@case
def ends_while_the_orchestrator_is_down():
    """The command ends while the orchestrator waits to be started again: nobody waits for it until --grace is over."""
    begin = time.monotonic()
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--grace", "60", "--", "bash", "-c",
               "for p in $(cat /proc/$PPID/task/*/children); do"
               " [ $p != $$ ] && grep -qz serve /proc/$p/cmdline && kill -9 $p; done; exit 3")
    has(done, "the orchestrator was killed by signal 9", "the job ended with status 3")
    assert time.monotonic() - begin < 30 * SLOW


@case
def a_rank_that_cannot_work_says_so():
    """What keeps a rank from its work before it has met rank 0 ends the job at once, also where a launcher goes on."""
    begin = time.monotonic()
    for args, words in (((*ROLES, "--model", TARGET, "--draft", "/nonexistent"), ("/nonexistent",)),
                        ((*ROLES, "--draft", DRAFT), ("rank 2 on host", "a target needs a model"))):
        done = job(*MPIRUN, "--enable-recovery", "-np", "3", GRAFT, "launch", *args)
        has(done, *words, "cannot run its worker", "the job ended with status")
    assert time.monotonic() - begin < 40 * SLOW


@case
def lines_say_where_they_come_from():
    """Time, host and rank begin the lines of `graft launch`, also of what is wrong before its roles are known."""
    done = job(*MPIRUN, "-np", "2", GRAFT, "launch", "--roles", "serve:1,draft:1", "--model", TARGET)
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3} [^ /]+/[01] graft: error: --roles: there is no target", done.stderr, re.M), done.stderr
    done = job(GRAFT, "launch", *PAIR, "--")
    has(done, "`--' is followed by no command")
    assert done.returncode == 2


@case
def a_folder_of_another_job():
    """Who does not find rank 0 says what it has found in its place."""
    folder = path("other")
    os.mkdir(folder, 0o700)
    env = {"WORLD_SIZE": "3", "LOCAL_RANK": "1", "RANK": "1"}
    done = job(GRAFT, "launch", *PAIR, "--job-dir", folder, "--start-within", "1", MASTER_PORT="1", **env)
    has(done, f"at {folder}: nothing there is of job torchrun--1-r; ending")
    assert done.returncode == 1


@case
def jobs_of_mpiexec_beside_each_other():
    """Two jobs of an mpiexec that gives them no name, started from one shell: what sets them apart is its daemon."""
    ranks_of_one = ("for r in 0 1 2; do PMI_RANK=$r PMI_SIZE=3 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=3 \"$@\" & done; wait")
    jobs = [Job("bash", "-c", ranks_of_one, "x", GRAFT, "launch", *PAIR, "--threads", "1", "--draft-threads", "1", "--", *TURN,
                "--max-tokens", "16", XDG_RUNTIME_DIR=STATE["dir"]) for _ in range(3)]
    for j in jobs:
        done = j.end()
        has(done, "the job ended with status 0")
        assert ids_of(done) == plain(16)


@case
def user_signals_are_handed_on():
    """SIGUSR1 to rank 0 reaches the command, and ends nothing."""
    folder = path("usr1")
    j = Job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--job-dir", folder, "--", "bash", "-c",
            "trap 'echo heard; exit 3' USR1; echo trapped >&2; while :; do sleep 0.05; done")
    j.wait_for("trapped")
    lead = [p for p in processes(("launch", folder)) if b"OMPI_COMM_WORLD_RANK=0\0" in open(f"/proc/{p}/environ", "rb").read()]
    os.kill(lead[0], signal.SIGUSR1)
    done = j.end(30)
    has(done, "heard", "the job ended with status 3")


@case
def gpus_by_place():
    """cuda:local by a driver of the test: the place among the ranks of a host, and what is refused. [D1, D4, D6]"""
    roles = ("--roles", "serve:1,target:2", "--model", TARGET, "--target-device", "cuda:local", "--start-within", "20")
    fake = {"LD_LIBRARY_PATH": os.path.join(BUILD, "tests/cluster"), "CUDA_VISIBLE_DEVICES": "4,5"}
    for n, words in (("2", ("cuda:0", "cuda:1")), ("1", ("rank 1 and rank 2 on host", "both have the GPU at PCI 0000:17:00.0")),
                     (None, ("the driver says error 100",))):
        done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *roles,
                   **fake, **({"FAKE_GPUS": n} if n else {}))
        assert done.returncode != 0
        if n != "2":
            has(done, *words)
        else:  # the workers were told their GPUs, which are not there; the first to say so ends the job
            assert any(w in done.stderr for w in words), done.stderr
    fake["CUDA_VISIBLE_DEVICES"] = "GPU-4d1f,MIG-GPU-x/1/0"  # the driver is asked, whatever stands there [D3]
    done = job(*MPIRUN, "-np", "4", GRAFT, "launch", "--roles", "serve:1,target:3", *roles[2:], FAKE_GPUS="2", **fake)
    has(done, "rank 3 on host", "sees 2 GPUs, and 3 ranks of that host want one", "--share-gpu")


@case
def mpirun_group_of_ranks():
    """A target that is a group of two processes is one rank of the job; its GPUs are side by side."""
    plan = path("groups.yaml")
    with open(plan, "w", encoding="utf-8") as f:
        f.write("targets:\n- {count: 1, tp: 2}\ndrafts:\n- {count: 1}\n")
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", "--plan", plan, *PAIR[2:], "--", *TURN, "--max-tokens", "32")
    assert ids_of(done) == plain(32), done.stderr
    with open(plan, "w", encoding="utf-8") as f:
        f.write("targets:\n- {count: 2, tp: 2, device: 'cuda:local'}\n")
    fake = {"LD_LIBRARY_PATH": os.path.join(BUILD, "tests/cluster")}
    command = (*MPIRUN, "-np", "3", GRAFT, "launch", "--plan", plan, "--model", TARGET, "--start-within", "20")
    done = job(*command, FAKE_GPUS="3", **fake)
    has(done, "rank 2 on host", "sees 3 GPUs, and 2 ranks of that host want 4 (cuda:local), this one 2")
    done = job(*command, FAKE_GPUS="4", **fake)  # which are not there; the first to say so ends the job
    assert any(w in done.stderr for w in ("cuda:0:", "cuda:2:")), done.stderr


@case
def mpirun_of_several_commands():
    """MPMD, and ranks that follow the launcher's numbers, not the order of words. [A8]"""
    one = (GRAFT, "launch", *PAIR)
    done = job(*MPIRUN, "-np", "1", *one, "--", *TURN, "--max-tokens", "16", ":", "-np", "2", *one)
    assert ids_of(done) == plain(16)


@case
def mpirun_killed_orchestrator():
    """kill -9 of the orchestrator: it comes back at its port, the workers join it, and a client is served."""
    folder, key = path("orchestrator"), "ab" * 32
    j = Job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--job-dir", folder, GRAFT_KEY=key)
    j.wait_for("roles are up")
    port = re.search(r"orchestrator at port (\d+)", j.said()).group(1)
    os.kill([p for p in processes(("serve", "graft")) if belongs(p, folder)][0], signal.SIGKILL)
    env = {"GRAFT_KEY": key, "GRAFT_CONNECT": f"127.0.0.1:{port}"}
    j.wait_for("starting it again")
    assert job(GRAFT, "wait", "--draft", DRAFT, "--timeout", "40", **env).returncode == 0, j.said()
    assert ids_of(job(GRAFT, *TURN[1:], "--max-tokens", "16", **env)) == plain(16)
    j.p.terminate()
    j.end()
    nothing_is_left(folder)


@case
def mpirun_is_killed():
    """kill -9 of mpirun: no rank is left. [E5]"""
    folder = path("orphans")
    j = Job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--job-dir", folder)
    j.wait_for("roles are up")
    j.p.kill()
    j.end()
    nothing_is_left(folder)


@slurm
def srun_is_killed():
    """kill -9 of srun while a turn runs: no rank is left. [C8]"""
    folder = path("srun-killed")
    j = Job("srun", "-N3", "-n3", GRAFT, "launch", *PAIR, "--job-dir", folder, "--", *TURN, "--max-tokens", "3000")
    j.wait_for("roles are up")
    j.p.kill()
    j.end()
    nothing_is_left(folder)


class Connections(Background):
    """Connections out of this host, made and ended again and again: each takes a port that nobody has chosen."""

    def __init__(self):
        super().__init__(self.accept, self.connect)
        self.n = 0
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)

    def accept(self):
        self.server.settimeout(0.1)
        while not self.stop.is_set():
            try:
                self.server.accept()[0].close()
            except TimeoutError:
                pass

    def connect(self):
        while not self.stop.is_set():
            with socket.create_connection(self.server.getsockname()):
                self.n += 1

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self.server.close()


def start_ranks(folder, tokens):
    """A job of three ranks by torchrun's variables; rank 0 lists its workers before the turn."""
    args = (GRAFT, "launch", *PAIR, "--threads", "1", "--draft-threads", "1", "--kv-blocks", "64", "--job-dir", folder, "--",
            "sh", "-c", f"{GRAFT} worker list --json && exec \"$@\"", "sh", GRAFT, *TURN[1:], "--max-tokens", str(tokens))
    return [Job(*args, RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
                MASTER_PORT="1", TORCHELASTIC_RUN_ID=os.path.basename(folder), GRAFT_KEY="ab" * 32) for rank in range(3)]


@case
def jobs_beside_each_other():
    """Several jobs at once on one host, under one key, while connections take ports: each has a port of its own, and its own
    workers. [B7]"""
    n = 50 if LONG else 6
    want = plain(64)
    with Connections() as others:
        jobs = [start_ranks(path(f"many{i}"), 8 + i) for i in range(n)]
        done = [[j.end(600) for j in ranks] for ranks in jobs]
    ports, pids = set(), []
    for i, (lead, *rest) in enumerate(done):
        assert lead.returncode == 0, (i, lead.stderr[-2000:])
        assert all(d.returncode == 0 for d in rest), (i, [d.stderr[-1000:] for d in rest])
        listed, answer = (json.loads(x) for x in re.findall(r"^(\{.*\})$", lead.stdout, re.M))
        assert answer["token_ids"] == want[:8 + i], i
        assert sorted(w["role"] for w in listed["workers"]) == ["draft", "target"], (i, listed)
        pids += [w["pid"] for w in listed["workers"]]
        ports.add(re.search(r"orchestrator at port (\d+)", lead.stderr).group(1))
    assert len(ports) == n and len(set(pids)) == 2 * n, (ports, pids)
    assert others.n > 100, others.n


# ---- Slurm ----

@slurm
def srun_pair():
    """srun -n 3 graft launch ... -- graft run, on one node and on three."""
    done = job("srun", "-N1", "-n3", GRAFT, "launch", *PAIR, "--", *TURN, "--max-tokens", "64")
    assert ids_of(done) == plain(64)
    done = job("srun", "-N3", "-n3", GRAFT, "launch", *PAIR, "--job-dir", path("three"), "--", *TURN, "--max-tokens", "64")
    assert ids_of(done) == plain(64)
    assert len({v[1] for v in ranks(done).values()}) == 3, done.stderr


@slurm
def srun_by_name():
    """A key in every rank and no folder: they meet at the step's first node, at a port of the job's own."""
    done = job("srun", "-N3", "-n3", GRAFT, "launch", *PAIR, "--", *TURN, "--max-tokens", "16", GRAFT_KEY="ab" * 32)
    assert ids_of(done) == plain(16)


@slurm
def srun_without_a_key():
    done = job("srun", "-N3", "-n3", GRAFT, "launch", *PAIR)
    assert done.returncode != 0
    has(done, "rank 2 on host n", "share no key", "GRAFT_KEY_FILE", "--job-dir")


@slurm
def srun_missing_rank():
    """Rank 1 never comes: its number is told, and the job ends within its time."""
    begin = time.monotonic()
    wrapper = "[ $SLURM_PROCID = 1 ] && exit 0; exec \"$@\""
    done = job("srun", "-N3", "-n3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--job-dir", path("missing"),
               "--start-within", "3")
    assert done.returncode != 0 and time.monotonic() - begin < 20 * SLOW
    has(done, "rank 1 (draft) has not said hello for 3 s")


@slurm
def srun_worker_cannot_start():
    """A rank whose model is not there ends the job at once, with its rank and host."""
    wrapper = "[ $SLURM_PROCID = 2 ] && set -- \"$@\" --model /nonexistent; exec \"$@\""
    done = job("srun", "-N3", "-n3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--job-dir", path("bad"),
               "--start-within", "15")
    assert done.returncode != 0
    has(done, "/nonexistent")


@slurm
def srun_killed_target():
    killed_worker(("srun", "-N3", "-n3", "--wait=0", "--kill-on-bad-exit=0", GRAFT, "launch", *PAIR), "graft-target",
                  path("srun-target"))


def killed_drafter_rank(start, folder, *more):
    """kill -9 of a drafter's rank, its supervisor and worker with it: the job goes on with the right text, and says so."""
    tokens = 1500
    want = plain(tokens)
    j = Job(*start, GRAFT, "launch", *PAIR, "--job-dir", folder, *more, "--", *TURN, "--max-tokens", str(tokens),
            "--num-speculative-tokens", "4")
    j.wait_for("roles are up")
    wait_for(lambda: workers("graft-draft", folder))
    pid = workers("graft-draft", folder)[0]
    for _ in range(2):  # worker, supervisor, rank
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            pid = int(f.read().rsplit(")", 1)[1].split()[1])
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    done = j.end()
    found = re.search(r"^(\{.*\})$", done.stdout, re.M)
    assert found and json.loads(found.group(1))["token_ids"] == want, (done.stdout[-300:], done.stderr[-2000:])
    has(done, "rank 1 (draft) on host", "the job goes on without it", "the job ended with status 0")
    nothing_is_left(folder)


@slurm
def srun_killed_drafter_rank():
    """[C5]"""
    killed_drafter_rank(("srun", "-N3", "-n3", "--wait=0", "--kill-on-bad-exit=0"), path("srun-rank"))


@case
def mpirun_killed_drafter_rank():
    """[E4]"""
    killed_drafter_rank((*MPIRUN, "--enable-recovery", "-np", "3"), path("mpirun-rank"))


@slurm
def srun_ends_by_scancel():
    """scancel while a turn runs: nothing is left, within KillWait."""
    folder = path("cancel")
    j = Job("srun", "-N3", "-n3", "-J", "to-cancel", GRAFT, "launch", *PAIR, "--job-dir", folder, "--", *TURN, "--max-tokens",
            "3000")
    j.wait_for("roles are up")
    job("scancel", "-n", "to-cancel")
    j.end(60)
    nothing_is_left(folder)


@slurm
def requeued_job():
    """A job that is requeued again and again meets its own old files and starts all the same; the log is appended. [C10]"""
    folder, out, script = path("requeue"), path("requeue.out"), path("requeue.sh")
    n = 20 if LONG else 2
    with open(script, "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\nexec srun -N3 -n3 " + " ".join((GRAFT, "launch", *PAIR, "--job-dir", folder)) +
                f" -- bash -c 'touch {folder}.up${{SLURM_RESTART_COUNT:-0}};"
                f" test \"${{SLURM_RESTART_COUNT:-0}}\" = {n} || exec sleep 1000'\n")
    done = job("sbatch", "--parsable", "--requeue", "-N3", "-n3", "-o", out, "--open-mode=append", script)
    number = done.stdout.strip()
    for i in range(n):
        wait_for(lambda i=i: os.path.exists(f"{folder}.up{i}"), 120)
        for name in os.listdir(folder):  # what a kill at the wrong moment leaves
            shutil.copy(os.path.join(folder, name), os.path.join(folder, name[:-1] + ("1" if name.endswith("0") else "0")))
        job("scontrol", "requeue", number)
        job("scontrol", "update", f"jobid={number}", "StartTime=now")
    wait_for(lambda: os.path.exists(f"{folder}.up{n}"), 120)
    wait_for(lambda: number not in job("squeue", "-h", "-o", "%A").stdout.split(), 60)
    with open(out, encoding="utf-8") as f:
        text = f.read()
    assert text.count("all 3 roles are up") == n + 1, text


@slurm
def srun_sources():
    """Which rank, under Slurm with other launchers in it. [A1, A3, A6, A7, A9, A11]"""
    dry = (GRAFT, "launch", "--roles", "serve:1,draft:1,target:2", "--model", TARGET, "--draft", DRAFT, "--dry-run")
    done = job("salloc", "-N2", "-n4", "-Q", *MPIRUN, "-np", "4", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"ompi"}, done.stderr
    done = job("srun", "-N2", "-n4", "--mpi=none", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"slurm"}, done.stderr
    done = job("srun", "-N2", "-n4", "--mpi=pmi2", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"pmi"}, done.stderr
    done = job("srun", "-n4", "-m", "arbitrary", "-w", "n1,n1,n1,n2", *dry)
    assert [v[1] for _, v in sorted(ranks(done).items())] == ["n1", "n1", "n1", "n2"], done.stderr
    for how in ("block", "cyclic") * (15 if LONG else 1):
        done = job("srun", "-N2", "-n4", "-m", how, *dry)
        assert ranks(done)[0][2] == "serve" and sorted(ranks(done)) == [0, 1, 2, 3], done.stderr
    done = job("salloc", "-Q", "-n3", ":", "-n1", "srun", "--het-group=0,1", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3], done.stderr
    for name in ("train", "interactive"):
        done = job("srun", "-n1", "-J", name, GRAFT, "launch", "--ranks", "none", *dry[2:])
        assert done.returncode != 0
        has(done, "none has started 1")


@slurm
def multi_prog():
    """srun --multi-prog: a line for rank 0 and one for the others; a rank that no line has is told. [A10]"""
    lines, line = path("multi.conf"), " ".join((GRAFT, "launch", *PAIR, "--job-dir", path("multi"), "--start-within", "4"))
    for spans, up in ((("0", "1-2"), True), (("0", "1"), False)):
        with open(lines, "w", encoding="utf-8") as f:
            f.write(f"{spans[0]} {line} -- true\n{spans[1]} {line}\n")
        done = job("srun", "-N1", "-n3", "--kill-on-bad-exit=0", "--multi-prog", lines)
        assert ("all 3 roles are up" in done.stderr) == up and (done.returncode == 0) == up, done.stderr
        assert up or "no record for task id 2" in done.stderr, done.stderr


@slurm
def torchrun_in_srun():
    """What torchrun sets, in one task of srun: its ranks count. [A2]"""
    inner = "for r in 0 1 2 3; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_PORT=1 \"$@\" & done; wait"
    done = job("srun", "-n1", "bash", "-c", inner, "x", GRAFT, "launch", "--roles", "serve:1,draft:1,target:2", "--model", TARGET,
               "--draft", DRAFT, "--dry-run")
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"torchrun"}, done.stderr
    has(done, "SLURM_PROCID=0 is an outer launcher's")


@slurm
def heterogeneous_job():
    """One step over both components of a heterogeneous job."""
    done = job("salloc", "-Q", "-n2", ":", "-n1", "srun", "--het-group=0,1", GRAFT, "launch", *PAIR, "--job-dir", path("het"),
               "--", *TURN, "--max-tokens", "16")
    assert ids_of(done) == plain(16)


@slurm
def examples():
    """The scripts of examples/cluster, with CPUs in place of GPUs."""
    env = {"MODEL": TARGET, "DRAFT": DRAFT, "DEVICE": "cpu", "GRAFT_BIN": BUILD, "JOB_DIR": path("examples")}
    for name, n in (("slurm-2", 3), ("slurm-4", 5), ("slurm-het", 4)):
        out = path(name + ".out")
        done = job("sbatch", "-W", "--gpus-per-node=0", "--cpus-per-task=1", "-o", out,
                   os.path.join(ROOT, "examples/cluster", name + ".sbatch"), "--", *TURN, "--max-tokens", "16", **env)
        with open(out, encoding="utf-8") as f:
            text = f.read()
        assert done.returncode == 0 and f"all {n} roles are up" in text, (done.stderr, text)
    done = job(os.path.join(ROOT, "examples/cluster/mpirun.sh"), TARGET, DRAFT, "--", *TURN, "--max-tokens", "16", **env)
    assert ids_of(done) == plain(16)


@slurm
def warned_by_slurm():
    """The signal that a script of examples/cluster asks for ends its job in order before the time limit does."""
    script = os.path.join(ROOT, "examples/cluster/slurm-2.sbatch")
    with open(script, encoding="utf-8") as f:
        warning = re.search(r"^#SBATCH --signal=(B:)?TERM@\d+$", f.read(), re.M)
    out, folder = path("warned.out"), path("warned")
    done = job("sbatch", "--parsable", "--gpus-per-node=0", "--cpus-per-task=1", "-o", out, script, MODEL=TARGET, DRAFT=DRAFT,
               DEVICE="cpu", GRAFT_BIN=BUILD, JOB_DIR=folder)
    number = done.stdout.strip()
    wait_for(lambda: os.path.exists(out) and "roles are up" in open(out, encoding="utf-8").read(), 60)
    # As Slurm itself sends it: to the steps, or with B: to the batch script alone.
    job("scancel", *(("--batch",) if warning.group(1) else ()), "--signal=TERM", number)
    wait_for(lambda: number not in job("squeue", "-h", "-o", "%A").stdout.split(), 60)
    with open(out, encoding="utf-8") as f:
        text = f.read()
    assert "the job ended with status 0" in text, text
    assert os.listdir(folder) == [], text


@slurm
def node_lists():
    """Lists of nodes against `scontrol show hostnames'. [B1]"""
    rng = random.Random(7)

    def piece():
        width = rng.choice((0, 2, 3))
        low = rng.randrange(0, 90)
        spans = []
        for _ in range(rng.randrange(1, 4)):
            high = low + rng.randrange(0, 4)
            spans.append(f"{low:0{width}}" + (f"-{high:0{width}}" if high > low else ""))
            low = high + rng.randrange(1, 5)
        head = rng.choice(("n", "jean-zay-ia", "gpu", "a.b", "r1c"))
        return rng.choice((head + str(low), f"{head}[{','.join(spans)}]"))
    lists = [",".join(piece() for _ in range(rng.randrange(1, 4))) for _ in range(200 if LONG else 60)]
    ours = subprocess.run([os.path.join(BUILD, "tests/cluster/node_names")], input="\n".join(lists) + "\n", capture_output=True,
                          text=True, check=True).stdout.splitlines()
    for text, own in zip(lists, ours, strict=True):
        theirs = job("scontrol", "show", "hostnames", text).stdout.split()
        assert own.split() == theirs, (text, own, theirs)


# ---- a sweep of the benchmark, whose points are such jobs ----

SWEEP = (os.path.join(BUILD, "graft-bench"), "sweep", "--hosts", "1,2", "--n-target", "1,2", "--sessions", "2", "--max-tokens", "16",
         "--repeat", "1", "--plots", "none", "-o", "csv")


def check_sweep(done, folder, hosts):
    """All fleets on one host and on two, each with ranks on the hosts that it was to have."""
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 2 * 2 * 3 and all(r["runs"] == "1" and ("all decoded" in r["note"] or r["note"] == "") for r in rows), rows
    assert {(r["hosts"], r["devices"], r["mode"]) for r in rows} == {
        (h, d, m) for h in "12" for d in "23" for m in ("split", "co-located", "plain")}
    assert all((r["transport"] == "loop") == (r["mode"] == "co-located") for r in rows), rows
    logs = os.path.join(folder, "logs")
    for name in os.listdir(logs):
        with open(os.path.join(logs, name, "clients.log"), encoding="utf-8") as f:
            said = ranks(subprocess.CompletedProcess([], 0, "", f.read()))
        n_rank = 1 + sum(int(n) for n in re.findall(r"-[td](\d+)", name))
        assert set(said) == set(range(n_rank)), (name, said)
        if hosts is not None:
            assert {h for _, h, _, _ in said.values()} == set(hosts[:int(name.split("-h")[1][0])]), (name, said)
    again = job(*done.args[:-1], "json", timeout=20)
    assert again.returncode == 0 and "# split" not in again.stderr, again.stderr  # all of it is there


@case
def mpirun_sweep():
    folder = path("sweep-mpirun")
    check_sweep(job(*SWEEP[:2], "--save", folder, "--launcher", "mpirun", "--host-names", "localhost,127.0.0.1", "--launcher-options",
                    " ".join(MPIRUN[1:]), *SWEEP[2:], timeout=180), folder, None)


@slurm
def srun_sweep():
    folder = path("sweep-srun")
    check_sweep(job("salloc", "-w", "n1,n2", "-n", "8", *SWEEP[:2], "--save", folder, *SWEEP[2:], timeout=180), folder, ("n1", "n2"))


# ---- the launcher's own channel ----

def channels():
    """Those of this build."""
    said = subprocess.run([GRAFT, "--version"], capture_output=True, text=True, check=True).stdout
    return [by for by in ("pmix", "mpi") if re.search(rf"over:.*\b{by}\b", said)]


def channel(fn):
    if channels():
        CASES.append(fn)
    return fn


@channel
def channel_pair():
    """The key that rank 0 draws comes with its address: no folder is made, and no address is named."""
    for by in channels():
        done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--rendezvous", by, "--job-dir", path("unused"), "--", *TURN,
                   "--max-tokens", "64")
        assert ids_of(done) == plain(64)
        assert not os.path.exists(path("unused"))


@channel
def channel_killed_rank():
    """kill -9 of a drafter's rank: the library that has told it of rank 0 ends and holds nobody. [E4]"""
    for by in channels():
        killed_drafter_rank((*MPIRUN, "--enable-recovery", "-np", "3"), path("channel-rank"), "--rendezvous", by)


@channel
def channel_missing_rank():
    """A rank that never comes: the others end within --start-within, also out of an MPI_Init that waits for it."""
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 2 ] && exec sleep 600; exec \"$@\""
    for by in channels():
        done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--rendezvous", by, "--start-within",
                   "2" if SLOW == 1 else "8")
        assert done.returncode == 1, (done.returncode, done.stderr)
        has(done, "rank 2 (target) has not said hello", "the job ended with status 1")
        if by == "mpi":
            has(done, "MPI_Init has not come back (")


FAKE_SSH = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done # ssh's own options\nhost=$1; shift\nexec unshare -u sh -c \"hostname $host; $*\"\n"


def on_hosts(fn):
    return channel(fn) if shutil.which("unshare") and os.geteuid() == 0 else fn


@on_hosts
def channel_over_hosts():
    """Three daemons of mpirun that are three hosts by name: neither a key nor a folder is needed."""
    with open(path("ssh"), "w", encoding="utf-8") as f:
        f.write(FAKE_SSH)
    os.chmod(path("ssh"), 0o755)
    hosts = ("--host", "graft-a:1,graft-b:1,graft-c:1", "--mca", "plm_rsh_agent", path("ssh"), "--mca", "oob_tcp_if_include", "lo",
             "--mca", "btl_tcp_if_include", "lo")
    launch = (*MPIRUN, *hosts, "-np", "3", GRAFT, "launch", *PAIR)
    done = job(*launch)
    assert done.returncode != 0
    has(done, "the ranks are on several hosts and share no key")
    for by in channels():
        done = job(*launch, "--rendezvous", by, "--", *TURN, "--max-tokens", "32")
        assert ids_of(done) == plain(32)
        assert [v[1] for _, v in sorted(ranks(done).items())] == ["graft-a", "graft-b", "graft-c"], done.stderr


@channel
def channel_without_a_world():
    """Outside a launcher, in another world than the rank's, and without the library: a line says what to do. [A3, E6]"""
    folder = path("no-library")
    os.makedirs(folder, exist_ok=True)
    name = {"pmix": "libpmix.so.2", "mpi": "libmpi.so.40"}
    env = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}
    for by in channels():
        launch = (GRAFT, "launch", *PAIR, "--rendezvous", by)
        done = job(*launch, **env)
        assert done.returncode == 1
        has(done, "rank 1 on host", "PMIX_NAMESPACE is not set")
        done = job(*MPIRUN, "-np", "1", *launch, **env)
        assert done.returncode == 1
        has(done, "says rank 0 of 1 here, and `graft launch' was told rank 1 of 3")
        with open(os.path.join(folder, name[by]), "w", encoding="utf-8"):
            pass
        done = job(*MPIRUN, "-np", "3", "env", f"LD_LIBRARY_PATH={folder}", *launch)
        os.unlink(os.path.join(folder, name[by]))
        assert done.returncode == 1
        has(done, f"{name[by]}: file too short", f"graft-{by} has ended with status 127 (the last call: the start of")


@slurm
def srun_over_pmix():
    """Over the PMIx of Slurm and without a key; srun without PMIx says so at once. [A3, E6]"""
    known = job("srun", "--mpi=list")
    if "pmix" not in channels() or not re.search(r"^\s*pmix\s*$", known.stdout + known.stderr, re.M):
        print("# not run: Slurm knows no PMIx here")
        return
    start = ("srun", "-N1", "-n3", "--overcommit")  # several slurmds of one machine are in each other's way with PMIx
    more = ("--rendezvous", "pmix")
    done = job(*start, "--mpi=pmix", GRAFT, "launch", *PAIR, *more, "--", *TURN, "--max-tokens", "32")
    assert ids_of(done) == plain(32)
    done = job(*start, "--mpi=none", GRAFT, "launch", *PAIR, *more)
    assert done.returncode == 1
    has(done, "PMIX_NAMESPACE is not set")


# ---- the machine ----

def in_own_hosts():
    """Again, in a mount namespace whose /etc/hosts knows the nodes: nothing of this machine is changed."""
    hosts = tempfile.NamedTemporaryFile("w", suffix=".hosts", delete=False)
    with hosts, open("/etc/hosts", encoding="utf-8") as f:
        hosts.write(f.read() + "".join(f"127.0.0.1 n{i}\n" for i in range(1, 5)))
    os.environ["GRAFT_TEST_HOSTS"] = hosts.name
    if shutil.which("unshare"):
        os.execvp("unshare", ["unshare", "-m", "--propagation", "private", "bash", "-c",
                              'mount --bind "$GRAFT_TEST_HOSTS" /etc/hosts && exec "$@"', "x", sys.executable, *sys.argv])


def with_slurm(folder):
    up = subprocess.run([SLURM, "up", "4", folder], capture_output=True, text=True, timeout=120,
                        env=dict(ENV, SLURM_LOCAL_PORT=str(random.randrange(16000, 18000, 10))))
    assert up.returncode == 0, up.stderr
    STATE["conf"] = up.stdout.strip().splitlines()[-1]


def run():
    lacking = [p for p in ("mpirun",) if not shutil.which(p)]
    if lacking:
        print(f"1..0 # SKIP {lacking[0]} is not installed (openmpi-bin)")
        return 0
    slurm_is_here = any(fn.__name__ == "srun_pair" for fn in CASES)
    if slurm_is_here and "GRAFT_TEST_HOSTS" not in os.environ:
        in_own_hosts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit's: the nodes do not stay
    with tempfile.TemporaryDirectory(prefix="graft-cluster-") as folder:
        STATE["dir"] = folder
        try:
            if slurm_is_here:
                with_slurm(os.path.join(folder, "slurm"))
            status = main(0 if slurm_is_here else 1)
        finally:
            if "conf" in STATE:
                subprocess.run([SLURM, "down", os.path.join(folder, "slurm")], check=False, capture_output=True)
    if not slurm_is_here:
        print(f"ok {len(CASES) + 1} - slurm # SKIP slurm-wlm and munge are not installed, or this is not root")
    return status


sys.exit(run())
