"""Cases under mpirun."""
import json
import os
import re
import shutil
import signal
import socket
import time

from cluster import (
    LONG, ROLES, PAIR, TURN, MPIRUN, STATE, plain, path, job, ids_of, has, ranks, processes, Job, SRUN,
    ended_with_all_it_had, killed_worker, lines_are_whole_under, nothing_is_left, slurm, streams_in_time, workers
)
from harness import BUILD, DRAFT, GRAFT, HEAD, ROOT, SLOW, TARGET, Background, case, wait_for
from served import free_port


@case
def mpirun_pair():
    """The demo pair with golden tokens, over a key that rank 0 draws."""
    done = streams_in_time(*MPIRUN, "-np", "3")
    assert {r: v[2:] for r, v in ranks(done).items()} == {0: ("serve", "ompi"), 1: ("draft", "ompi"), 2: ("target", "ompi")}


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
def mpirun_missing_rank():
    """Rank 1 never comes: its number and role are told, and the job ends within its time."""
    begin, within = time.monotonic(), "3" if SLOW == 1 else "9"
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 1 ] && exec sleep 600; exec \"$@\""
    done = job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--start-within", within)
    assert done.returncode == 1 and time.monotonic() - begin < 20 * SLOW, (done.returncode, done.stderr)
    has(done, f"rank 1 (draft) has not said hello for {within} s")


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
        words, told = done.stdout.replace(ROOT + "/", "").strip().split("  # ")
        assert told.startswith(f"rank {rank} on host "), told
        return words
    more = ("--threads", "2", "--draft-threads", "1", "--kv-blocks", "100", "--sessions", "3", "--specpv", "lossy", "--log-level",
            "info", "--", "echo", "it's")
    want = [
        "graft serve --control ANY:0 --specpv lossy --log-level info; echo 'it'\\''s'",
        "graft-draft --join RANK0:PORT --sessions 3 --model models/demo/draft --threads 1 --log-level info --supervise",
        "graft-target --join RANK0:PORT --sessions 3 --model models/demo/target --threads 2 --kv-blocks 100 --log-level info"
        " --specpv on --listen OWN:0 --supervise"]
    for rank in range(3):
        assert line(rank, *PAIR, *more) == want[rank], (line(rank, *PAIR, *more), want[rank])
    assert line(2, *ROLES, "--model", TARGET, "--draft", HEAD, "--target-device", "cuda:local") == (
        "graft-target --join RANK0:PORT --sessions 8 --model models/demo/target --device cuda:local --head models/demo/eagle3"
        " --listen OWN:0 --supervise")


@case
def mpirun_with_an_endpoint():
    """--http gives the orchestrator of the job an endpoint for its model; --control says where it listens."""
    port, control = free_port(), f"127.0.0.1:{free_port()}"
    ask = f"import json, os, urllib.request as u; print(os.environ['GRAFT_CONNECT'], json.load(u.urlopen('http://127.0.0.1:{port}/v1/models'))['data'][0]['id'])"
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--http", f"127.0.0.1:{port}", "--", "python3", "-c", ask,
               GRAFT_CONTROL=control)
    assert done.returncode == 0 and done.stdout.split() == [control, os.path.basename(TARGET)], (done.stdout, done.stderr)


@case
def mpirun_command_status():
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--", "sh", "-c", "test -n \"$GRAFT_KEY\" && exit 7")
    assert done.returncode == 7, (done.returncode, done.stderr)
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--", "bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 128 + signal.SIGPIPE, (done.returncode, done.stderr)


@case
def groups_that_cannot_be():
    """A size of a target's group that is none, and one above its KV heads: one line that begins with host and rank."""
    for n, words in (("3", "--tensor-parallel-size 3: must be 1, 2, 4 or 8"),
                     ("4", f"--tensor-parallel-size 4: {TARGET} has 2 KV heads (num_key_value_heads)")):
        done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "-tp", n)
        assert done.returncode != 0
        assert re.search(rf"^\S+ [^ /]+/2 target: error: {re.escape(words)}", done.stderr, re.M), done.stderr
        assert done.stderr.count("--tensor-parallel-size") == 1, done.stderr


@case
def no_key_on_a_command_line():
    """A key that rank 0 has drawn, as its command has it: no process of the machine has it among its words."""
    look = ("finds() { grep -qsF -f <(printf %s \"$1\") /proc/[0-9]*/cmdline; }; test ${#GRAFT_KEY} = 64 || exit 3;"
            "finds --draft-threads || exit 4; ! finds \"$GRAFT_KEY\"")
    done = job(*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR, "--draft-threads", "1", "--", "bash", "-c", look)
    assert done.returncode == 0, (done.returncode, done.stderr)


