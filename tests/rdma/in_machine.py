#!/usr/bin/env python3
"""The cases that run in the machine of rdma-vm; test_rdma.py boots it once for all of them.

usage: in_machine.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
from harness import BUILD, ROOT, SLOW, case, children, main, wait_for  # noqa: E402  pylint: disable=wrong-import-position,unused-import

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


# ---- the transport ----

def tap_program(name, timeout=300, **env):
    """Runs a test program on the two devices; every case of it must pass, and none be skipped."""
    done = subprocess.run([os.path.join(BUILD, "tests/transport", name)], capture_output=True, text=True, check=False,
                          timeout=timeout * SLOW,
                          env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", GRAFT_TEST_VERBS="rxe0,rxe1", **env))
    failed = [line for line in done.stdout.splitlines() if line.startswith("not ok") or "# SKIP" in line]
    n_ok = len(re.findall(r"^ok ", done.stdout, re.M))
    print(f"# {name} {' '.join(env)}: {n_ok} cases", flush=True)
    assert done.returncode == 0 and not failed, (done.returncode, failed, done.stdout[-3000:], done.stderr[-3000:])
    return n_ok


@case
def every_rule_of_a_transport_holds():
    before = packets(0), packets(1)
    assert tap_program("test_conformance") > 10
    assert packets(0) > before[0] + 100 and packets(1) > before[1] + 100


@case
def every_rule_holds_without_remote_writes():
    assert tap_program("test_conformance", GRAFT_TEST_VERBS_TWO_SIDED="1") > 10


@case
def every_fault_is_survived():
    assert tap_program("test_verbs_faults") > 8


# ---- the pair ----

def golden(i):
    with open(os.path.join(ROOT, "tests/golden/demo-greedy.json"), encoding="utf-8") as f:
        return json.load(f)["cases"][i]


DEVICES = ("--transport", "verbs", "--require-rdma", "--target-ib-hca", "rxe0", "--draft-ib-hca", "rxe1")


def graft_run(prompt_ids, *args, head="eagle3", n_token=32, on_start=lambda p: None):
    """The pair over the wire between the two devices. Its JSON and what it said."""
    argv = [os.path.join(BUILD, "graft"), "run", "--json", "--model", os.path.join(ROOT, "models/demo/target"),
            "--draft", os.path.join(ROOT, "models/demo", head), "--prompt-ids", "-", "--max-tokens", str(n_token),
            "--ignore-eos", "--num-speculative-tokens", "4", *DEVICES, *args]
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdin.write(json.dumps(prompt_ids))
    p.stdin.close()
    p.stdin = None
    on_start(p)
    out, err = p.communicate(timeout=300 * SLOW)
    assert p.returncode == 0, (p.returncode, err[-3000:])
    return json.loads(out), err


@case
def golden_tokens_over_the_wire():
    for i, (head, args) in enumerate((("eagle3", ()), ("draft", ("--verbs-mode", "two_sided")))):
        g = golden(i)
        before = packets(0), packets(1)
        out, _ = graft_run(g["prompt_ids"], *args, head=head)
        m = out["metrics"]
        sent = packets(0) - before[0], packets(1) - before[1]
        print(f"# {head}: {m['num_drafts']} drafts, {m['mean_acceptance_length']:.2f} tokens a draft, {sent[0]} and "
              f"{sent[1]} packets", flush=True)
        assert out["token_ids"] == g["greedy_ids"][:32], out
        assert m["transport"] == "verbs" and m["num_drafts"] > 0 and m["root_only_rounds"] < m["rounds"]
        assert sent[0] >= m["num_drafts"] and sent[1] >= m["num_drafts"]


@case
def killed_workers_change_no_text():
    g = golden(2)
    for name in ("graft-draft", "graft-target"):
        def kill(p, name=name):
            before = packets(0)
            wait_for(lambda: packets(0) > before + 20 or p.poll() is not None, 120)
            os.kill(next(pid for pid, cmd in children(p.pid) if cmd.endswith(name)), signal.SIGKILL)

        out, err = graft_run(g["prompt_ids"], n_token=64, on_start=kill)
        assert out["token_ids"] == g["greedy_ids"][:64], (name, out)
        assert "worker was killed by signal 9" in err, err[-2000:]


@case
def links_that_fail_change_no_text():
    g = golden(3)

    def drop(p):
        before = packets(0)
        wait_for(lambda: packets(0) > before + 20 or p.poll() is not None, 120)
        link_down(1)
        wait_for(lambda: port_state(1) == "DOWN")
        link_up(1)

    out, _ = graft_run(g["prompt_ids"], n_token=64, on_start=drop)
    assert out["token_ids"] == g["greedy_ids"][:64], out


@case
def no_receiver_was_ever_unready():
    """Of all that ran before: credits, not RNR, hold senders back. Devices that went away took their counts along."""
    print(f"# receiver not ready: {rnr()} times", flush=True)
    assert rnr() == 0


if __name__ == "__main__":
    sys.exit(main())
