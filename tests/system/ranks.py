"""What the tests of groups share, whether their ranks compute on CPUs or on GPUs."""
import signal

from harness import Running, alive, children, wait_for


def ranks_of(target):
    """The other ranks of a target's group."""
    return [pid for pid, _ in children(target)]


def wait_for_ranks(r, n, seconds=20):
    """The target of a run, when its group is whole and computes."""
    target = r.child("graft-target")
    wait_for(lambda: len(ranks_of(target)) == n - 1 and "calibrated" in r.said(), seconds)
    r.wait_busy(target, 15)
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
