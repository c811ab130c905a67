#!/usr/bin/env python3
"""Jobs and far groups on GPUs: cuda:local under torchrun, with pairs and with groups, and a group whose ranks NCCL takes
for those of two hosts (NCCL_HOSTID), so that sums go over its network. Texts are those of one GPU. Skipped where there are
fewer than two GPUs that the build can use.

usage: test_cuda_jobs.py BUILD_DIR SOURCE_ROOT      prints TAP
GRAFT_TEST_TOKENS: tokens of the text over NCCL's network (2000).
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from far_group import Group, serving
from gpus import N_GPU, SOFT, WHY
from harness import GRAFT, HEAD, TARGET, alive, case, generate, main, wait_for
from served import Folder, Serve, free_port

TOKENS = int(os.environ.get("GRAFT_TEST_TOKENS", "2000"))
TURN = ("--prompt", "def fibonacci(n):", "--ignore-eos", "--max-tokens")
UP_S = 240  # until all of a job has its GPUs
TP8 = ("--geometry", "test-tp8", "--max-model-len", "4096")
LOCAL = ("--target-device", "cuda:local", "--draft-device", "cuda:local")


def torchrun(n, *words):
    """n ranks of a job: by torchrun where it is installed, else by the variables that it would set."""
    tool = shutil.which("torchrun")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRAFT_")}
    with tempfile.TemporaryDirectory() as folder:
        env.update(HOME=folder, GRAFT_LOG="info")
        words = ("launch", "--job-dir", os.path.join(folder, "job"), "--start-within", str(UP_S), *words)
        if tool:
            return subprocess.run([tool, "--no-python", "--nnodes=1", f"--nproc-per-node={n}",
                                   f"--master-port={free_port()}", GRAFT, *words],
                                  capture_output=True, text=True, timeout=2 * UP_S, env=env, check=False)
        script = f'for r in $(seq 1 {n - 1}); do RANK=$r LOCAL_RANK=$r "$@" & done; RANK=0 LOCAL_RANK=0 "$@"; s=$?; wait; exit $s'
        env.update(WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), MASTER_PORT=str(free_port()))
        return subprocess.run(["bash", "-c", script, "x", GRAFT, *words],
                              capture_output=True, text=True, timeout=2 * UP_S, env=env, check=False)


def ids_of(done):
    found = re.search(r"\{.*\}", done.stdout)
    assert done.returncode == 0 and found, (done.returncode, done.stdout[-500:], done.stderr[-4000:])
    return json.loads(found.group(0))["token_ids"]



@case
def each_rank_has_the_gpu_of_its_place():
    n_token = "8" if SOFT else "200"
    want = generate(*TURN, n_token, "--target-device", "cuda:0", timeout=300)["token_ids"]
    roles = ("--roles", "serve:1,draft:1,target:1", "--model", TARGET, "--draft", HEAD, *LOCAL)
    done = torchrun(3, *roles, "--", GRAFT, "run", "--json", "--model", TARGET, *TURN, n_token)
    assert ids_of(done) == want, done.stderr[-4000:]
    assert "ranks by torchrun" in done.stderr and "cuda:0" in done.stderr and "cuda:1" in done.stderr, done.stderr[-4000:]


@case
def a_target_of_the_job_has_two_gpus():
    n_token = "8" if SOFT else "200"
    want = generate(*TURN, n_token, "--target-device", "cuda:0", timeout=300)["token_ids"]
    done = torchrun(2, "--roles", "serve:1,target:1", "-tp", "2", "--model", TARGET, "--target-device", "cuda:local",
                    "--", GRAFT, "run", "--json", "--model", TARGET, *TURN, n_token)
    assert ids_of(done) == want, done.stderr[-4000:]


@case
def more_workers_than_gpus_are_refused():
    done = torchrun(N_GPU + 2, "--roles", f"serve:1,target:{N_GPU + 1}", "--model", TARGET, "--target-device", "cuda:local")
    assert done.returncode != 0, done.stderr[-2000:]
    assert f"sees {N_GPU} GPUs, and {N_GPU + 1} ranks of that host want" in done.stderr, done.stderr[-4000:]


def of_two_hosts(folder):
    """NCCL goes by its host's name, so these two have neither peer memory nor shared memory between them."""
    return lambda rank: (("--device", f"cuda:{rank}"),
                         {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO",
                          "NCCL_DEBUG_FILE": os.path.join(folder, f"nccl{rank}")})


