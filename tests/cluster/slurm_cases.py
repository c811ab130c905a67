"""Cases under a Slurm of eight nodes."""
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import time

from cluster import (
    LONG, PAIR, TURN, MPIRUN, N_MET, SRUN, STATE, plain, plain_text, path, job, ids_of, has, has_ended, ranks, Job,
    Turns, killed_worker, slurm, ended_with_all_it_had, killed_drafter_rank, lines_are_whole_under, nothing_is_left,
    streams_in_time, went_on_without_drafter, workers
)
from harness import BUILD, DRAFT, GRAFT, SLOW, TARGET, case, wait_for


@slurm
def srun_pair():
    """srun -n 3 graft launch ... -- graft run, on one node and on three."""
    streams_in_time(*SRUN, "-N1", "-n3")
    done = job(*SRUN, "-N3", "-n3", GRAFT, "launch", *PAIR, "--job-dir", path("three"), "--", *TURN, "--max-tokens", "64")
    assert ids_of(done) == plain(64)
    assert len({v[1] for v in ranks(done).values()}) == 3, done.stderr


@slurm
def srun_first_lines():
    """What a rank says first is whose word it takes for what it is."""
    done = job(*SRUN, "-l", "-N3", "-n3", GRAFT, "launch", *PAIR, "--job-dir", path("lines"), "--", "true")
    for rank in range(3):  # what a rank says first is whose word it takes for what it is
        first = re.search(rf"^{rank}: (.*)$", done.stderr, re.M).group(1)
        assert re.match(rf"graft launch: rank {rank} of 3 on host n\d: \w+ \(ranks by slurm: SLURM_PROCID={rank}, ", first), first


@slurm
def srun_lines_are_whole():
    """[E7]"""
    lines_are_whole_under((*SRUN, "-l", "-N3", "-n8"), r"\d: ", "--job-dir", path("whole"))


@slurm
def srun_by_name():
    """A key in every rank and no folder: they meet at the step's first node, at a port of the job's own."""
    done = job(*SRUN, "-N3", "-n3", GRAFT, "launch", *PAIR, "--", *TURN, "--max-tokens", "16", GRAFT_KEY="ab" * 32)
    assert ids_of(done) == plain(16)


@slurm
def srun_rank_0_elsewhere():
    """The step's first node is not rank 0's: nobody would find it there, and it says so with both. [A7]"""
    start = ("srun", "--kill-on-bad-exit=1", "-n3", "-m", "arbitrary", "-w", "n2,n1,n1")
    done = job(*start, GRAFT, "launch", *PAIR, "--start-within", "60", GRAFT_KEY="ab" * 32)
    assert done.returncode != 0, done.stderr
    has(done, "rank 0 is on host n2, and the others look for it on the step's first node, n1", "--rendezvous HOST:PORT")


@slurm
def srun_without_a_key():
    done = job(*SRUN, "-N3", "-n3", GRAFT, "launch", *PAIR)
    assert done.returncode != 0
    has(done, "rank 2 on host n", "share no key", "GRAFT_KEY_FILE", "--job-dir")


@slurm
def srun_missing_rank():
    """Rank 1 never comes: its number is told, and the job ends within its time."""
    begin = time.monotonic()
    wrapper = "[ $SLURM_PROCID = 1 ] && exit 0; exec \"$@\""
    done = job(*SRUN, "-N3", "-n3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--job-dir", path("missing"),
               "--start-within", "3")
    assert done.returncode != 0 and time.monotonic() - begin < 20 * SLOW
    has(done, "rank 1 (draft) on host n", " has not said hello for 3 s")


@slurm
def srun_worker_cannot_start():
    """A rank whose model is not there ends the job at once, with its rank and host."""
    wrapper = "[ $SLURM_PROCID = 2 ] && set -- \"$@\" --model /nonexistent; exec \"$@\""
    done = job(*SRUN, "-N3", "-n3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--job-dir", path("bad"),
               "--start-within", "15")
    assert done.returncode != 0
    has(done, "/nonexistent")


@slurm
def srun_killed_target():
    killed_worker((*SRUN, "-N3", "-n3", GRAFT, "launch", *PAIR), "graft-target",
                  path("srun-target"))


@slurm
def srun_killed_drafter_rank():
    """Where Slurm is set to end a step a second after its first rank: the recipe's --wait=0 beats it. [C5]"""
    conf = path("wait.conf")
    shutil.copy(STATE["conf"], conf)
    with open(conf, "a", encoding="utf-8") as f:
        f.write("WaitTime=1\n")
    start = ("env", f"SLURM_CONF={conf}", "srun", "-N3", "-n3")
    done = job(*start, "sh", "-c", "[ $SLURM_PROCID = 0 ] || sleep 20")
    assert done.returncode != 0 and "First task exited 1s ago" in done.stderr, done  # it is set
    killed_drafter_rank((*start, *SRUN[1:3]), path("srun-rank"))


