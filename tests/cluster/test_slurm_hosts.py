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
import slurm_hosts
from cluster import (
    GRAFT, PAIR, SLOW, STATE, TURN, Job, has, ids_of, job, killed_drafter_rank, killed_worker, nothing_is_left,
    path, plain, ranks
)
from harness import CASES, case, main

KEY = "ab" * 32


def srun(*args):
    """On the controller's host."""
    return (*slurm_hosts.on_head(STATE["hosts"], "srun", "-N3", "-n3", "--wait=0", "--kill-on-bad-exit=0"), *args)


def launch(*args):
    return srun(GRAFT, "launch", *PAIR, *args)


def check(done, tokens):
    """The text is plain's, over TCP, by ranks of three hosts."""
    assert ids_of(done) == plain(tokens)
    assert re.search(r'"transport": *"tcp"', done.stdout), done.stdout[-600:]
    assert {v[1] for v in ranks(done).values()} == {"n1", "n2", "n3"}, done.stderr


@case
def met_at_the_first_node():
    """By the step's first node and a key of all ranks; then with all else on the second network. [B3, B5]"""
    check(job(*launch("--", *TURN, "--max-tokens", "64"), GRAFT_KEY=KEY), 64)
    done = job(*launch("--interface", f"{slurm_hosts.DATA}.0/24", "--", *TURN, "--max-tokens", "64"), GRAFT_KEY=KEY)
    check(done, 64)
    for n in (2, 3, 4):  # the controller's host is the first
        has(done, f"data0 {slurm_hosts.DATA}.{n}")


@case
def met_in_a_folder():
    """All see the folder; what rank 0 writes there are addresses that others reach."""
    check(job(*launch("--job-dir", path("folder"), "--", *TURN, "--max-tokens", "64")), 64)


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
    j = Job(*launch("--job-dir", folder, "--", *TURN, "--max-tokens", "3000"))
    j.wait_for("roles are up")
    job(*slurm_hosts.on_head(STATE["hosts"], "scancel", "-n", "graft"))
    done = j.end(60)
    nothing_is_left(folder)
    assert "starting it again" not in done.stderr and "killed by signal" not in done.stderr, done.stderr


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
            with slurm_hosts.slurm(made):
                return main()


sys.exit(run())
