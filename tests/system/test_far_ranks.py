#!/usr/bin/env python3
"""A tensor-parallel group whose processes are started one by one (--tp-group), as on several hosts: they share no memory
and no parent. Texts are those of one process; one that is killed ends the group, which meets again as a whole; one that
does not belong is refused in one line with its rank and host.

usage: test_far_ranks.py BUILD_DIR SOURCE_ROOT      prints TAP"""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

from far_group import Group, serving
from harness import DRAFT, ENDLESS, GRAFT, ROOT, SLOW, TARGET, alive, busy, case, children, generate, main, wait_for
from served import Folder, free_port
from stream import closed, running_again

TP4 = ("--geometry", "test-64", "--max-model-len", "1024")
TOKENS = ("--max-tokens", "60")


@case
def texts_are_those_of_one_process():
    want = generate("--prompt", "def fibonacci(n):", *TOKENS, "--ignore-eos")["token_ids"]
    with serving(2, drafter=("--model", DRAFT, "--target", TARGET)) as (s, _):
        out = s.generate(*TOKENS, "--num-speculative-tokens", "4")
        assert out["token_ids"] == want and out["metrics"]["num_drafts"] > 0, out["metrics"]


@case
def those_of_four_too():
    """With connections between other ranks than rank 0."""
    want = generate("--prompt", "def fibonacci(n):", *TOKENS, *TP4, "--ignore-eos")["token_ids"]
    with serving(4, *TP4) as (s, g):
        assert s.generate(*TOKENS)["token_ids"] == want
        assert "4 of them on this host" in g.said(0), g.said(0)


@case
def a_killed_process_ends_the_group_which_meets_again():
    with serving(2) as (s, g):
        want = s.generate(*TOKENS)["token_ids"]
        for which in (1, 0):
            old = [g.worker(r) for r in range(2)]
            os.kill(old[which], signal.SIGKILL)  # while nobody computes
            wait_for(lambda: not any(alive(pid) for pid in old))
            if which == 1:
                assert "rank 1 of 2 on host " in g.said(0) and " is gone: the tensor-parallel group ends" in g.said(0)
            wait_for(lambda: g.said(0).count("have met") == (2 if which == 1 else 3))
            assert s.generate(*TOKENS)["token_ids"] == want
        turn = s.start(tokens=ENDLESS)
        s.wait_running()
        worker = g.worker(1)
        assert worker, g.said(1)
        os.kill(worker, signal.SIGKILL)  # in a pass
        running_again(s.sessions)
        assert closed(s, turn)["metrics"]["reopens"] == 1


@case
def a_group_is_told_to_end_as_a_whole():
    with serving(2) as (s, g):
        s.generate(*TOKENS)
        g.p[1].send_signal(signal.SIGTERM)  # as a launcher does, to all of them
        g.p[0].send_signal(signal.SIGTERM)
        assert [p.wait(20 * SLOW) for p in g.p] == [0, 0], g.said(0) + g.said(1)
        assert "is gone" not in g.said(0), g.said(0)


@case
def who_does_not_belong_is_refused():
    host = socket.gethostname()[:60]
    folder = Folder()
    with Group(folder, "127.0.0.1:1", 2, *TP4, of=(0,)) as g:
        wait_for(lambda: "waits for the others at" in g.said(0))
        cases = ((("-tp", "4", "--tp-rank", "1", *TP4), f"rank 1 on host {host} is of a group of 4"),
                 (("-tp", "2", "--tp-rank", "1", *TP4, "--sessions", "3"), f"rank 1 on host {host} runs a model of"),
                 (("-tp", "2", "--tp-rank", "1"), f"; rank 0 on host {host}: a model of"),
                 (("-tp", "8", "--tp-rank", "1"), "give at most"),
                 (("-tp", "2", "--tp-rank", "2"), "a group of 2 has ranks 0 to 1"),
                 (("--tp-rank", "1"), "of how many processes?"),
                 (("-tp", "2", "--tp-rank", "1", "--tp-transport", "peer"), "sums go over NCCL"))
        for args, line in cases:
            g.start(*args)
            assert g.p[-1].wait(20 * SLOW) in (1, 2), g.said(-1)
            assert line in g.said(-1), (line, g.said(-1))
        assert g.said(0).count("refused: rank 1 on host") == 3 and alive(g.worker(0)), g.said(0)


