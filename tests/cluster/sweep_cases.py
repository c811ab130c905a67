"""A sweep of the benchmark, whose points are jobs under mpirun and Slurm."""
import csv
import os
import re
import subprocess

from cluster import MPIRUN, path, job, ranks, slurm
from harness import BUILD, case


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
