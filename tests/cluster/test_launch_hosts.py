#!/usr/bin/env python3
"""`graft launch` over several hosts, each a network namespace, with ranks by the variables of torchrun: over a good network,
over one that is slow and loses packets, and within a range of ports. And how a job ends, on this host alone.

usage: test_launch_hosts.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts
import slow_net
from harness import CASES, DRAFT, GRAFT, HEAD, SLOW, TARGET, case, children, generate, main, wait_for
from served import free_port

PROMPT = "def fibonacci(n):"
TURN = (GRAFT, "run", "--json", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos", "--num-speculative-tokens", "4",
        "--max-tokens", "64")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("GRAFT_", "SLURM", "OMPI_", "PMI"))}
WANT = {}


def plain(tokens=64):
    if tokens not in WANT:
        WANT[tokens] = generate("--method", "none", "--ignore-eos", "--max-tokens", str(tokens))["token_ids"]
    return WANT[tokens]


def case_if(lacking):
    def add(fn):
        if lacking is None:
            CASES.append(fn)
        return fn
    return add


LACKS, LACKS_SLOW = hosts.missing(), slow_net.missing()


def env_of(rank, n, master, port=29500):
    """Of a rank that is alone on its host."""
    return dict(ENV, RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR=master,
                MASTER_PORT=str(port), GRAFT_KEY="ab" * 32)


class Launch:
    """A rank on each of the hosts; rank 0 on the first one, where the others look for it."""

    def __init__(self, made, *args, command=TURN, master=None, **env):
        self.ranks = []
        for rank, host in enumerate(made):
            mine = dict(env_of(rank, len(made), master or made[0].four), **env)
            line = host.command(GRAFT, "launch", "--threads", "1", "--draft-threads", "1", *args, "--", *command)
            p = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=mine,
                                 stdin=subprocess.DEVNULL)
            host.started.append(p)
            self.ranks.append(p)

    def end(self, status=0, seconds=90):
        """What rank 0 has printed, and what all ranks have said."""
        said = [p.communicate(timeout=seconds * SLOW) for p in self.ranks]
        err = "".join(e for _, e in said)
        assert self.ranks[0].returncode == status, (self.ranks[0].returncode, err[-3000:])
        return said[0][0], err


def answer(out):
    return json.loads(re.search(r"^(\{.*\})$", out, re.M).group(1))


def check(out, err, n_host):
    got = answer(out)
    assert got["token_ids"] == plain(), got["token_ids"]
    assert got["metrics"]["num_accepted_tokens"] > 0 and got["metrics"]["transport"] == "tcp", got["metrics"]
    seen = set(re.findall(r"graft launch: rank \d+ of \d+ on host (\S+):", err))
    assert len(seen) == n_host, err
    return got, err


@case_if(LACKS)
def a_job_over_three_hosts():
    """The demo pair; then over IPv6, a head with two targets, on hosts whose names are alike up to the dot. [B2, B3, B5]"""
    with hosts.hosts("launch", "head", "n1", "n2") as made:
        for h in made:
            h.add_docker()
        check(*Launch(made, "--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", DRAFT).end(), 3)
    with hosts.hosts("launch4", "w.0", "w.1", "w.2", "w.3") as made:
        check(*Launch(made, "--roles", "serve:1,draft:1,target:2", "--model", TARGET, "--draft", HEAD, "--control",
                      f"[{made[0].six}]:5055", master=made[0].six).end(), 4)


@case_if(LACKS)
def a_target_over_several_hosts():
    """One rank of it on each host; who leads it beside rank 0 of the job; and four, which connect among themselves."""
    two = ("--roles", "serve:1,target:2,draft:1", "-tp", "2", "--tp-over-hosts", "--model", TARGET, "--draft", DRAFT)
    with hosts.hosts("spread", "head", "n1", "n2") as made:
        head, n1, n2 = made
        for h in made:
            h.add_docker()
        _, err = check(*Launch([head, n1, n2, n1], *two, GRAFT_LOG="info").end(), 3)
        assert "rank 1 of the tensor-parallel group has come, from host n2" in err, err
        check(*Launch([head, head, n1, n2], *two).end(), 3)
    grown = ("--geometry", "test-64", "--max-model-len", "1024")
    want = generate(*grown, "--method", "none", "--ignore-eos", "--max-tokens", "64")["token_ids"]
    with hosts.hosts("spread4", "head", "n1", "n2", "n3") as made:
        for h in made:
            h.add_docker()
        out, _ = Launch([*made, made[0]], "--roles", "serve:1,target:4", "-tp", "4", "--tp-over-hosts", "--model", TARGET, *grown,
                        command=(GRAFT, "run", "--json", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos",
                                 "--max-tokens", "64")).end()
        assert answer(out)["token_ids"] == want, answer(out)


@case_if(LACKS)
def every_listener_is_in_the_range():
    """--ports, with what listens on each host while a command runs. [B6]"""
    ports = range(5000, 5006)
    with hosts.hosts("ports", "head", "n1", "n2") as made, tempfile.NamedTemporaryFile(delete=False) as stays:
        j = Launch(made, "--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", DRAFT, "--ports", "5000-5005",
                   command=("sh", "-c", f"echo up; while [ -e {stays.name} ]; do sleep 0.05; done"))
        assert j.ranks[0].stdout.readline() == "up\n", j.ranks[0].communicate(timeout=5)
        n = {}
        for h in made:
            open_here = h.run("ss", "-Hltn").stdout.split("\n")
            listening = [int(x.split()[3].rsplit(":", 1)[1]) for x in open_here if x]
            assert all(p in ports for p in listening), (h.name, open_here)
            n[h.name] = len(listening)
        assert n == {"head": 2, "n1": 0, "n2": 1}, n
        os.unlink(stays.name)
        j.end()
    with hosts.hosts("narrow", "head", "n1") as made:  # rank 0 has it, and the orchestrator finds none
        _, err = Launch(made, "--roles", "serve:1,target:1", "--model", TARGET, "--ports", "5000-5000", "--start-within",
                        "5").end(status=1)
        assert "5000" in err and "in use" in err, err
        _, err = Launch(made, "--roles", "serve:1,target:1", "--model", TARGET, "--control", "127.0.0.1:0").end(status=1)
        assert "--control 127.0.0.1:0: rank 1 on host n1 does not reach the orchestrator" in err, err


def two_networks(made):
    """Each host has eth0, and data0 on another subnet. The second one has a twin of data0 beside it, which its routes
    prefer but for what comes from data0's address."""
    for n, h in enumerate(made, 1):
        h.add_docker()
        if n == 2:
            h.add_network("twin0", "10.92.7.102", "fd92:8::102")
        h.add_network("data0", f"10.92.7.{n}", f"fd92:7::{n}")
    drafter = made[1]
    drafter.run("sh", "-c", "cd /proc/sys/net/ipv4/conf && for i in all twin0 data0; do echo 1 > $i/arp_ignore; "
                            "echo 2 > $i/arp_announce; done")
    drafter.ip("rule", "add", "from", "10.92.7.2", "table", "101")
    drafter.ip("route", "add", "10.92.7.0/24", "dev", "data0", "table", "101")