@case
def mpirun_ranks_and_roles():
    """More ranks than roles, the reverse, and a job of two orchestrators: one line each with rank and host. Each rank says
    so, and mpirun may end the others after the first that has."""
    for n, word in (("4", "there are more ranks than roles"), ("2", "there are more roles than ranks")):
        done = job(*MPIRUN, "-np", n, GRAFT, "launch", *PAIR)
        assert done.returncode != 0
        assert re.search(rf"rank \d on host \S+: {word}", done.stderr), done.stderr
    done = job(*MPIRUN, "-np", "2", GRAFT, "launch", "--roles", "serve:2,target:1", "--model", TARGET)
    assert done.returncode != 0
    has(done, "rank 1 is an orchestrator")


@case
def mpirun_killed_target():
    killed_worker((*MPIRUN, "-np", "3", GRAFT, "launch", *PAIR), "graft-target", path("kill-target"))


@case
def mpirun_that_starts_nothing():
    """What mpirun refuses to start never says that it is up. [E3]"""
    done = job("mpirun", "--allow-run-as-root", "-np", "99", GRAFT, "launch", *PAIR)
    assert "roles are up" not in done.stderr and "graft launch: rank" not in done.stderr, done.stderr


@case
def lines_are_whole():
    """[E7]"""
    lines_are_whole_under((*MPIRUN, "--tag-output", "-np", "8"), r"\[1,\d\]<stderr>:")
    lines_are_whole_under((*MPIRUN, "-np", "8"), "")


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
def two_ranks_0_in_one_instant():
    """Neither finds the other before it leaves word of itself: both end soon all the same, and say why. [A2, F2]"""
    begin = time.monotonic()
    both = 'for i in 1 2; do "$@" & done; wait -n && exit 0; wait -n && exit 0; exit 1'
    env = {"WORLD_SIZE": "3", "LOCAL_RANK": "0", "RANK": "0"}
    by_address = {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "1", "GRAFT_KEY": "ab" * 32}
    for i in range(10):
        for where, more in ((("--job-dir", path(f"instant{i}")), {}), ((), by_address)):
            done = job("bash", "-c", both, "x", GRAFT, "launch", *PAIR, *where, "--start-within", "60", MASTER_PORT=str(free_port()),
                       **env, **more)
            assert done.returncode == 1, (done.returncode, done.stderr)
            has(done, "rank 0 comes twice")
    assert time.monotonic() - begin < 40 * SLOW


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
    wait_for(lambda: os.listdir(folder) == [])  # a launcher may kill rank 0 any moment
    assert any(c.p.poll() is None for c in clients)
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


def with_cpus_in_place_of_gpus(folder):
    """A `graft' whose workers get the options of the one that it is, but for the GPU."""
    os.makedirs(folder, exist_ok=True)
    shutil.copy(GRAFT, folder)
    with open(os.path.join(folder, "graft-target"), "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\nwords=()\nfor w; do\ncase $w in cuda:*) w=cpu;; esac\nwords+=(\"$w\")\ndone\n"
                f'exec {os.path.join(BUILD, "graft-target")} "${{words[@]}}"\n')
    os.chmod(os.path.join(folder, "graft-target"), 0o755)
    return os.path.join(folder, "graft")


def visible_devices_stay_as_they_were(roles, env):
    """Rank 1 has numbers that a launcher has counted anew; rank 2 has none, whatever Slurm says of the machine's. [D4]"""
    folder, stays = path("visible"), path("visible.stays")
    with open(stays, "w", encoding="utf-8"):
        pass
    wrapper = "[ $OMPI_COMM_WORLD_RANK = 2 ] && unset CUDA_VISIBLE_DEVICES; exec \"$@\""
    j = Job(*MPIRUN, "-np", "3", "bash", "-c", wrapper, "x", with_cpus_in_place_of_gpus(path("visible-bin")), "launch", *roles,
            "--job-dir", folder, "--", "sh", "-c", f"while [ -e {stays} ]; do sleep 0.05; done",
            **env, SLURM_JOB_GPUS="4-7", SLURM_STEP_GPUS="4-7")
    j.wait_for("roles are up")
    seen = {}
    for pid in workers("graft-target", folder):
        with open(f"/proc/{pid}/environ", encoding="utf-8") as f:
            has_them = dict(word.split("=", 1) for word in f.read().split("\0") if "=" in word)
        seen[has_them["OMPI_COMM_WORLD_RANK"]] = (has_them.get("CUDA_VISIBLE_DEVICES"), has_them["SLURM_STEP_GPUS"])
    os.unlink(stays)
    assert j.end().returncode == 0, j.said()
    assert seen == {"1": ("4,5", "4-7"), "2": (None, "4-7")}, seen


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
    visible_devices_stay_as_they_were(roles, dict(fake, FAKE_GPUS="2"))
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
def mpirun_is_killed():
    """kill -9 of mpirun while a turn runs: no process is left. [E5]"""
    ended_with_all_it_had(lambda j: j.p.kill(), (*MPIRUN, "-np", "3"), path("orphans"))


@slurm
def srun_is_killed():
    """kill -9 of srun while a turn runs: no process is left. [C8]"""
    ended_with_all_it_had(lambda j: j.p.kill(), (*SRUN, "-N3", "-n3"), path("srun-killed"))


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