@case
def other_weights_of_the_same_sizes_are_seen():
    with tempfile.TemporaryDirectory() as folder:
        other = shutil.copytree(TARGET, os.path.join(folder, "target"))
        with open(os.path.join(other, "model-00001-of-00002.safetensors"), "r+b") as f:
            (header,) = struct.unpack("<Q", f.read(8))
            f.seek(8 + header)
            data = bytearray(f.read())
            data[::2] = data[2::2] + data[:1]  # low halves of bf16, each its neighbour's
            f.seek(8 + header)
            f.write(data)
        with Group(Folder(), "127.0.0.1:1", 2, of=(0,)) as g:
            g.start("-tp", "2", "--tp-rank", "1", model=other)
            assert g.p[1].wait(20 * SLOW) in (1, 2), g.said(1)
            assert "tensor-parallel rank 1 has another model (its weights differ) than rank 0" in g.said(1), g.said(1)


@case
def a_stranger_without_the_key_is_no_member():
    with Group(Folder(), "127.0.0.1:1", 2, of=(0,)) as g:
        wait_for(lambda: "waits for the others at" in g.said(0))
        g.folder = Folder()
        g.start("-tp", "2", "--tp-rank", "1")
        assert g.p[-1].wait(20 * SLOW) != 0
        assert "key" in g.said(-1), g.said(-1)
        assert "has come" not in g.said(0), g.said(0)


# ---- as ranks of a job ----

@contextlib.contextmanager
def job(n, *args, plan=None, command=()):
    """`graft launch' of n ranks by the variables of torchrun; yields its processes and what each has said so far."""
    with tempfile.TemporaryDirectory() as folder:
        if plan is not None:
            args += ("--plan", os.path.join(folder, "plan.yaml"))
            with open(args[-1], "w", encoding="utf-8") as f:
                f.write(plan)
        meets = f"127.0.0.1:{free_port()}"
        ranks, err = [], [tempfile.TemporaryFile("w+") for _ in range(n)]
        for r in range(n):
            env = {k: v for k, v in os.environ.items() if not k.startswith(("GRAFT_", "SLURM", "OMPI_", "PMI"))}
            env.update(RANK=str(r), WORLD_SIZE=str(n), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(n), GRAFT_KEY="ab" * 32,
                       GRAFT_LOG="info")
            ranks.append(subprocess.Popen([GRAFT, "launch", "--rendezvous", meets, "--model", TARGET, "--threads", "1",
                                           "--draft-threads", "1", *args, *(("--", *command) if command else ())],
                                          stdout=subprocess.PIPE, stderr=err[r], text=True, env=env,
                                          stdin=subprocess.DEVNULL))

        def said(r):
            err[r].seek(0)
            return err[r].read()
        try:
            yield ranks, said
        finally:
            for p in ranks:
                if p.poll() is None:
                    p.kill()
                p.communicate()
            for f in err:
                f.close()


def end_of(ranks, said):
    out = ranks[0].communicate(timeout=60 * SLOW)[0]
    assert [p.wait(20 * SLOW) for p in ranks] == [0] * len(ranks), "".join(said(r)[-1500:] for r in range(len(ranks)))
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def asked(said, *words):
    """What a client of the job's orchestrator prints."""
    port = re.search(r"orchestrator at port (\d+)", said(0)).group(1)
    return subprocess.run([GRAFT, *words], env=dict(os.environ, GRAFT_KEY="ab" * 32, GRAFT_CONNECT=f"127.0.0.1:{port}"),
                          capture_output=True, text=True, timeout=60 * SLOW, check=True).stdout