def sent(host, interface):
    out = json.loads(host.ip("-s", "-j", "link", "show", "dev", interface).stdout)
    return out[0]["stats64"]["tx"]["bytes"]


def ends(host, *state):
    """Both ends, without ports, of the host's connections, or (-l) of what listens."""
    lines = host.run("ss", "-Htn", *state).stdout.splitlines()
    return {tuple(re.sub(r":[^:]*$", "", end).strip("[]").replace("::ffff:", "") for end in x.split()[3:5]) for x in lines}


@case_if(LACKS)
def a_job_is_on_the_interface_that_was_named():
    """The ranks meet over eth0, where rank 0 is named; all else is on data0: what listens, what is told, both ends of
    each connection, and what is sent. [B3, B4]"""
    with hosts.hosts("iface", "head", "n1", "n2") as made, tempfile.NamedTemporaryFile(delete=False) as stays:
        two_networks(made)
        before = {i: sent(made[1], i) for i in ("data0", "twin0")}
        wait = f"while [ -e {stays.name} ]; do sleep 0.05; done"
        j = Launch(made, "--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", DRAFT, "--interface", "data0",
                   command=("sh", "-c", f'{GRAFT} session list --json; "$@"; echo up; {wait}', "sh", *TURN))
        out = []
        while "up\n" not in out:
            out.append(j.ranks[0].stdout.readline())
            assert out[-1], j.ranks[0].communicate(timeout=5)
        listening = {h.name: {own for own, _ in ends(h, "-l")} for h in made}
        met = {"*", "0.0.0.0"} & listening["head"]
        assert met and listening["head"] - met == {"10.92.7.1", "fd92:7::1"}, listening
        assert listening["n1"] == set() and listening["n2"] == {"10.92.7.3", "fd92:7::3"}, listening
        assert ends(made[1]) == {(made[1].four, made[0].four), ("10.92.7.2", "10.92.7.1"), ("10.92.7.2", "10.92.7.3")}, ends(made[1])
        spent = {i: sent(made[1], i) - n for i, n in before.items()}
        assert spent["data0"] > 10 * spent["twin0"], spent
        os.unlink(stays.name)
        _, err = j.end()
        check("".join(out[1:]), err, 3)
        told = {w["role"]: w for w in json.loads(out[0])["workers"]}
        assert re.fullmatch(r"10\.92\.7\.3:\d+,\[fd92:7::3\]:\d+", told["target"]["address"]), told
        assert (told["target"]["peer"], told["draft"]["peer"]) == ("10.92.7.3", "10.92.7.2"), told
        assert len(re.findall(r"graft: --interface data0: data0 10\.92\.7\.1, data0 fd92:7::1$", err, re.M)) == 1, err


