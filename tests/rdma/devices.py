"""The two devices of the machine: what they count, links, programs that talk over them."""
import os
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
from harness import SLOW, wait_for  # noqa: E402  pylint: disable=wrong-import-position

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


def rnr():
    """How often a receiver of either device was not ready, as both ends have counted."""
    n = 0
    for i in (0, 1):
        for name in ("send_rnr_err", "rcvd_rnr_err"):
            with open(f"/sys/class/infiniband/rxe{i}/ports/1/hw_counters/{name}", encoding="utf-8") as f:
                n += int(f.read())
    return n


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


def perftest_argv(name, size, n):
    """The server's and the client's."""
    args = ["-x", "1", "-s", str(size), "-n", str(n), "-F"]
    return [name, "-d", "rxe0", *args], [name, "-d", "rxe1", *args, ADDRESS[0]]


def perftest_ready():
    return tcp_listens(PERFTEST_PORT)


def perftest_median(out, size, n):
    """Median one-way time (half of a round trip) in microseconds, of what ib_send_lat or ib_write_lat printed."""
    rows = [line.split() for line in out.splitlines() if line.split()[:2] == [str(size), str(n)]]
    assert len(rows) == 1, out
    return float(rows[0][4])


def perftest(name, size, n):
    far, near = perftest_argv(name, size, n)
    with Server(*far, ready=perftest_ready):
        return perftest_median(output(*near), size, n)


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
