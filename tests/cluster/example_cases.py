"""What lies in examples/cluster, run as its comments say, with CPUs in place of GPUs."""
import os
import re

from cluster import SRUN, TURN, Job, has, has_ended, ids_of, job, path, plain, ranks, slurm
from harness import BUILD, DRAFT, GRAFT, ROOT, TARGET, case, wait_for

EXAMPLES = os.path.join(ROOT, "examples/cluster")


def submit(name, out, *args, options=(), **env):
    """The number of the job that sbatch has made of a script."""
    script = os.path.join(EXAMPLES, name + ".sbatch")
    done = job("sbatch", "--parsable", "--gpus-per-node=0", "--cpus-per-task=1", *options, "-o", out, script, *args, MODEL=TARGET,
               DRAFT=DRAFT, DEVICE="cpu", GRAFT_BIN=BUILD, JOB_DIR=path(name), **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def text_of_ended(number, out, seconds=60):
    wait_for(lambda: has_ended(number), seconds)
    with open(out, encoding="utf-8") as f:
        return f.read()


@slurm
def sbatch_examples():
    """The scripts for 2, 4 and 8 nodes and for a heterogeneous job."""
    for name, n in (("slurm-2", 3), ("slurm-4", 5), ("slurm-8", 9), ("slurm-het", 4)):
        out = path(name + ".out")
        number = submit(name, out, "--threads", "1", "--draft-threads", "1", "--", *TURN, "--max-tokens", "16")
        text = text_of_ended(number, out, 120)
        assert token_ids(text) == plain(16), text
        assert f"all {n} roles are up" in text, text


def token_ids(text):
    found = re.search(r'"token_ids":\[([0-9,]*)\]', text)
    assert found, text
    return [int(x) for x in found.group(1).split(",")]


@slurm
def steps_example():
    """Three steps of one job, beside each other: none waits for another's end. [C2]"""
    out = path("steps.out")
    memory = {"SERVE_MEM": "500M", "DRAFT_MEM": "1G", "TARGET_MEM": "1G"}
    number = submit("slurm-steps", out, "--json", *TURN[5:], "--max-tokens", "16", options=("--mem=3000",), **memory)
    text = text_of_ended(number, out, 120)
    assert token_ids(text) == plain(16), text
    assert "step creation" not in text, text
    assert os.listdir(path("slurm-steps")) == [], text


@case
def mpirun_example():
    done = job(os.path.join(EXAMPLES, "mpirun.sh"), TARGET, DRAFT, "--", *TURN, "--max-tokens", "16", GRAFT_BIN=BUILD)
    assert ids_of(done) == plain(16)


@slurm
def warned_by_slurm():
    """The signal that a script of examples/cluster asks for ends its job in order before the time limit does."""
    with open(os.path.join(EXAMPLES, "slurm-2.sbatch"), encoding="utf-8") as f:
        warning = re.search(r"^#SBATCH --signal=(B:)?TERM@\d+$", f.read(), re.M)
    out = path("warned.out")
    number = submit("slurm-2", out)
    wait_for(lambda: os.path.exists(out) and "roles are up" in open(out, encoding="utf-8").read(), 60)
    # As Slurm itself sends it: to the steps, or with B: to the batch script alone.
    job("scancel", *(("--batch",) if warning.group(1) else ()), "--signal=TERM", number)
    text = text_of_ended(number, out)
    assert "the job ended with status 0" in text, text
    assert os.listdir(path("slurm-2")) == [], text


@slurm
def multi_prog_example():
    """Lines that are `graft serve', graft-draft and graft-target themselves."""
    folder = path("by-hand")
    os.mkdir(folder)
    os.symlink(BUILD, os.path.join(folder, "build"))
    os.symlink(os.path.dirname(TARGET), os.path.join(folder, "demo"))
    lines = os.path.join(folder, "lines")
    with open(os.path.join(EXAMPLES, "multi-prog.conf"), encoding="utf-8") as f, open(lines, "w", encoding="utf-8") as out:
        out.write(f.read().replace("models/demo/", "demo/"))
    ready, key = os.path.join(folder, "graft.ready"), os.path.join(folder, "graft.key")
    assert job(GRAFT, "serve", "--make-key", key).returncode == 0
    j = Job(*SRUN, "-N3", "-n3", "-D", folder, "--multi-prog", lines, GRAFT_KEY_FILE=key, GRAFT_READY_FILE=ready,
            GRAFT_JOIN="@" + ready)
    ask = {"GRAFT_KEY_FILE": key, "GRAFT_CONNECT": "@" + ready}
    wait_for(lambda: os.path.exists(ready) or j.p.poll() is not None, 30)
    assert job(GRAFT, "wait", "--draft", "demo/draft", "--timeout", "40", **ask).returncode == 0, j.said()
    assert ids_of(job(GRAFT, *TURN[1:], "--max-tokens", "16", **ask)) == plain(16), j.said()
    assert job(GRAFT, "stop", **ask).returncode == 0, j.said()
    assert j.end().returncode == 0, j.said()


def dry_run(plan, rank, hosts):
    return job(GRAFT, "launch", "--plan", plan, "--dry-run", SLURM_JOB_ID="1", SLURM_STEP_ID="0", SLURM_LOCALID="0",
               SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS=str(len(hosts)), SLURMD_NODENAME=hosts[rank])


@case
def plans_are_read():
    """Every rank of each plan file says what it is, on the host that the plan names; elsewhere it is refused."""
    hosts_of_8 = ["gpu01"] * 4 + ["gpu02"] * 3 + ["gpu01", "gpu02"]
    for name, n_target, n_draft, hosts in (("plan-2", 1, 1, ["n"] * 3), ("plan-4", 3, 1, ["n"] * 5), ("plan-8", 6, 2, hosts_of_8)):
        plan = path(name + ".yaml")
        with open(os.path.join(EXAMPLES, name + ".yaml"), encoding="utf-8") as f, open(plan, "w", encoding="utf-8") as out:
            out.write(re.sub(r"(models/demo|/shared/models)/(\w+)", os.path.dirname(TARGET) + r"/\2", f.read()))
        roles = []
        for rank in range(len(hosts)):
            done = dry_run(plan, rank, hosts)
            assert done.returncode == 0, (name, done.stderr)
            roles.append(ranks(done)[rank][2])
        assert roles == ["serve"] + ["target"] * n_target + ["draft"] * n_draft, roles
    done = dry_run(plan, 4, ["gpu01"] * 9)
    assert done.returncode != 0
    has(done, "rank 4 on host gpu01", "puts this target on host gpu02")