@case_if(LACKS)
def a_rank_without_the_interface_ends_the_job():
    with hosts.hosts("noiface", "head", "n1") as made:
        for n, h in enumerate(made, 1):
            h.add_network("data0", f"10.92.7.{n}", f"fd92:7::{n}")
        made[1].ip("link", "set", "data0", "down")
        _, err = Launch(made, "--roles", "serve:1,target:1", "--model", TARGET, "--interface", "10.92.7.0/24").end(status=1)
        said = [x for x in err.splitlines() if "--interface 10.92.7.0/24:" in x and "error" in x]
        assert len(said) == 1 and "is down; the host has: " in said[0] and f"eth0 {made[1].four}" in said[0], err
        assert "rank 1 (target) on host n1 cannot run its worker" in err, err


@case_if(LACKS_SLOW)
def a_job_over_a_slow_and_lossy_network():
    """30 ms there and back, and every fiftieth packet is lost: the same text, with trees."""
    with slow_net.slow_hosts("lossy", "head", "n1", "n2", delay_s=0.015, loss=0.02) as (net, made):
        out, err = Launch(made, "--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", DRAFT).end(seconds=180)
        check(out, err, 3)
        assert net.n_lost > 0 and net.n_sent > 200, (net.n_lost, net.n_sent)
        print(f"# {net.n_lost} of {net.n_sent} packets were lost; "
              f"{answer(out)['metrics']['decode_tokens_per_second']:.1f} tokens/s")


