#!/usr/bin/env python3
"""Files that a user names for output, and keys that come through a FIFO: what stands there stays what it is.

usage: test_outputs.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

from harness import GRAFT, HEAD, SLOW, TARGET, case, main, run, wait_for
from served import Folder

KINDS = {stat.S_IFCHR: "device", stat.S_IFIFO: "FIFO", stat.S_IFLNK: "link", stat.S_IFREG: "file"}


def kind(path):
    return KINDS[stat.S_IFMT(os.lstat(path).st_mode)]


def holds(path, text):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read() == text
    except FileNotFoundError:
        return False


class Server:
    """A `graft serve` without workers, with this ready file."""

    def __init__(self, folder, ready):
        self.p = subprocess.Popen([GRAFT, "serve", "--control", "127.0.0.1:0", "--ready-file", ready],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=folder.env())
        self.address = self.p.stderr.readline().split()[-1]  # serving on ADDRESS

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        _, err = self.p.communicate(timeout=20 * SLOW)
        return self.p.returncode, err


def read_soon(path):
    """What is written into a FIFO, read to its end by a thread."""
    got = []

    def look():
        with open(path, encoding="utf-8") as f:
            got.append(f.read())
    thread = threading.Thread(target=look)
    thread.start()
    return thread, got


@case
def ready_file_where_nothing_or_a_file_stands():
    folder = Folder()
    for before in (None, "old\n"):
        path = folder.path("ready")
        if before is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(before)
        s = Server(folder, path)
        wait_for(lambda: holds(path, s.address + "\n"))  # pylint: disable=cell-var-from-loop
        assert s.end() == (0, "")
        assert not os.path.exists(path)  # it goes away at shutdown
    assert sorted(os.listdir(folder.dir.name)) == ["key"]


@case
def ready_file_through_a_link():
    folder = Folder()
    link, real = folder.path("link"), folder.path("real")
    os.symlink("real", link)  # it leads to nothing yet
    s = Server(folder, link)
    wait_for(lambda: holds(link, s.address + "\n"))
    assert kind(link) == "link" and kind(real) == "file"
    os.remove(real)
    with open(real, "w", encoding="utf-8") as f:
        f.write("another's")
    assert s.end()[0] == 0
    assert kind(link) == "link" and kind(real) == "file"  # not the file that this server made


@case
def ready_file_that_is_a_fifo():
    folder = Folder()
    path = folder.path("fifo")
    os.mkfifo(path)
    for early in (True, False):
        reader = read_soon(path) if early else None
        s = Server(folder, path)
        reader = reader or read_soon(path)
        reader[0].join(20 * SLOW)
        assert reader[1] == [s.address + "\n"], reader[1]
        assert kind(path) == "FIFO" and s.end() == (0, "") and kind(path) == "FIFO"
    s = Server(folder, path)  # nobody ever reads it
    assert s.end() == (0, "")


@case
def ready_file_that_is_a_device():
    folder = Folder()
    path = folder.path("null")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with open(path, "w", encoding="utf-8"):
            pass
    except OSError as e:
        print(f"# no device can be made here: {e}")
        return
    s = Server(folder, path)
    assert kind(path) == "device" and s.end() == (0, "") and kind(path) == "device"
    assert sorted(os.listdir(folder.dir.name)) == ["key", "null"]


@case
def ready_file_that_cannot_be():
    folder = Folder()
    for path, words in ((folder.dir.name, "is a folder"), (folder.path("no/such"), "No such file")):
        done = subprocess.run([GRAFT, "serve", "--control", "127.0.0.1:0", "--ready-file", path], capture_output=True,
                              text=True, timeout=20 * SLOW, env=folder.env())
        assert done.returncode == 1 and words in done.stderr and path in done.stderr, done.stderr


def trace(path):
    return run("run", "--model", TARGET, "--prompt", "import os", "--max-tokens", "4", "--trace-file", path)


@case
def trace_files():
    with tempfile.TemporaryDirectory() as d:
        fifo, link, real = (os.path.join(d, x) for x in ("fifo", "link", "real"))
        os.mkfifo(fifo)
        done = trace(fifo)
        assert done.returncode == 1 and "nobody reads this FIFO" in done.stderr, done.stderr
        reader = read_soon(fifo)
        assert trace(fifo).returncode == 0
        reader[0].join(20 * SLOW)
        assert len(json.loads(reader[1][0])["traceEvents"]) > 0 and kind(fifo) == "FIFO"
        os.symlink(real, link)
        assert trace(link).returncode == 0 and kind(link) == "link"
        with open(real, encoding="utf-8") as f:
            assert len(json.load(f)["traceEvents"]) > 0
        done = run("run", "--model", TARGET, "--prompt", "import os", "--max-tokens", "4", "--trace-file",
                   "/dev/fd/2", "--json")
        assert done.returncode == 0 and '"traceEvents"' in done.stderr, done.stderr
        assert sorted(os.listdir(d)) == ["fifo", "link", "real"]


@case
def keys_are_made():
    with tempfile.TemporaryDirectory() as d:
        key, fifo, link = (os.path.join(d, x) for x in ("key", "fifo", "link"))
        assert run("serve", "--make-key", key).returncode == 0
        assert os.stat(key).st_mode & 0o777 == 0o600
        with open(key, encoding="utf-8") as f:
            before = f.read()
        done = run("serve", "--make-key", key)
        assert done.returncode == 1 and "exists" in done.stderr, done.stderr
        os.symlink("key", link)
        assert run("serve", "--make-key", link).returncode == 1
        with open(key, encoding="utf-8") as f:
            assert f.read() == before
        os.mkfifo(fifo, 0o600)
        reader = read_soon(fifo)
        assert run("serve", "--make-key", fifo).returncode == 0
        reader[0].join(20 * SLOW)
        assert len(reader[1][0].strip()) == 64 and kind(fifo) == "FIFO"


@case
def keys_that_come_through_a_fifo():
    folder = Folder()
    with open(folder.key, encoding="utf-8") as f:
        key = f.read()
    fifo = folder.path("fifo")
    os.mkfifo(fifo, 0o600)
    begin = time.monotonic()
    done = run("serve", "--control", "127.0.0.1:0", "--key-file", fifo)
    assert done.returncode == 1 and "within 5 s" in done.stderr, done.stderr
    assert time.monotonic() - begin < 15 * SLOW

    def write():
        with open(fifo, "w", encoding="utf-8") as f:
            f.write(key[:20])
            f.flush()
            f.write(key[20:])
    thread = threading.Thread(target=write)
    thread.start()
    p = subprocess.Popen([GRAFT, "serve", "--control", "127.0.0.1:0", "--key-file", fifo], stderr=subprocess.PIPE,
                         text=True)
    assert "serving on" in p.stderr.readline()
    thread.join(20 * SLOW)
    p.send_signal(signal.SIGTERM)
    assert p.wait(timeout=20 * SLOW) == 0
    p.stderr.close()
    shell = f'exec "{GRAFT}" session list --connect 127.0.0.1:1 --key-file <(cat "{folder.key}")'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=90 * SLOW)
    assert "key" not in done.stderr and "127.0.0.1:1" in done.stderr, done.stderr


@case
def a_fifo_in_place_of_a_file_is_refused():
    """A configuration, a plan and a segment of a journal: a line at once, where nobody will ever write into it."""
    folder = Folder()
    fifo, journal = folder.path("fifo"), folder.path("journal")
    os.mkfifo(fifo)
    os.mkdir(journal, 0o700)
    os.mkfifo(os.path.join(journal, "0000000000000001.segment"))
    for args, status, words in ((("serve", "--config", fifo), 1, "not a regular file"),
                                (("launch", "--plan", fifo), 1, "not a regular file"),
                                (("serve", "--control", "127.0.0.1:0", "--key-file", folder.key, "--http", "off", "--journal", journal),
                                 1, "0000000000000001.segment: it is no plain file")):
        done = run(*args)
        assert done.returncode == status and words in done.stderr, (args, done.returncode, done.stderr)


def shell(line, **names):
    """A line of bash; names become variables of it."""
    env = dict(os.environ, GRAFT=GRAFT, BENCH=GRAFT + "-bench", TARGET=TARGET, HEAD=HEAD,
               RUN=f"{GRAFT} run --model {TARGET} --prompt x --max-tokens 8", **names)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=90 * SLOW, env=env)


@case
def closed_descriptors_take_nothing():
    with tempfile.TemporaryDirectory() as d:
        trace = os.path.join(d, "t.json")
        done = shell("$RUN --draft $HEAD --trace-file $T >&- 2>&-", T=trace)
        assert done.returncode == 1  # the text is lost
        done = shell("$RUN --draft $HEAD --trace-file $T <&- 2>&-", T=trace)
        assert done.returncode == 0 and done.stdout, done
        with open(trace, encoding="utf-8") as f:
            json.load(f)


@case
def output_that_is_lost_is_an_error():
    for command in ("$BENCH transport --transport loop --iters 5 --sizes 64 -o json", "$BENCH --help", "$BENCH --version",
                    "$GRAFT --help", "$GRAFT run --help", "$GRAFT --version"):
        done = shell(command + " >&-")
        assert done.returncode == 1 and "cannot write to standard output" in done.stderr, (command, done)


@case
def link_to_standard_output():
    with tempfile.TemporaryDirectory() as d:
        for i, target in enumerate(("/dev/stdout", "/proc/self/fd/1", "/proc/thread-self/fd/1", "l0")):
            link, out = os.path.join(d, f"l{i}"), os.path.join(d, f"out{i}")
            os.symlink(target, link)
            done = shell("(echo first; $RUN --trace-file $L; echo last) > $O", L=link, O=out)
            with open(out, encoding="utf-8") as f:
                text = f.read()
            assert done.returncode == 0, done
            assert text.startswith("first") and text.endswith("last\n") and '"traceEvents"' in text, (target, text[:300])
            done = shell("$RUN --trace-file $L | cat", L=link)
            assert '"traceEvents"' in done.stdout, (target, done)


@case
def names_of_every_length():
    with tempfile.TemporaryDirectory() as d:
        for n in (249, 255):
            path = os.path.join(d, "a" * n)
            assert run("run", "--model", TARGET, "--prompt", "x", "--max-tokens", "2", "--trace-file", path).returncode == 0
            assert os.listdir(d) == ["a" * n]
            os.unlink(path)
        done = run("run", "--model", TARGET, "--prompt", "x", "--max-tokens", "4000", "--trace-file", "")
        assert done.returncode == 2 and not done.stdout and "--trace-file is empty" in done.stderr, done


@case
def nul_in_a_configuration():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write('session:\n  stop: "t\\0zz"\n')
        done = run("run", "--config", path, "--model", TARGET, "--prompt", "x")
        assert done.returncode == 2 and ":2:9: a NUL byte" in done.stderr, done


@case
def a_hangup_leaves_nothing():
    with tempfile.TemporaryDirectory() as d:
        ready = os.path.join(d, "ready")
        server = Server(Folder(), ready)
        wait_for(lambda: os.path.exists(ready))
        server.p.send_signal(signal.SIGHUP)
        server.p.communicate(timeout=20 * SLOW)
        assert server.p.returncode == 0 and not os.listdir(d), (server.p.returncode, os.listdir(d))
        p = subprocess.Popen([GRAFT, "run", "--model", TARGET, "--prompt", "x", "--ignore-eos", "--max-tokens", "20000",
                              "--trace-file", os.path.join(d, "t")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        p.stdout.read(1)
        p.send_signal(signal.SIGHUP)
        p.communicate(timeout=20 * SLOW)
        assert p.returncode == 129 and os.listdir(d) in ([], ["t"]), (p.returncode, os.listdir(d))


sys.exit(main())
