"""A Slurm whose nodes are hosts of their own: a network namespace for the controller and one for each node, on two networks.
Nothing of it is left afterwards."""
import contextlib
import os
import shlex
import shutil
import subprocess

import hosts
from cluster import ENV, SLURM, STATE, path
from harness import SLOW

DATA = "10.92.7"  # the second network; eth0's is the one by which nodes are known


def missing():
    """None, or why there can be none here."""
    if not all(shutil.which(x) for x in ("slurmctld", "slurmd", "srun", "munged")):
        return "slurm-wlm and munge are not installed"
    return hosts.missing()


# slurmd wants to see what cgroups there are, and `ip netns exec` mounts a /sys that has none: they are kept beside it.
KEEP = "mount --rbind /sys/fs/cgroup {kept} && exec \"$@\""
TAKE = "mount --rbind {kept} /sys/fs/cgroup && exec \"$@\""


CGROUP = "/sys/fs/cgroup/memory"


def no_memory_limits():
    """None, or why Slurm cannot limit memory here. Its plugin for cgroup v2 needs systemd."""
    name = f"{CGROUP}/graft-try-{os.getpid()}"
    try:
        os.mkdir(name)
    except OSError as e:
        return f"no memory controller of cgroup v1 ({e.strerror})"
    os.rmdir(name)
    return None


def remove_groups(made):
    """What slurmd leaves of its nodes' control groups."""
    for h in made[1:]:
        for folder, _, _ in os.walk(f"{CGROUP}/slurm_{h.name}", topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def names_of(made):
    return [f"{h.four} {h.name}" for h in made]


def keeping_cgroups(line):
    kept = path("cgroup")
    os.makedirs(kept, exist_ok=True)
    return ["unshare", "--mount", "sh", "-c", KEEP.format(kept=kept), "sh", *line]


def on_node(host):
    """The beginning of a command line that runs the rest of it on this node."""
    return host.command("sh", "-c", TAKE.format(kept=path("cgroup")), "sh", names=STATE["names"])


def write_on(made, folder):
    """The program that runs a command on the node that is named, for slurm-local."""
    name = folder + ".on"
    with open(name, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nnode=$1; shift\ncase $node in\n")
        f.writelines(f'{h.name}) exec {shlex.join(on_node(h))} "$@" ;;\n' for h in made)
        f.write('*) echo "no node $node" >&2; exit 1 ;;\nesac\n')
    os.chmod(name, 0o755)
    return name


def down(head, folder):
    subprocess.run(head.command(SLURM, "down", folder, names=STATE["names"]), check=False, capture_output=True, timeout=60 * SLOW)
    STATE.pop("conf", None)


@contextlib.contextmanager
def slurm(made, name, with_limits=False):
    """The first of the hosts has the controller, and is where srun is called; the others are nodes n1, n2, ..."""
    head, folder = made[0], path(name)
    STATE["names"] = names_of(made)
    env = dict(ENV, SLURM_LOCAL_ON=write_on(made, folder), SLURM_LOCAL_MEMORY="1" if with_limits else "")
    try:
        line = head.command(SLURM, "up", str(len(made) - 1), folder, names=STATE["names"])
        up = subprocess.run(keeping_cgroups(line), capture_output=True, text=True, timeout=120, env=env)
        assert up.returncode == 0, up.stderr
        STATE["conf"] = up.stdout.strip().splitlines()[-1]
        yield
    finally:
        down(head, folder)
        if with_limits:
            remove_groups(made)


def add_second_network(made):
    """data0 beside eth0 on each; and the bridge that all hosts with Docker have under one address."""
    for n, h in enumerate(made, 1):
        h.add_docker()
        h.add_network("data0", f"{DATA}.{n}", f"fd92:7::{n}")


def on_head(made, *args):
    return made[0].command(*args, names=STATE["names"])