@case_if(LACKS_SLOW)
def a_path_that_swallows_large_packets():
    """Between drafter and target packets of more than 576 bytes vanish and no ICMP says so. A drafter whose frames are small
    is not hindered; a head gets no features: the turn goes on without trees, with the right text and a line."""
    with slow_net.slow_hosts("hole", "head", "n1", "n2", delay_s=0, loss=0) as (net, made):
        net.make_hole(made[1], made[2], 576)
        args = ("--roles", "serve:1,draft:1,target:1", "--model", TARGET)
        check(*Launch(made, *args, "--draft", DRAFT).end(), 3)
        small = net.n_hole
        out, err = Launch(made, *args, "--draft", HEAD, "--round-deadline-ms", "100", command=(*TURN[:-1], "1500")).end()
        got = answer(out)
        assert net.n_hole > small, (small, net.n_hole)
        assert got["token_ids"] == plain(1500) and got["metrics"]["num_draft_tokens"] == 0, got["metrics"]
        assert "no tree for as long as three round deadlines; going on root-only" in err, err


# ---- ends, of ranks that are all on this host ----

def rank_here(port, rank, *args, command=(), **env):
    mine = dict(env_of(rank, 3, "127.0.0.1", port), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="3", **env)
    return subprocess.Popen([GRAFT, "launch", "--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", DRAFT,
                             "--threads", "1", "--draft-threads", "1", *args, *(("--", *command) if command else ())],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=mine, stdin=subprocess.DEVNULL)


def ended(ranks, seconds=60):
    """Statuses, what rank 0 has printed, and what all have said."""
    said = [p.communicate(timeout=seconds * SLOW) for p in ranks]
    return [p.returncode for p in ranks], said[0][0], "".join(e for _, e in said)


@case
def a_second_signal_ends_at_once():
    """Also where the command heeds none; --grace is longer than this test."""
    port = free_port()
    ranks = [rank_here(port, r, "--grace", "300", command=("sh", "-c", "trap '' TERM; echo up; exec sleep 600")) for r in range(3)]
    assert ranks[0].stdout.readline() == "up\n", ended(ranks)
    begin = time.monotonic()
    while ranks[0].poll() is None and time.monotonic() < begin + 60 * SLOW:
        ranks[0].send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            ranks[0].wait(1.2)
    assert ranks[0].poll() == 128 + signal.SIGTERM and time.monotonic() < begin + 60 * SLOW, ended(ranks)
    ended(ranks)


@case
def a_command_may_stop_its_server():
    """It is not ended with it, and its status is the job's."""
    port = free_port()
    command = ("sh", "-c", f"{GRAFT} stop; echo stopped $?; sleep 1; echo post; exit 5")
    status, out, err = ended([rank_here(port, r, command=command) for r in range(3)])
    assert status == [5, 0, 0] and out == "stopped 0\npost\n", (status, out, err)


@case
def who_comes_too_late_is_told():
    """Rank 1 does not fit, and rank 2 comes a moment after that: it does not look for rank 0 until --start-within is over."""
    port = free_port()
    ranks = [rank_here(port, 0, "--start-within", "300"), rank_here(port, 1, "--start-within", "300", GRAFT_SESSIONS="3")]
    wait_for(lambda: ranks[1].poll() is not None)
    ranks.append(rank_here(port, 2, "--start-within", "300"))
    status, _, err = ended(ranks)
    assert all(x in (1, 2) for x in status) and "the job has ended before it began" in err, (status, err)


def ends_are_caught(p):
    """A signal that ends a process is blocked there: it is read by who takes care of it."""
    with open(f"/proc/{p.pid}/status", encoding="ascii") as f:
        blocked = next(int(line.split()[1], 16) for line in f if line.startswith("SigBlk:"))
    return blocked >> (signal.SIGTERM - 1) & 1


@case
def who_is_told_to_end_too_early_says_so():
    """Rank 1 is signalled before there is a rank 0, which does not wait for it until --start-within is over."""
    port = free_port()
    first = rank_here(port, 1, "--start-within", "300")
    wait_for(lambda: ends_are_caught(first))
    others = [rank_here(port, r, "--start-within", "300") for r in (0, 2)]
    first.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    status, _, err = ended([others[0], first, others[1]])
    assert status[0] == 128 + signal.SIGTERM and 0 not in status and time.monotonic() < begin + 60 * SLOW, (status, err)


