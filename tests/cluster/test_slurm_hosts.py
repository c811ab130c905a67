#!/usr/bin/env python3
"""`graft launch` under a Slurm whose nodes are network namespaces (slurm_hosts.py): ranks that meet, are missing, are killed
and are cancelled across hosts, which share neither loopback nor /dev/shm.

usage: test_slurm_hosts.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import re
import signal
import sys
import tempfile
import time

import hosts
import slow_net
import slurm_hosts
from cluster import (
    GRAFT, LONG, PAIR, SLOW, STATE, TURN, Job, has, ids_of, job, killed_drafter_rank, killed_worker, nothing_is_left,
    path, plain, ranks
)
from harness import CASES, case, main

KEY = "ab" * 32
TOKENS = 256  # a drafter that comes while the first ones are decoded has its part in the text, too
PAIRED = (*TURN, "--num-speculative-tokens", "4", "--max-tokens", str(TOKENS))


def srun(*args):
    """On the controller's host."""
    return (*slurm_hosts.on_head(STATE["hosts"], "srun", "-N3", "-n3", "--wait=0", "--kill-on-bad-exit=0"), *args)


def launch(*args):
    return srun(GRAFT, "launch", *PAIR, *args)


def check(done):
    """The text is plain's, with a drafter over TCP, by ranks of three hosts."""
    assert ids_of(done) == plain(TOKENS)
    assert re.search(r'"transport": *"tcp"', done.stdout), done.stdout[-600:]
    assert {v[1] for v in ranks(done).values()} == {"n1", "n2", "n3"}, done.stderr


@case
def met_at_the_first_node():
    """By the step's first node and a key of all ranks; then with all else on the second network. [B3, B5]"""
    check(job(*launch("--", *PAIRED), GRAFT_KEY=KEY))
    done = job(*launch("--interface", f"{slurm_hosts.DATA}.0/24", "--", *PAIRED), GRAFT_KEY=KEY)
    check(done)
    for n in (2, 3, 4):  # the controller's host is the first
        has(done, f"data0 {slurm_hosts.DATA}.{n}")


@case
def met_in_a_folder():
    """All see the folder; what rank 0 writes there are addresses that others reach."""
    check(job(*launch("--job-dir", path("folder"), "--", *PAIRED)))


@case
def a_missing_rank():
    begin = time.monotonic()
    wrapper = "[ $SLURM_PROCID = 1 ] && exit 0; exec \"$@\""
    done = job(*srun("bash", "-c", wrapper, "x", GRAFT, "launch", *PAIR, "--start-within", "3"), GRAFT_KEY=KEY)
    assert done.returncode != 0 and time.monotonic() - begin < 20 * SLOW, (done.returncode, done.stderr)
    has(done, "rank 1 (draft) on host n2 has not said hello for 3 s")


@case
def killed():
    """kill -9 of each kind of worker on its host, and of a drafter's whole rank."""
    killed_worker(launch(), "graft-target", path("target"))
    killed_worker(launch(), "graft-draft", path("draft"))
    killed_drafter_rank(srun(), path("rank"))


@case
def cancelled():
    """scancel of a healthy job in its turn: it ends in order, nobody is started again, and nothing is left."""
    folder = path("cancelled")
    j = Job(*launch("--job-dir", folder, "--", *TURN, "--max-tokens", "1500"))
    j.wait_for("roles are up")
    job(*slurm_hosts.on_head(STATE["hosts"], "scancel", "-n", "graft"))
    done = j.end(60)
    nothing_is_left(folder)
    assert "starting it again" not in done.stderr and "killed by signal" not in done.stderr, done.stderr


def over_a_slow_and_lossy_network():
    """30 ms there and back, and every fiftieth packet is lost, also of Slurm's own: the same text, with trees."""
    held = {k: STATE[k] for k in ("hosts", "names", "conf")}
    with slow_net.slow_hosts("lossy", "head", "n1", "n2", "n3", delay_s=0.015, loss=0.02) as (net, made):
        STATE["hosts"] = made
        with slurm_hosts.slurm(made, "lossy"):
            check(job(*launch("--", *PAIRED), GRAFT_KEY=KEY, timeout=180))
        print(f"# {net.n_lost} of {net.n_sent} packets were lost")
        assert net.n_lost > 0
    STATE.update(held)


def memory_is_limited():
    """What srun --mem leaves is what a worker divides; too little is told in one line, and nobody is killed for it. [A15, D9]"""
    def start(megabytes):
        line = slurm_hosts.on_head(STATE["hosts"], "srun", "-N1", "-n3", "--mem", str(megabytes), GRAFT, "launch", *PAIR,
                                   "--log-level", "info", "--max-model-len", "2048", "--", *TURN, "--max-tokens", "64")
        return job(*line)
    done = start(700 if SLOW == 1 else 4000)
    assert ids_of(done) == plain(64)
    assert re.search(r"MiB are free \(\S+/memory/slurm_n\d/uid_0/job_\d+/\S*memory\.limit_in_bytes\)", done.stderr), done.stderr
    if SLOW > 1:  # a sanitizer alone takes more than the following
        return
    done = start(60)
    assert done.returncode != 0 and "killed by signal" not in done.stderr, done.stderr
    has(done, "memory.limit_in_bytes", "cannot run")


NO_LIMITS = slurm_hosts.no_memory_limits()
NOT_LONG = None if LONG else "it takes half a minute; --long runs it"
NOT_EVERYWHERE = ((memory_is_limited, NO_LIMITS), (over_a_slow_and_lossy_network, NOT_LONG or slow_net.missing()))


def run_cases():
    CASES.extend(fn for fn, lacking in NOT_EVERYWHERE if lacking is None)
    skipped = [(fn, lacking) for fn, lacking in NOT_EVERYWHERE if lacking is not None]
    status = main(len(skipped))
    for number, (fn, lacking) in enumerate(skipped, len(CASES) + 1):
        print(f"ok {number} - {fn.__name__} # SKIP {lacking}")
    return status


def run():
    lacking = slurm_hosts.missing()
    if lacking is not None:
        print(f"1..0 # SKIP {lacking}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit's: the nodes do not stay
    with tempfile.TemporaryDirectory(prefix="graft-slurm-hosts-") as folder:
        STATE["dir"] = folder
        with hosts.hosts("slurm", "head", "n1", "n2", "n3") as made:
            STATE["hosts"] = made
            slurm_hosts.add_second_network(made)
            with slurm_hosts.slurm(made, "slurm", NO_LIMITS is None):
                return run_cases()


sys.exit(run())