@case
def mpirun_killed_drafter_rank():
    """[E4]"""
    killed_drafter_rank((*MPIRUN, "--enable-recovery", "-np", "3"), path("mpirun-rank"))


@slurm
def a_node_that_fails():
    """A node is down, and its rank, a drafter's, with it: the others of a step with --no-kill go on. [C11]"""
    folder, want = path("node"), plain(N_MET)
    turns = Turns(folder)
    j = Job(*SRUN, "-N3", "-n3", GRAFT, "launch", *PAIR, "--job-dir", folder, "--", *turns.command)
    j.wait_for("roles are up")
    node = ranks(j)[1][1]
    try:
        job("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        went_on_without_drafter(j, turns, want, folder)
    finally:
        job("scontrol", "update", f"nodename={node}", "state=resume")
    assert f"Node failure on {node}" in j.said(), j.said()


@slurm
def srun_ends_by_scancel():
    """scancel while a turn runs: nothing is left, within KillWait."""
    ended_with_all_it_had(lambda _: job("scancel", "-n", "to-cancel"), (*SRUN, "-N3", "-n3", "-J", "to-cancel"), path("cancel"))


@slurm
def srun_warned_in_a_turn():
    """SIGUSR1 to every rank, as --signal=USR1 sends it before the end of a job's time: the turn ends as it would. [C9]"""
    folder, want = path("usr1-slurm"), plain_text(3000).rstrip("\n")
    j = Job(*SRUN, "-N3", "-n3", "-J", "to-warn", GRAFT, "launch", *PAIR, "--job-dir", folder, "--",
            *(w for w in TURN if w != "--json"), "--max-tokens", "3000")
    wait_for(lambda: j.printed() or j.p.poll() is not None, 60)
    target, = workers("graft-target", folder)
    os.kill(target, signal.SIGSTOP)  # so that the turn is not over before the signal is sent
    try:
        assert job("scancel", "--signal=USR1", "-n", "to-warn").returncode == 0
        assert j.p.poll() is None and len(j.printed()) < len(want), "the turn was over"
    finally:
        os.kill(target, signal.SIGCONT)
    done = j.end()
    assert done.stdout.rstrip("\n") == want, (done.stdout[-300:], done.stderr[-2000:])
    has(done, "the job ended with status 0")
    nothing_is_left(folder)


def said(folder):
    """What the job's latest life has generated."""
    with open(f"{folder}.said", encoding="utf-8") as f:
        return json.load(f)["token_ids"]


@slurm
def requeued_job():
    """A job that is requeued again and again meets its own old files and starts all the same; the log is appended. [C10]"""
    folder, out, script, life = path("requeue"), path("requeue.out"), path("requeue.sh"), path("requeue-life.sh")
    n = 20 if LONG else 2
    with open(life, "w", encoding="utf-8") as f:
        f.write(f"{shlex.join((GRAFT, *TURN[1:]))} --max-tokens 32 > {folder}.said\n"
                f"touch {folder}.up${{SLURM_RESTART_COUNT:-0}}\n"
                f"test \"${{SLURM_RESTART_COUNT:-0}}\" = {n} || exec sleep 1000\n")
    with open(script, "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\nexec srun -N3 -n3 " + shlex.join((GRAFT, "launch", *PAIR, "--job-dir", folder, "--", "bash", life))
                + "\n")
    done = job("sbatch", "--parsable", "--requeue", "-N3", "-n3", "-o", out, "--open-mode=append", script)
    number = done.stdout.strip()
    for i in range(n):
        wait_for(lambda i=i: os.path.exists(f"{folder}.up{i}"), 120)
        assert said(folder) == plain(32), i
        for name in os.listdir(folder):  # what a kill at the wrong moment leaves
            shutil.copy(os.path.join(folder, name), os.path.join(folder, name[:-1] + ("1" if name.endswith("0") else "0")))
        job("scontrol", "requeue", number)
        job("scontrol", "update", f"jobid={number}", "StartTime=now")
    wait_for(lambda: os.path.exists(f"{folder}.up{n}"), 120)
    wait_for(lambda: has_ended(number), 60)
    with open(out, encoding="utf-8") as f:
        text = f.read()
    assert text.count("all 3 roles are up") == n + 1, text
    assert said(folder) == plain(32)


@slurm
def srun_sources():
    """Which rank, under Slurm with other launchers in it. [A1, A3, A6, A7, A9, A11]"""
    dry = (GRAFT, "launch", "--roles", "serve:1,draft:1,target:2", "--model", TARGET, "--draft", DRAFT, "--dry-run")
    done = job("salloc", "-N2", "-n4", "-Q", *MPIRUN, "-np", "4", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"ompi"}, done.stderr
    done = job(*SRUN, "-N2", "-n4", "--mpi=none", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"slurm"}, done.stderr
    done = job(*SRUN, "-N2", "-n4", "--mpi=pmi2", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"pmi"}, done.stderr
    done = job(*SRUN, "-n4", "-m", "arbitrary", "-w", "n1,n1,n1,n2", *dry)
    assert [v[1] for _, v in sorted(ranks(done).items())] == ["n1", "n1", "n1", "n2"], done.stderr
    for how in ("block", "cyclic") * (15 if LONG else 1):
        done = job(*SRUN, "-N2", "-n4", "-m", how, *dry)
        assert ranks(done)[0][2] == "serve" and sorted(ranks(done)) == [0, 1, 2, 3], done.stderr
    done = job("salloc", "-Q", "-n3", ":", "-n1", *SRUN, "--het-group=0,1", *dry)
    assert sorted(ranks(done)) == [0, 1, 2, 3], done.stderr
    done = job("salloc", "-Q", "-n1", ":", "-n4", "srun", "--het-group=1", *dry)  # one component alone
    assert sorted(ranks(done)) == [0, 1, 2, 3], done.stderr
    for name in ("train", "interactive"):
        done = job(*SRUN, "-n1", "-J", name, GRAFT, "launch", "--ranks", "none", *dry[2:])
        assert done.returncode != 0
        has(done, "no launcher has started this process")


@slurm
def a_sweep_in_a_step():
    """A sweep that srun has started says at once how it is to be started: a launcher inside a step finds no room. [C1]"""
    sweep = (os.path.join(BUILD, "graft-bench"), "sweep", "--hosts", "1", "--n-target", "1", "--save", path("in-a-step"))
    for more in ((), ("--launcher", "mpirun", "--host-names", "localhost")):
        done = job("srun", "-n1", *sweep, *more, timeout=30)
        assert done.returncode == 2, (done.returncode, done.stderr)
        has(done, "in a step of Slurm itself (SLURM_STEP_ID=0)", "start it without srun")


@slurm
def multi_prog():
    """srun --multi-prog: a line for rank 0 and one for the others; a rank that no line has is told. [A10]"""
    lines, line = path("multi.conf"), " ".join((GRAFT, "launch", *PAIR, "--job-dir", path("multi"), "--start-within", "4"))
    for spans, up in ((("0", "1-2"), True), (("0", "1"), False)):
        with open(lines, "w", encoding="utf-8") as f:
            f.write(f"{spans[0]} {line} -- true\n{spans[1]} {line}\n")
        done = job(*SRUN, "-N1", "-n3", "--multi-prog", lines)
        assert ("all 3 roles are up" in done.stderr) == up and (done.returncode == 0) == up, done.stderr
        assert up or "no record for task id 2" in done.stderr, done.stderr
    with open(path("offset"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho \"offset $1 of rank $SLURM_PROCID\" >&2\nshift\nexec \"$@\"\n")
    os.chmod(path("offset"), 0o755)
    with open(lines, "w", encoding="utf-8") as f:  # %o counts within a line of the file
        f.write(f"0 {line} --dry-run\n1-2 {path('offset')} %o {line} --dry-run\n")
    done = job(*SRUN, "-N1", "-n3", "--multi-prog", lines)
    has(done, "offset 0 of rank 1", "offset 1 of rank 2")
    assert {rank: v[2] for rank, v in ranks(done).items()} == {0: "serve", 1: "draft", 2: "target"}, done.stderr


@slurm
def torchrun_in_srun():
    """What torchrun sets, in one task of srun: its ranks count. [A2]"""
    inner = "for r in 0 1 2 3; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_PORT=1 \"$@\" & done; wait"
    done = job(*SRUN, "-n1", "bash", "-c", inner, "x", GRAFT, "launch", "--roles", "serve:1,draft:1,target:2", "--model", TARGET,
               "--draft", DRAFT, "--dry-run")
    assert sorted(ranks(done)) == [0, 1, 2, 3] and {v[3] for v in ranks(done).values()} == {"torchrun"}, done.stderr
    has(done, "SLURM_PROCID=0 is an outer launcher's")


@slurm
def heterogeneous_job():
    """One step over both components of a heterogeneous job."""
    done = job("salloc", "-Q", "-n2", ":", "-n1", *SRUN, "--het-group=0,1", GRAFT, "launch", *PAIR, "--job-dir", path("het"),
               "--", *TURN, "--max-tokens", "16")
    assert ids_of(done) == plain(16)


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
