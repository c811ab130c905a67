#!/usr/bin/env python3
"""graft-bench transport beside ib_send_lat and ib_write_lat, on the two devices of the machine of rdma-vm.

usage: rdma-vm [--write BUILD_DIR] -- python3 against_perftest.py BUILD_DIR SOURCE_ROOT [TRANSPORT [ROUNDS]]

All poll without a pause and show RTT/2. The three take turns, ROUNDS times, and medians of their medians are
compared, so that a slow moment of the host hits all alike: times mean nothing under emulation, ratios do. A frame that
graft sends carries its own header and credits; perftest's is the bare payload.
"""
import json
import os
import secrets
import statistics
import subprocess
import sys

from devices import ADDRESS, Server, packets, perftest, tcp_listens
from harness import BUILD

SIZES = (64, 1024, 8192)
N, N_WARMUP, PORT = 300, 50, 5066


def bench_rows(transport, *args):
    """What `graft-bench transport` prints. Each end is told its device as NCCL's users do."""
    bench = os.path.join(BUILD, "graft-bench")
    os.environ["GRAFT_KEY"] = secrets.token_hex(32)
    far = ["env", "NCCL_IB_HCA=rxe1", bench, "transport", "--listen", f"{ADDRESS[1]}:{PORT}"]
    near = ["env", "NCCL_IB_HCA=rxe0", bench, "transport", "--peer", f"{ADDRESS[1]}:{PORT}", "--transport", transport,
            "--json", *args]
    with Server(*far, ready=lambda: tcp_listens(PORT)):
        done = subprocess.run(near, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def graft(transport):
    """Median RTT/2 in microseconds by size."""
    rows = bench_rows(transport, "--sizes", ",".join(map(str, SIZES)), "--iters", str(N), "--warmup", str(N_WARMUP),
                      "--busy")
    return {r["bytes"]: r["median_us"] for r in rows if r["test"] == "ping"}


def measure(transport, n_round, others=("ib_send_lat", "ib_write_lat"), times=None):
    """By size: medians over the rounds of graft and the others. times: those of calls before, kept by the caller."""
    times = {} if times is None else times
    for _ in range(n_round):
        ours = graft(transport)
        for size in SIZES:
            columns = times.setdefault(size, tuple([] for _ in range(1 + len(others))))
            for column, value in zip(columns, (ours[size], *(perftest(name, size, N) for name in others))):
                column.append(value)
    return {size: tuple(statistics.median(c) for c in columns) for size, columns in times.items()}


def main(transport="verbs", n_round="3"):
    before = packets(0), packets(1)
    result = measure(transport, int(n_round))
    sent = [packets(i) - before[i] for i in (0, 1)]
    print(f"# RTT/2 in us, medians of {n_round}; {sent[0]} and {sent[1]} packets on the wire")
    print(f"| bytes | {transport} | ib_send_lat | ib_write_lat | {transport} / ib_send_lat |")
    print("|---:|---:|---:|---:|---:|")
    for size, (ours, send, write) in result.items():
        print(f"| {size} | {ours:.1f} | {send:.1f} | {write:.1f} | {ours / send:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[3:5]))
