"""Hosts whose packets go through this process, which delays them and loses some: network namespaces that have a TUN device each,
where a kernel has no netem. They need root, iproute2 and /dev/net/tun."""
import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time

from hosts import Host, Net, ip, missing as no_hosts

NET = "10.91.8"
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000


def missing():
    """None, or why there can be none here."""
    return no_hosts() or (None if os.access("/dev/net/tun", os.W_OK) else "no /dev/net/tun")


def open_tun(space):
    """A descriptor that carries the packets of tun0 in this namespace; a thread of its own enters it."""
    fds = []

    def run():
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{space}", "rb") as netns:
            if libc.setns(netns.fileno(), CLONE_NEWNET) == 0:
                fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
                fds.append(fd)
    t = threading.Thread(target=run)
    t.start()
    t.join()
    assert fds, f"no tun0 in {space}"
    return fds[0]


class SlowHost(Host):
    def __init__(self, net, number, name):  # pylint: disable=super-init-not-called
        self.name, self.net, self.space = name, net, f"{net.space}-{number}"
        self.four, self.six, self.started = f"{NET}.{number}", None, []
        ip("netns", "add", self.space)
        self.fd = open_tun(self.space)
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{self.four}/24", "dev", "tun0")
        self.ip("link", "set", "tun0", "up")


class SlowNet(Net):
    """delay_s: each way. loss: of each packet, its chance to be lost."""

    def __init__(self, tag, delay_s, loss):
        super().__init__(tag)
        self.delay_s, self.loss, self.rng = delay_s, loss, random.Random(7)
        self.n_sent = self.n_lost = 0
        self.narrow, self.n_hole = {}, 0  # (from, to) -> bytes of a packet: larger ones vanish, and nobody is told
        self.way, self.ended = {}, False  # address -> descriptor
        self.thread = threading.Thread(target=self.run)

    def host(self, name):
        h = SlowHost(self, len(self.hosts) + 1, name)
        self.hosts.append(h)
        self.way[socket.inet_aton(h.four)] = h.fd
        return h

    def make_hole(self, a, b, n_bytes):
        """Of the packets between these two hosts those of more bytes get lost, as behind a router that must not say so."""
        for ends in ((a, b), (b, a)):
            self.narrow[tuple(socket.inet_aton(h.four) for h in ends)] = n_bytes

    def falls_in(self, packet):
        most = self.narrow.get((packet[12:16], packet[16:20]))
        if most is None or len(packet) <= most:
            return False
        self.n_hole += 1
        return True

    def take(self, fd, waiting):
        try:
            packet = os.read(fd, 65536)
        except BlockingIOError:
            return
        to = self.way.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if to is None or self.falls_in(packet):
            return
        self.n_sent += 1
        if self.rng.random() < self.loss:
            self.n_lost += 1
        else:
            heapq.heappush(waiting, (time.monotonic() + self.delay_s, self.n_sent, to, packet))

    def run(self):
        waiting = []
        while not self.ended:
            limit = max(0, min(0.1, waiting[0][0] - time.monotonic())) if waiting else 0.1
            for fd in select.select(list(self.way.values()), [], [], limit)[0]:
                self.take(fd, waiting)
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):  # its queue is full: one more that is lost
                    os.write(to, packet)

    def close(self):
        self.ended = True
        if self.thread.is_alive():
            self.thread.join()
        for fd in self.way.values():
            os.close(fd)
        super().close()


@contextlib.contextmanager
def slow_hosts(tag, *names, delay_s, loss):
    net = SlowNet(tag, delay_s, loss)
    try:
        made = [net.host(name) for name in names]
        net.thread.start()
        yield net, made
    finally:
        net.close()
