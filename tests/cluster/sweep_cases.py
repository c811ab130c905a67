"""A sweep of the benchmark, whose points are jobs under mpirun and Slurm."""
import csv
import os
import re
import shutil
import subprocess

from cluster import LONG, MPIRUN, path, job, ranks, slurm
from harness import BUILD, GRAFT, case


SWEEP = (os.path.join(BUILD, "graft-bench"), "sweep", "--sessions", "2", "--max-tokens", "16", "--repeat", "1", "--plots", "none", "-o",
         "csv")
BY_MPIRUN = ("--launcher", "mpirun", "--launcher-options", " ".join(MPIRUN[1:]))
BESIDE = ("split", "co-located", "plain")


def rows_of(done):
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return list(csv.DictReader(done.stdout.splitlines()))


def said_in(folder, name):
    with open(os.path.join(folder, "logs", name, "clients.log"), encoding="utf-8") as f:
        return f.read()


def check_places(folder, hosts):
    """Each fleet had the ranks that its name says, on the hosts that it was to have."""
    for name in os.listdir(os.path.join(folder, "logs")):
        said = ranks(subprocess.CompletedProcess([], 0, "", said_in(folder, name)))
        n_rank = 1 + sum(int(n) for n in re.findall(r"-[td](\d+)", name))
        assert set(said) == set(range(n_rank)), (name, said)
        n_host = int(re.search("-h([0-9]+)", name).group(1))
        if hosts is not None:
            assert {h for _, h, _, _ in said.values()} == set(hosts[:n_host]), (name, said)


def check_sweep(done, folder, wanted, hosts):
    """wanted: hosts, devices and mode of each row; hosts: their names, None where the launcher does not tell them apart."""
    rows = rows_of(done)
    assert {(r["hosts"], r["devices"], r["mode"]) for r in rows} == wanted and len(rows) == len(wanted), rows
    assert all(r["runs"] == "1" and ("all decoded" in r["note"] or r["note"] == "") for r in rows), rows
    assert all((r["transport"] == "loop") == (r["mode"] == "co-located") for r in rows), rows
    check_places(folder, hosts)
    again = job(*done.args[:-1], "json", timeout=20)
    assert again.returncode == 0 and "# split" not in again.stderr, again.stderr  # all of it is there


@case
def mpirun_sweep():
    folder = path("sweep-mpirun")
    done = job(*SWEEP[:2], "--save", folder, *BY_MPIRUN, "--host-names", "localhost,127.0.0.1", "--hosts", "1,2", "--n-target", "1,2",
               *SWEEP[2:], timeout=180)
    check_sweep(done, folder, {(h, d, m) for h in "12" for d in "23" for m in BESIDE}, None)


@case
def mpirun_sweep_of_groups():
    """Targets of two ranks: on CPUs they run; on GPUs each has two side by side, and the drafter the next one."""
    folder = path("sweep-groups")
    rows = rows_of(job(*SWEEP[:2], "--save", folder, *BY_MPIRUN, "--tp", "2", *SWEEP[2:]))
    assert [r["runs"] for r in rows if r["mode"] == "split" or r["targets"] == "2"] == ["1"] * 3, rows
    check_places(folder, None)
    fleet = (*SWEEP[:2], *BY_MPIRUN, "--tp", "2", "--devices", "cuda:0,cuda:1,cuda:2", *SWEEP[2:])
    fake = {"LD_LIBRARY_PATH": os.path.join(BUILD, "tests/cluster")}
    few = rows_of(job(*fleet, "--save", path("few-gpus"), FAKE_GPUS="2", **fake))[0]
    assert few["runs"] == "0" and "sees 2 GPUs, and 2 ranks of that host want 3 (cuda:local)" in few["note"], few
    rows_of(job(*fleet, "--save", path("gpus"), FAKE_GPUS="3", **fake))  # which are not there; the first to say so ends the job
    said = said_in(path("gpus"), "split-h1-t1-d1-tp2.0")
    assert "target: error: cuda:0:" in said or "draft: error: cuda:2:" in said, said


@case
def a_variable_of_one_rank():
    """A sweep whose job gives rank 1 alone a variable: the point has no figure, and its note names rank and variable. [K4]"""
    folder, bin_of = path("sweep-unequal"), path("unequal-bin")
    os.mkdir(bin_of)
    with open(os.path.join(bin_of, "rank"), "w", encoding="utf-8") as f:
        f.write("#!/bin/bash\n[ $OMPI_COMM_WORLD_RANK = 1 ] && export GRAFT_X=1\nexec \"$@\"\n")
    with open(os.path.join(bin_of, "mpirun"), "w", encoding="utf-8") as f:
        f.write(f"#!/bin/bash\nwords=()\nfor w; do\n[ \"$w\" = {GRAFT} ] && words+=({bin_of}/rank)\nwords+=(\"$w\")\ndone\n"
                f"exec {shutil.which('mpirun')} \"${{words[@]}}\"\n")
    for name in ("rank", "mpirun"):
        os.chmod(os.path.join(bin_of, name), 0o755)
    split = rows_of(job(*SWEEP[:2], "--save", folder, *BY_MPIRUN, *SWEEP[2:], PATH=bin_of + ":" + os.environ["PATH"]))[0]
    assert split["runs"] == "0" and split["tok/s"] == "", split
    assert "rank 1 on host" in split["note"] and "GRAFT_X is 1, and on rank 0" in split["note"], split


@slurm
def srun_sweep():
    """On one node, two and four: all four workers on a node of four CPUs, with the orchestrator. In full also other numbers of
    workers, and groups."""
    folder, crowded = path("sweep-srun"), ("--launcher-options", "--overcommit")
    done = job("salloc", "-w", "n[1-4]", "-n", "16", *SWEEP[:2], "--save", folder, *crowded, "--hosts", "1,2,4", "--n-target", "3",
               *SWEEP[2:], timeout=180)
    check_sweep(done, folder, {(h, "4", m) for h in "124" for m in BESIDE}, ("n1", "n2", "n3", "n4"))
    if LONG:
        folder = path("sweep-srun-long")
        rows = rows_of(job("salloc", "-w", "n[1-4]", "-n", "16", *SWEEP[:2], "--save", folder, *crowded, "--hosts", "1,2,4",
                           "--n-target", "1,2,3,4", "--n-draft", "1,2", "--tp", "1,2", *SWEEP[2:], timeout=600))
        ran = [r for r in rows if r["runs"] == "1"]
        assert {(r["hosts"], r["tp"]) for r in ran} == {(h, t) for h in "124" for t in "12"}, rows
        assert all("devices" in r["note"] or "cannot stand on" in r["note"] for r in rows if r["runs"] == "0"), rows
        check_places(folder, ("n1", "n2", "n3", "n4"))