TURN = (GRAFT, "run", "--json", "--model", TARGET, "--prompt", "def fibonacci(n):", "--ignore-eos")


@case
def a_job_has_a_target_of_two_ranks():
    want = generate("--prompt", "def fibonacci(n):", *TOKENS, "--ignore-eos")["token_ids"]
    with job(4, "--roles", "serve:1,draft:1,target:2", "-tp", "2", "--tp-over-hosts", "--draft", DRAFT,
             command=(*TURN, *TOKENS, "--num-speculative-tokens", "4")) as (ranks, said):
        out = end_of(ranks, said)
        assert out["token_ids"] == want and out["metrics"]["num_drafts"] > 0, out["metrics"]
        assert "target, 1 of the 2 that rank 2 leads" in said(3), said(3)


@case
def a_plan_says_so_too_and_a_killed_worker_comes_back():
    """The text goes on, at the port that the group has had before, until it is closed."""
    want = generate("--prompt", "def fibonacci(n):", *TOKENS, "--ignore-eos")["token_ids"]
    plan = f"targets:\n- {{tp: 2, hosts: {socket.gethostname()}}}\n"
    until_closed = ("sh", "-c", '"$@"; test $? = 1', "sh", *TURN, "--max-tokens", str(ENDLESS))
    with job(3, plan=plan, command=until_closed) as (ranks, said):
        def sessions():
            return json.loads(asked(said, "session", "list", "--json"))["sessions"]
        wait_for(lambda: "all 3 roles are up" in said(0), 60)
        (pid, _), = children(children(ranks[2].pid)[0][0])
        begin = busy(pid)
        wait_for(lambda: busy(pid) >= begin + 20)  # rounds go on
        os.kill(pid, signal.SIGKILL)
        running_again(sessions)
        asked(said, "session", "close", sessions()[0]["id"])
        out = end_of(ranks, said)
        assert out["finish_reason"] == "closed" and out["metrics"]["reopens"] == 1, out["metrics"]
        assert out["token_ids"][:len(want)] == want, out["token_ids"][:len(want)]
        assert said(1).count("have met") == 2, said(1)


@case
def a_lost_rank_ends_its_target_and_the_job():
    with job(3, "--roles", "serve:1,target:2", "-tp", "2", "--tp-over-hosts") as (ranks, said):
        wait_for(lambda: "all 3 roles are up" in said(0), 60)
        ranks[2].kill()
        assert ranks[0].wait(30 * SLOW) == 1 and ranks[1].wait(30 * SLOW) == 0, said(0) + said(1)
        assert "rank 2 (target) on host" in said(0) and "no target is left" in said(0), said(0)


@case
def jobs_that_cannot_be():
    for args, plan, line in (
            (("--roles", "serve:1,target:3", "-tp", "2", "--tp-over-hosts"), None, "3 target ranks cannot be groups of 2"),
            (("--roles", "serve:1,target:2", "--tp-over-hosts"), None, "of how many ranks is a target?"),
            ((), "targets:\n- {tp: 4, hosts: 'a,b,c'}\n", "hosts a,b,c: 4 ranks cannot be shared out evenly"),
            ((), "targets:\n- {tp: 2, hosts: 'a,b', host: c}\n", "one of them is enough"),
            ((), "targets:\n- {hosts: 'a,b'}\n", "has to be several ranks"),
            (("--config", os.path.join(ROOT, "examples/cluster/plan-2.yaml")), "targets:\n- {count: 2}\n", "both have lists of workers"),
            ((), "targets:\n- {tp: 2, hosts: 'nowhere-a,nowhere-b'}\n", "puts this target on host nowhere-a")):
        with job(3, *args, plan=plan) as (ranks, said):
            assert ranks[1].wait(20 * SLOW) != 0
            assert line in said(1), (line, said(1))


if __name__ == "__main__":
    sys.exit(main())
