"""A tensor-parallel group whose processes are started one by one (--tp-group), as on several hosts."""
import contextlib
import os
import subprocess
import tempfile

from harness import BUILD, DRAFT, TARGET, children
from served import Folder, Serve, free_port


class Group:
    """Its processes, in order of ranks; their lines go into one file each."""

    def __init__(self, folder, address, n, *args, of=(), each=lambda rank: ((), {})):
        """each(rank): the words and variables of that rank alone; of: the ranks that are started, all without it."""
        self.folder, self.meets = folder, f"127.0.0.1:{free_port()}"
        self.p, self.err = [], []
        join = ("--join", address, "--listen", "127.0.0.1:0")
        for r in of or range(n):
            words, env = each(r)
            self.start("-tp", str(n), "--tp-rank", str(r), *(join if r == 0 else ()), *args, *words, **env)

    def start(self, *args, model=TARGET, **env):
        self.err.append(tempfile.TemporaryFile("w+"))
        self.p.append(subprocess.Popen([os.path.join(BUILD, "graft-target"), "--model", model, "--threads", "1",
                                        "--tp-group", self.meets, "--supervise", *args],
                                       stdout=subprocess.DEVNULL, stderr=self.err[-1],
                                       env=self.folder.env(GRAFT_LOG="info", **env)))

    def said(self, which):
        self.err[which].seek(0)
        return self.err[which].read()

    def worker(self, which):
        found = children(self.p[which].pid)
        return found[0][0] if found else 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.p:
            if p.poll() is None:
                p.kill()
            p.wait()
        for f in self.err:
            f.close()


@contextlib.contextmanager
def serving(n, *args, drafter=(), each=lambda rank: ((), {}), within=30):
    """A server with such a group as its target and, with the words of one, a drafter."""
    folder = Folder()
    with (Serve(spawn=False, folder=folder) as s, Group(folder, s.address, n, *args, each=each) as g,
          contextlib.ExitStack() as more):
        if drafter:
            d = subprocess.Popen([os.path.join(BUILD, "graft-draft"), "--join", s.address, "--threads", "1", *drafter],
                                 env=folder.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            more.callback(d.wait)
            more.callback(d.kill)
        s.graft("wait", "--timeout", str(within), *(("--draft", DRAFT) if drafter else ()), timeout=within + 10)
        yield s, g
