#!/usr/bin/env python3
"""graft-bench transport beside ib_send_lat and ib_write_lat, on the two devices of the machine of rdma-vm.

usage: rdma-vm [--write BUILD_DIR] -- python3 against_perftest.py BUILD_DIR SOURCE_ROOT [TRANSPORT [ROUNDS]]

Both poll without a pause and show RTT/2. They are there at the same time and take turns of 30 ms, the other one
stopped: under emulation times mean nothing and change from one second to the next, ratios of medians over the same
seconds do. A frame that graft sends carries its own header and credits; perftest's is the bare payload.
"""
import json
import os
import secrets
import signal
import subprocess
import sys

from devices import ADDRESS, Server, packets, perftest_argv, perftest_median, perftest_ready, tcp_listens
from harness import BUILD, SLOW

N_PING = {64: 8000, 1024: 6000, 8192: 1500}  # about half a second each
N_WARMUP, PORT, TURN_S = 50, 5066, 0.03


def bench_argv(transport, *args):
    """Both ends of `graft-bench transport`. Each is told its device as NCCL's users do."""
    bench = os.path.join(BUILD, "graft-bench")
    os.environ["GRAFT_KEY"] = secrets.token_hex(32)
    far = ["env", "NCCL_IB_HCA=rxe1", bench, "transport", "--listen", f"{ADDRESS[1]}:{PORT}"]
    near = ["env", "NCCL_IB_HCA=rxe0", bench, "transport", "--peer", f"{ADDRESS[1]}:{PORT}", "--transport", transport,
            "--json", *args]
    return far, near


def bench_server(far):
    return Server(*far, ready=lambda: tcp_listens(PORT))


def bench_said(transport, *args):
    """Rows, and what the near end has said."""
    far, near = bench_argv(transport, *args)
    with bench_server(far):
        done = subprocess.run(near, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"], done.stderr


def bench_rows(transport, *args):
    return bench_said(transport, *args)[0]


def signal_all(processes, number):
    for p in processes:
        if p.poll() is None:
            p.send_signal(number)


def in_turns(pairs):
    """Lets pairs of (server, client) run one at a time until the first client has ended, then all that are left."""
    turn = 0
    while all(client.poll() is None for _, client in pairs):
        for pair in pairs:
            signal_all(pair, signal.SIGCONT if pair is pairs[turn] else signal.SIGSTOP)
        try:
            pairs[turn][1].wait(TURN_S * SLOW)
        except subprocess.TimeoutExpired:
            pass
        turn = (turn + 1) % len(pairs)
    for pair in pairs:
        signal_all(pair, signal.SIGCONT)


def beside(transport, other, size):
    """Medians of RTT/2 in microseconds: graft's and the other's."""
    n = N_PING[size]
    far, near = bench_argv(transport, "--tests", "ping", "--sizes", str(size), "--iters", str(n), "--warmup",
                           str(N_WARMUP), "--busy")
    other_far, other_near = perftest_argv(other, size, n)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server(far) as s, Server(*other_far, ready=perftest_ready) as other_s, \
         subprocess.Popen(near, **pipes) as p, subprocess.Popen(other_near, **pipes) as other_p:
        in_turns([(s.p, p), (other_s.p, other_p)])
        out, other_out = p.communicate(timeout=100 * SLOW), other_p.communicate(timeout=100 * SLOW)
        assert p.returncode == 0 and other_p.returncode == 0, (out, other_out)
    ours = next(r["median_us"] for r in json.loads(out[0])["rows"] if r["test"] == "ping")
    return ours, perftest_median(other_out[0], size, n)


def main(transport="verbs", n_round="3"):
    before = packets(0), packets(1)
    print(f"# RTT/2 in us, the middle one of {n_round} rounds")
    print(f"| bytes | other | {transport} | other | ratio | ratios |")
    print("|---:|---|---:|---:|---:|---|")
    for size in N_PING:
        for other in ("ib_send_lat", "ib_write_lat"):
            rounds = sorted((beside(transport, other, size) for _ in range(int(n_round))), key=lambda r: r[0] / r[1])
            ours, theirs = rounds[len(rounds) // 2]
            print(f"| {size} | {other} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} | "
                  f"{' '.join(f'{a / b:.2f}' for a, b in rounds)} |", flush=True)
    print(f"# {packets(0) - before[0]} and {packets(1) - before[1]} packets on the wire")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[3:5]))