@case
def a_signal_is_handed_on_while_rank_0_comes_again():
    """Rank 0 is killed before all have come, and rank 1 is told to end while it looks for the next one."""
    port, where = free_port(), f"127.0.0.1:{free_port()}"
    args = ("--rendezvous", where, "--start-within", "300")
    first, other = rank_here(port, 0, *args, GRAFT_LOG="info"), rank_here(port, 1, *args)
    for line in first.stderr:
        if "rank 1 on host" in line and "has said hello" in line:
            break
    first.kill()
    first.communicate()
    again = rank_here(port, 0, *args)
    wait_for(lambda: ends_are_caught(again))
    other.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    status, _, err = ended([again, other])
    assert status[0] == 128 + signal.SIGTERM and status[1] != 0 and time.monotonic() < begin + 60 * SLOW, (status, err)


@case
def a_second_signal_ends_a_worker_that_hangs():
    """It is stopped. Its rank is told twice, and does not wait for it; nor does rank 0."""
    port = free_port()
    ranks = [rank_here(port, r, "--grace", "300", command=("sh", "-c", "echo up; exec sleep 600")) for r in range(3)]
    assert ranks[0].stdout.readline() == "up\n", ended(ranks)
    for pid, command in children(ranks[2].pid):
        if command.endswith("graft-target"):
            os.kill(pid, signal.SIGSTOP)
    within = min(60 * SLOW, 200)  # of the 300 s that it would be waited for
    begin = time.monotonic()
    while ranks[2].poll() is None and time.monotonic() < begin + within:
        ranks[2].send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            ranks[2].wait(1.2)
    assert ranks[2].poll() is not None, ended(ranks)
    ended(ranks)
    assert time.monotonic() < begin + within


@case
def what_rank_0_has_left_is_written_again():
    """The folder goes, as one in /tmp may; ranks that come later find rank 0 all the same."""
    with tempfile.TemporaryDirectory() as folder:
        where = os.path.join(folder, "job")
        port = free_port()
        ranks = [rank_here(port, 0, "--job-dir", where, command=("echo", "ran"))]
        wait_for(lambda: os.path.isdir(where) and any(not x.endswith(".new") for x in os.listdir(where)))
        shutil.rmtree(where)
        wait_for(lambda: os.path.isdir(where) and os.listdir(where))
        ranks += [rank_here(port, r, "--job-dir", where) for r in (1, 2)]
        status, out, err = ended(ranks)
        assert status == [0, 0, 0] and out == "ran\n" and "it has been written again" in err and "comes twice" not in err, (status, err)


@case
def grace_bounds_an_orchestrator_that_hangs():
    """It is stopped: its turns would never be through. The default would be 25 s."""
    grace = 6
    port = free_port()
    ranks = [rank_here(port, r, "--grace", str(grace), command=("sh", "-c", "echo up; exec sleep 600")) for r in range(3)]
    assert ranks[0].stdout.readline() == "up\n", ended(ranks)
    orchestrator = next(pid for pid, command in children(ranks[0].pid) if command.endswith("graft"))
    os.kill(orchestrator, signal.SIGSTOP)
    begin = time.monotonic()
    ranks[0].send_signal(signal.SIGTERM)
    status, _, err = ended(ranks)
    took = time.monotonic() - begin
    assert status[0] == 128 + signal.SIGTERM and took < 22 * SLOW, (status, took, err)
    wait_for(lambda: not os.path.exists(f"/proc/{orchestrator}"))


def run():
    lacking = {x for x in (LACKS, LACKS_SLOW) if x}
    if not CASES:
        print(f"1..0 # SKIP {', '.join(sorted(lacking))}")
        return 0
    status = main(len(lacking))
    for i, why in enumerate(sorted(lacking), len(CASES) + 1):
        print(f"ok {i} - more hosts # SKIP {why}")
    return status


sys.exit(run())
