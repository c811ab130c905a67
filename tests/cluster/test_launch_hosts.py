#!/usr/bin/env python3
"""`graft launch` over several hosts, each a network namespace, with ranks by the variables of torchrun: over a good network,
over one that is slow and loses packets, and within a range of ports.

usage: test_launch_hosts.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import hosts
import slow_net
from harness import CASES, DRAFT, GRAFT, HEAD, SLOW, TARGET, generate, main

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


class Launch:
    """A rank on each of the hosts; rank 0 on the first one, where the others look for it."""

    def __init__(self, made, *args, command=TURN, master=None, **env):
        self.ranks = []
        for rank, host in enumerate(made):
            mine = dict(ENV, RANK=str(rank), WORLD_SIZE=str(len(made)), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                        MASTER_ADDR=master or made[0].four, MASTER_PORT="29500", GRAFT_KEY="ab" * 32, **env)
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
        check(*Launch(made, "--roles", "serve:1,draft:1,target:2", "--model", TARGET, "--draft", HEAD, master=made[0].six).end(), 4)


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
