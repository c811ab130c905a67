#!/usr/bin/env python3
"""The cases that run in the machine of rdma-vm; test_rdma.py boots it once for all of them.

usage: in_machine.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
from harness import BUILD, SLOW, case, main, wait_for  # noqa: E402  pylint: disable=wrong-import-position,unused-import

ADDRESS = ("10.77.0.1", "10.77.0.2")
PERFTEST_PORT = 18515


def output(*argv, timeout=60):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout * SLOW, check=False)
    assert done.returncode == 0, (argv, done.returncode, done.stdout, done.stderr)
    return done.stdout


def packets(i):
    """Packets that device i has put on the wire."""
    with open(f"/sys/class/net/veth{i}/statistics/tx_packets", encoding="utf-8") as f:
        return int(f.read())


def port_state(i):
    with open(f"/sys/class/infiniband/rxe{i}/ports/1/state", encoding="utf-8") as f:
        return f.read().split()[-1]


def link_down(i):
    output("ip", "link", "set", f"veth{i}", "down")


def link_up(i):
    output("sh", "/run/rdma-vm-pair", "up", str(i))


def tcp_listens(port):
    """Somebody listens on the port, of any address and family."""
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="utf-8") as f:
            for fields in (line.split() for line in f.readlines()[1:]):
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    return True
    return False


def rdma_listens():
    return "state LISTEN" in output("rdma", "resource", "show", "cm_id")


class Server:
    """A program that waits for a client; it must end well by itself."""

    def __init__(self, *argv, ready):
        self.argv = argv
        self.p = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: ready() or self.p.poll() is not None)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.p.kill()
        out = self.p.communicate(timeout=60 * SLOW)[0]
        assert kind is not None or self.p.returncode == 0, (self.argv, self.p.returncode, out)


def perftest(name, size, n):
    """Median one-way time (half of a round trip) in microseconds, by ib_send_lat or ib_write_lat."""
    args = ["-x", "1", "-s", str(size), "-n", str(n), "-F"]
    with Server(name, "-d", "rxe0", *args, ready=lambda: tcp_listens(PERFTEST_PORT)):
        out = output(name, "-d", "rxe1", *args, ADDRESS[0])
    rows = [line.split() for line in out.splitlines() if line.split()[:2] == [str(size), str(n)]]
    assert len(rows) == 1, out
    return float(rows[0][4])


def udp_passes(seconds):
    """A datagram from the first device reaches the second."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there, \
         socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        there.bind((ADDRESS[1], 0))
        there.settimeout(seconds * SLOW)
        here.bind((ADDRESS[0], 0))
        here.sendto(b"x", there.getsockname())
        try:
            return there.recv(16) == b"x"
        except socket.timeout:
            return False


# ---- the machine itself ----

@case
def two_devices_with_addresses():
    listed = [line.split()[0] for line in output("ibv_devices").splitlines()[2:]]
    assert listed == ["rxe0", "rxe1"], listed
    for i in (0, 1):
        assert port_state(i) == "ACTIVE"
        with open(f"/sys/class/infiniband/rxe{i}/ports/1/gids/1", encoding="utf-8") as f:
            assert f.read().strip().endswith(f"ffff:0a4d:000{i + 1}")  # the IPv4 one


@case
def rdma_cm_connects_both_ways():
    for server, client in ((0, 1), (1, 0)):
        before = packets(0), packets(1)
        with Server("rping", "-s", "-C", "8", "-a", ADDRESS[server], ready=rdma_listens):
            out = output("rping", "-c", "-v", "-C", "8", "-I", ADDRESS[client], "-a", ADDRESS[server])
        assert out.count("ping data: rdma-ping-") == 8, out
        assert packets(0) >= before[0] + 8 and packets(1) >= before[1] + 8


@case
def sends_go_over_the_wire():
    before = packets(0), packets(1)
    assert perftest("ib_send_lat", 64, 200) > 0
    assert packets(0) >= before[0] + 200 and packets(1) >= before[1] + 200, (before, packets(0), packets(1))


@case
def packets_can_be_lost():
    assert udp_passes(10)
    output("tc", "qdisc", "add", "dev", "veth0", "root", "netem", "loss", "100%")
    try:
        assert not udp_passes(0.2)
    finally:
        output("tc", "qdisc", "del", "dev", "veth0", "root")
    assert udp_passes(10)


@case
def links_go_down_and_come_back():
    for i in (0, 1):
        link_down(i)
        wait_for(lambda i=i: port_state(i) == "DOWN")
        link_up(i)
        wait_for(lambda i=i: port_state(i) == "ACTIVE")
    assert udp_passes(10)
    before = packets(0)
    with Server("rping", "-s", "-C", "2", "-a", ADDRESS[1], ready=rdma_listens):
        output("rping", "-c", "-C", "2", "-I", ADDRESS[0], "-a", ADDRESS[1])
    assert packets(0) > before


if __name__ == "__main__":
    sys.exit(main())
