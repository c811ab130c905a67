"""Links that a test may cut."""
import select
import socket
import threading
import time


class Forwarder:
    """Carries connections to an address. Cut, it carries nothing and closes nothing, as a link that is down."""

    def __init__(self, to):
        host, port = to.rsplit(":", 1)
        self.to, self.cut, self.ended = (host, int(port)), False, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.pairs, self.kept, self.halve = [], [], False
        threading.Thread(target=self.run, daemon=True).start()

    def accept(self):
        near, _ = self.listener.accept()
        far = socket.socket()
        try:
            far.connect(self.to)
        except OSError:
            near.close()
            return
        self.pairs.append((near, far))

    def carry(self, a, b):
        try:
            data = a.recv(65536)
            if data:
                b.sendall(data)
                return True
        except OSError:
            pass
        a.close()
        b.close()
        return False

    def close_near(self):
        """One end sees that its connection is gone, the other does not."""
        for near, far in self.pairs:
            near.close()
            self.kept.append(far)
        self.pairs, self.halve = [], False

    def run(self):
        while not self.ended:
            if self.halve:
                self.close_near()
            if self.cut:
                time.sleep(0.01)
                continue
            ends = {s: (s, o, p) for p in self.pairs for s, o in (p, p[::-1])}
            for s in select.select([self.listener, *ends], [], [], 0.05)[0]:
                if s is self.listener:
                    self.accept()
                elif s.fileno() >= 0 and not self.carry(*ends[s][:2]):
                    self.pairs.remove(ends[s][2])

    def __enter__(self):
        return self

    def __exit__(self, *rest):
        self.ended = True
