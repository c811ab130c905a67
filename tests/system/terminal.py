"""`graft` on a terminal of its own: what is shown there, as text."""
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time

from harness import GRAFT, SLOW


class Terminal:
    def __init__(self, *args, env=None):
        lead, follow = pty.openpty()
        self.lead, self.raw, self.out = lead, b"", ""
        env = dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8",
                   ASAN_OPTIONS="handle_segv=0", **(env or {}))  # a sanitizer would make a signal an exit status
        self.p = subprocess.Popen([GRAFT, *args], stdin=follow, stdout=follow, stderr=follow, env=env,
                                  start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(follow)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        os.close(self.lead)

    def read(self, seconds):
        if select.select([self.lead], [], [], seconds)[0]:
            try:
                self.raw += os.read(self.lead, 1 << 16)  # which may end within a character, or a line's end
                self.out = self.raw.removesuffix(b"\r").decode("utf-8", "replace").replace("\r\n", "\n")
                return True
            except OSError:  # the last one has closed it
                pass
        return False

    def until(self, what, since=0):
        """Where the text after it begins."""
        end = time.monotonic() + 30 * SLOW
        while time.monotonic() < end:
            m = re.search(what, self.out[since:], re.S)
            if m:
                return since + m.end()
            if not self.read(1) and self.p.poll() is not None:
                break
        raise AssertionError(f"{what!r} is not in {self.out[since:]!r}")

    def end(self):
        while self.read(30 * SLOW):
            pass
        return self.p.wait(timeout=20 * SLOW)
