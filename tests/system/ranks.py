"""What the tests of groups share, whether their ranks compute on CPUs or on GPUs."""
import json
import os
import signal
import time

from harness import ROOT, Running, alive, children, run, wait_busy, wait_for

SHARED = next((d for d in (os.environ.get("GRAFT_SHARED", ""), os.path.join(ROOT, "shared"),
                           os.path.join(os.path.dirname(ROOT), "shared")) if os.path.isdir(d)), "")
LLAMA31 = os.path.join(SHARED, "models/tiny-gpu/llama31")  # eight KV heads, and no tokenizer


def ranks_of(target):
    """The other ranks of a target's group."""
    return [pid for pid, _ in children(target)]


def wait_for_ranks(r, n, seconds=60):
    """The target of a run, when its group is whole and computes."""
    target = r.child("graft-target")
    wait_for(lambda: len(ranks_of(target)) == n - 1 and "calibrated" in r.said(), seconds)
    wait_busy(target, 15)
    return target


def interrupt_a_run(args, n, seconds=20):
    """SIGINT to a run whose target is a group of n: nobody is left, and no rank takes another's end for a loss."""
    r = Running(*args, tokens=3000, log="info")
    target = wait_for_ranks(r, n, seconds)
    ranks = ranks_of(target)
    r.p.send_signal(signal.SIGINT)
    status, _, said = r.end()
    assert status == 128 + signal.SIGINT, said
    wait_for(lambda: not any(alive(pid) for pid in (target, *ranks)))
    assert "error: rank" not in said and "is gone" not in said, said


def stop_a_rank(args, tokens, limit, want, seconds=20):
    """SIGSTOP to one of two ranks, which then neither computes nor dies: its group ends within the limit. A late
    SIGCONT finds nobody, so nothing of that life can come into the text. Returns what was said, and the seconds."""
    r = Running(*args, "-tp", "2", "--rank-timeout", limit, tokens=tokens, log="info")
    target = wait_for_ranks(r, 2, seconds)
    rank = ranks_of(target)[0]
    begin = time.monotonic()
    os.kill(rank, signal.SIGSTOP)
    wait_for(lambda: not alive(target) and not alive(rank), 60)
    took = time.monotonic() - begin
    gone = False
    try:
        os.kill(rank, signal.SIGCONT)
    except ProcessLookupError:
        gone = True
    status, out, said = r.end(600)
    assert status == 0 and (gone or not alive(rank)), said
    assert json.loads(out)["token_ids"] == want, said
    return said, took


def texts_of_llama31(of_group, sizes, n_token):
    """Ids that the model with eight KV heads gives on one rank and on more. of_group(n): options of n ranks. Where the
    folder is not there, a line says so."""
    if not os.path.isdir(LLAMA31):
        print("# SKIP llama31: there is no folder models/tiny-gpu/llama31 below GRAFT_SHARED or shared/", flush=True)
        return

    def ids(n):
        done = run("run", "--json", "--model", LLAMA31, "--prompt-ids", "-", "--ignore-eos", "--max-tokens", str(n_token),
                   *of_group(n), timeout=300, stdin=json.dumps([1 + 37 * i % 380 for i in range(40)]))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["token_ids"]
    want = ids(1)
    assert len(want) == n_token
    for n in sizes:
        assert ids(n) == want, n