@case
def sums_over_the_network_of_nccl():
    """Equal ids, and the group that lost a process meets again."""
    n_token = "8" if SOFT else str(TOKENS)
    one = ("--target-device", "cuda:0", *TP8)
    want = generate(*TURN, n_token, *one, timeout=300)["token_ids"]
    with tempfile.TemporaryDirectory() as folder, serving(2, *one[2:], each=of_two_hosts(folder), within=UP_S) as (s, g):
        assert s.generate("--max-tokens", n_token, timeout=UP_S)["token_ids"] == want
        if not SOFT:
            with open(os.path.join(folder, "nccl0"), encoding="utf-8") as f:
                told = f.read()
            assert "via NET/" in told and "via P2P" not in told and "via SHM" not in told, told[-4000:]
        old = [g.worker(r) for r in range(2)]
        os.kill(old[1], signal.SIGKILL)
        wait_for(lambda: not any(alive(pid) for pid in old), 60)
        wait_for(lambda: g.said(0).count("have met") == 2, UP_S)
        assert s.generate("--max-tokens", n_token, timeout=UP_S)["token_ids"] == want


@case
def a_misfit_by_its_library():
    """Rank 1's host has another NCCL: its line names rank, host and both versions, and nothing waits. [B10]"""
    if not SOFT:
        return  # one host has one library

    def of(rank):
        return ("--device", f"cuda:{rank}"), {"NCCL_HOSTID": f"host{rank}", "SOFT_NCCL_VERSION": ("22105", "21903")[rank]}

    folder = Folder()
    with (Serve(spawn=False, folder=folder) as s,
          Group(folder, s.address, 2, *TP8, each=of) as g):
        wait_for(lambda: "tensor-parallel rank 1 on host " in g.said(1), UP_S)
        assert re.search(r"rank 1 on host \S+ has NCCL 2\.19\.3, and rank 0 on host \S+ NCCL 2\.21\.5", g.said(1)), g.said(1)[-2000:]


@case
def a_misfit_by_its_gpu():
    """What cuda:0 is to both: the line names rank, host and GPU. Both would wait for each other for ever."""
    folder = Folder()
    with (Serve(spawn=False, folder=folder) as s,
          Group(folder, s.address, 2, *TP8, "--device", "cuda:0") as g):
        wait_for(lambda: "tensor-parallel rank 1 of 2" in g.said(1), UP_S)
        assert re.search(r"rank 1 on host \S+ has the GPU at [0-9a-fA-F:.]+, and so has rank 0: .*--device", g.said(1)), g.said(1)
        wait_for(lambda: "refused: rank 1 on host" in g.said(0), UP_S)


@case
def each_rank_sees_one_gpu():
    """Both are cuda:0 to their processes, and the group computes as one GPU does. [D2]"""
    n_token = "4" if SOFT else "200"
    want = generate(*TURN, n_token, "--target-device", "cuda:0", *TP8)["token_ids"]

    def sees(rank):
        return ("--device", "cuda:0"), {"NCCL_HOSTID": f"host{rank}", "CUDA_VISIBLE_DEVICES": str(rank)}

    with serving(2, *TP8, each=sees, within=UP_S) as (s, _):
        assert s.generate(*TURN[2:], n_token, prompt=TURN[1], timeout=UP_S)["token_ids"] == want


if __name__ == "__main__":
    if N_GPU < 2:
        print(f"1..0 # SKIP two GPUs are needed: {WHY}")
        sys.exit(0)
    sys.exit(main())
