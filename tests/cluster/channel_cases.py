"""The launcher's own channel as the place where ranks meet."""
import functools
import os
import re
import shutil
import subprocess
import time

from cluster import PAIR, TURN, MPIRUN, SRUN, plain, path, job, ids_of, has, ranks, slurm, killed_drafter_rank
from harness import GRAFT, SLOW, Skip, case


def channels():
    """Those of this build."""
    said = subprocess.run([GRAFT, "--version"], capture_output=True, text=True, check=True).stdout
    return [by for by in ("pmix", "mpi") if re.search(rf"over:.*\b{by}\b", said)]


def skipped_unless(can_run, why):
    """A case, and the reason with which it is skipped."""
    def add(fn):
        @functools.wraps(fn)
        def run():
            if not can_run():
                raise Skip(why)
            fn()
        return case(run)
    return add


channel = skipped_unless(channels, "this build has neither PMIx nor MPI (meson's option mpi)")


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


def names_of_hosts():
    return shutil.which("unshare") and os.geteuid() == 0


def on_three_hosts(*more):
    """Three daemons of mpirun that are three hosts by name."""
    with open(path("ssh"), "w", encoding="utf-8") as f:
        f.write(FAKE_SSH)
    os.chmod(path("ssh"), 0o755)
    hosts = ("--host", "graft-a:1,graft-b:1,graft-c:1", "--mca", "plm_rsh_agent", path("ssh"), "--mca", "oob_tcp_if_include", "lo",
             "--mca", "btl_tcp_if_include", "lo")
    return (*MPIRUN, *hosts, *more, "-np", "3", GRAFT, "launch", *PAIR)


@skipped_unless(names_of_hosts, "names of hosts need unshare and root")
def roles_follow_the_rank_file():
    """A file that puts the ranks on the hosts from the last to the first: each has the role of its number. [A8]"""
    with open(path("ranks"), "w", encoding="utf-8") as f:
        f.writelines(f"rank {rank}=graft-{host} slot=0\n" for rank, host in enumerate("cba"))
    done = job(*on_three_hosts("--rankfile", path("ranks")), "--dry-run")
    assert done.returncode == 0, done.stderr
    found = {rank: (host, role) for rank, (_, host, role, _) in ranks(done).items()}
    assert found == {0: ("graft-c", "serve"), 1: ("graft-b", "draft"), 2: ("graft-a", "target")}, done.stderr


@skipped_unless(lambda: channels() and names_of_hosts(), "names of hosts need unshare and root, and this build PMIx or MPI")
def channel_over_hosts():
    """Neither a key nor a folder is needed."""
    launch = on_three_hosts()
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


@channel
def channel_without_its_plugins():
    """A PMIx that lacks what the launcher's has: an error within 10 s that names the call and both releases. [E6]"""
    for by in channels():
        begin = time.monotonic()
        done = job(*MPIRUN, "-np", "3", "env", "PMIX_MCA_psec=nonsense", GRAFT, "launch", *PAIR, "--rendezvous", by)
        said = rf"error: rank \d on host \S+: .*--rendezvous {by}: .*(PMIx_Init: |the last call: ).*the launcher's PMIx is \d"
        assert done.returncode != 0 and re.search(said, done.stderr), (done.returncode, done.stderr)
        assert time.monotonic() - begin < 10 * SLOW


@slurm
def srun_over_pmix():
    """Over the PMIx of Slurm and without a key; srun without PMIx says so at once. [A3, E6]"""
    known = job("srun", "--mpi=list")
    if "pmix" not in channels() or not re.search(r"^\s*pmix\s*$", known.stdout + known.stderr, re.M):
        raise Skip("Slurm or this build knows no PMIx here")
    start = (*SRUN, "-N1", "-n3", "--overcommit")  # several slurmds of one machine are in each other's way with PMIx
    more = ("--rendezvous", "pmix")
    done = job(*start, "--mpi=pmix", GRAFT, "launch", *PAIR, *more, "--", *TURN, "--max-tokens", "32")
    assert ids_of(done) == plain(32)
    done = job(*start, "--mpi=none", GRAFT, "launch", *PAIR, *more)
    assert done.returncode == 1
    has(done, "PMIX_NAMESPACE is not set")
