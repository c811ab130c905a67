"""Hosts of their own for the system tests: network namespaces on one bridge, each with an address of both families, its
own loopback, host name and /dev/shm. They need root and iproute2: whoever has neither skips what uses them."""
import contextlib
import os
import shutil
import subprocess
import tempfile

NET = "10.91.7"
NET6 = "fd91:7"


def ip(*args, check=True):
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


def missing():
    """None, or why there can be no hosts here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not all(shutil.which(x) for x in ("ip", "unshare", "mount")):
        return "no iproute2 or no unshare"
    name = f"graft-try-{os.getpid()}"
    made = ip("netns", "add", name, check=False)
    if made.returncode == 0:
        made = ip("-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1", check=False)
        ip("netns", "del", name, check=False)
    return None if made.returncode == 0 else made.stderr.strip()


class Host:
    """name: as `hostname` says it there; number: of its addresses."""

    def __init__(self, net, number, name):
        self.name, self.net, self.space = name, net, f"{net.space}-{number}"
        self.four, self.six = f"{NET}.{number}", f"{NET6}::{number}"
        self.started = []
        ip("netns", "add", self.space)
        ip("-n", net.space, "link", "add", f"h{number}", "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("-n", net.space, "link", "set", f"h{number}", "master", "br0", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{self.four}/24", "dev", "eth0")
        self.ip("address", "add", f"{self.six}/64", "dev", "eth0", "nodad")
        self.ip("link", "set", "eth0", "up")

    def ip(self, *args):
        return ip("-n", self.space, *args)

    def add_docker(self):
        """The bridge that each host with Docker has under one and the same address."""
        self.ip("link", "add", "docker0", "type", "bridge")
        self.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
        self.ip("link", "set", "docker0", "up")

    def add_network(self, interface, four, six):
        """One more cable to the net's bridge, in subnets of its own or of another."""
        port = f"{interface}-{self.space[-1]}"
        ip("-n", self.net.space, "link", "add", port, "type", "veth", "peer", "name", interface, "netns", self.space)
        ip("-n", self.net.space, "link", "set", port, "master", "br0", "up")
        self.ip("address", "add", f"{four}/24", "dev", interface)
        self.ip("address", "add", f"{six}/64", "dev", interface, "nodad")
        self.ip("link", "set", interface, "up")

    def command(self, *args, names=()):
        """A command line that runs args on this host. names: lines of its /etc/hosts beside loopback's."""
        steps = ["mount -t tmpfs none /dev/shm", f"hostname {self.name}"]
        if names:
            path = os.path.join(self.net.dir.name, f"hosts-{self.name}-{len(self.started)}")
            with open(path, "w", encoding="utf-8") as f:
                f.write("127.0.0.1 localhost\n::1 localhost\n" + "".join(line + "\n" for line in names))
            steps.append(f"mount --bind {path} /etc/hosts")
        return ["ip", "netns", "exec", self.space, "unshare", "--mount", "--uts", "--kill-child", "sh", "-c",
                " && ".join(steps) + ' && exec "$@"', "sh", *args]

    def start(self, *args, log, names=(), env=None):
        with open(log, "a", encoding="utf-8") as f:
            p = subprocess.Popen(self.command(*args, names=names), stdout=subprocess.DEVNULL, stderr=f, env=env)
        self.started.append(p)
        return p

    def run(self, *args, names=(), env=None, timeout=60):
        return subprocess.run(self.command(*args, names=names), capture_output=True, text=True, timeout=timeout,
                              env=env)


class Net:
    def __init__(self, tag):
        self.space = f"graft-{os.getpid()}-{tag}"
        self.dir = tempfile.TemporaryDirectory()
        self.hosts = []
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "add", "br0", "type", "bridge")
        ip("-n", self.space, "link", "set", "br0", "up")

    def host(self, name):
        self.hosts.append(Host(self, len(self.hosts) + 1, name))
        return self.hosts[-1]

    def close(self):
        for h in self.hosts:
            for p in h.started:
                if p.poll() is None:
                    p.kill()
                p.wait()
        for h in self.hosts:
            ip("netns", "del", h.space, check=False)
        ip("netns", "del", self.space, check=False)
        self.dir.cleanup()


@contextlib.contextmanager
def hosts(tag, *names):
    """As many hosts as there are names."""
    net = Net(tag)
    try:
        yield [net.host(name) for name in names]
    finally:
        net.close()
