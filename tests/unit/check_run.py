#!/usr/bin/env python3
"""./run, tools/prepare and tools/fetch.py without network, packages or an engine: in a copy of the tree whose build is
complete, with programs that print their arguments. Prints TAP.

usage: check_run.py SOURCE_ROOT
"""
import functools
import os
import shutil
import subprocess
import sys
import tempfile

import tap_loop

ROOT = sys.argv[1]
NOWHERE = "http://127.0.0.1:9/simple"  # the discard port, which nobody serves
OURS = ("PIP_", "GRAFT_", "SSL_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "XDG_")
FETCHED = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def script(path, text):
    write(path, "#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


class Tree:
    """The copy, in a folder that is $HOME too. No package is installed in it, and none can be."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("run", "tools/prepare", "tools/fetch.py", "tools/weights.py"):
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), self.path(name))
        write(self.path("kernels/kernels.h"), "")
        for name in ("graft", "graft-target", "graft-draft"):
            script(self.path("build/" + name), 'for a in "$@"; do echo "<$a>"; done\n')
        write(self.path("build/prepared"), "")
        for name in ("dpkg-query", "apt-get", "sudo", "ninja", "meson"):
            script(self.path("bin/" + name), "echo no $(basename $0) here >&2\nexit 1\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def env(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        return {**kept, "HOME": self.folder, "PATH": self.path("bin") + ":" + kept["PATH"], "PIP_INDEX_URL": NOWHERE,
                "no_proxy": "*", **more}

    def run(self, *args, **env):
        return subprocess.run([self.path("run"), *args], env=self.env(**env), capture_output=True, text=True, check=False,
                              timeout=60)

    def fetch(self, **env):
        """What tools/fetch.py makes of the index and its certificates."""
        told = subprocess.run([sys.executable, "-c", "import fetch; print(fetch.index(), fetch.certificates())"],
                              env=self.env(PYTHONPATH=self.path("tools"), **env), capture_output=True, text=True, check=True)
        return told.stdout.split()


def no_model(t):
    """a model that cannot be fetched is one line with the reason and what to do, and the demo pair goes on"""
    done = t.run("why?")
    assert done.returncode == 0, done
    assert "<models/demo/target>" in done.stdout and "<why?>" in done.stdout, done
    lines = [line for line in done.stderr.splitlines() if "could not be fetched" in line]
    assert len(lines) == 1, done.stderr
    for word in ("127.0.0.1:9", "Connection refused", "only Python source", "try again", "PIP_INDEX_URL", "GRAFT_PACKAGES",
                 "SSL_CERT_FILE", "--model FILE.gguf --chat"):
        assert word in lines[0], (word, lines)
    assert "cannot be had" not in done.stderr and len(done.stderr.splitlines()) == 2, done.stderr


def no_chat(t):
    """options of a chat without the model are an error with the true reason"""
    for args in (["--chat"], ["why?", "--chat-template", "chatml"], ["--system=be kind"]):
        done = t.run(*args)
        assert done.returncode == 1 and done.stdout == "", done
        assert len(done.stderr.splitlines()) == 1 and "Connection refused" in done.stderr, done.stderr
        assert "chat template" not in done.stderr, done.stderr


def with_model(t):
    """a model that is there is used, without network and packages"""
    path = t.path(".cache/graft/" + FETCHED)
    os.makedirs(os.path.dirname(path))
    done = subprocess.run([sys.executable, "-c", "import fetch; print(fetch.FILES['smollm2'].kept_size)"],
                          env=t.env(PYTHONPATH=t.path("tools")), capture_output=True, text=True, check=True)
    with open(path, "wb") as f:
        f.truncate(int(done.stdout))
    done = t.run("Why is the sky blue?", "--max-tokens", "3")
    want = ["--model", path, "--draft", "models/smollm2-eagle3", "--chat", "--prompt", "Why is the sky blue?",
            "--max-tokens", "3"]
    assert done.returncode == 0 and done.stdout.split("\n")[1:-1] == [f"<{a}>" for a in want], done
    assert "here" not in done.stderr, done.stderr


def newer(t):
    """packages are asked for where a source is newer than the build, or a program is missing"""
    os.utime(t.path("kernels/kernels.h"), (2e9, 2e9))
    done = t.run(GRAFT_DEMO="1")
    assert done.returncode == 1 and "packages could not be installed" in done.stderr, done
    os.utime(t.path("kernels/kernels.h"), (1e9, 1e9))
    assert t.run(GRAFT_DEMO="1").returncode == 0
    os.unlink(t.path("build/graft-draft"))
    assert t.run(GRAFT_DEMO="1").returncode == 1


def words(t):
    """a question without quotes is a mistake that says so; --help promises no text"""
    done = t.run("Why", "is", "the", "sky", "blue", "--json")
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.splitlines() == ['error: a question of several words stands in quotes: ./run "Why is the sky blue"']
    done = t.run("--help")
    assert done.returncode == 0 and done.stderr == "" and "usage: ./run" in done.stdout, done
    assert done.stdout.splitlines()[1:] == ["<run>", "<--help>"], done


def pip(t):
    """index and certificates are pip's: environment, then PIP_CONFIG_FILE or the user's file"""
    write(t.path(".pip/pip.conf"), "[global]\nindex-url = http://old/\ncert = /old.pem\n")
    assert t.fetch(PIP_INDEX_URL="") == ["http://old/", "/old.pem"]
    write(t.path(".config/pip/pip.conf"), "[global]\nindex_url = http://user/%41\n[install]\ncert = /other\n")
    assert t.fetch(PIP_INDEX_URL="") == ["http://user/%41", "/old.pem"]
    named = t.path("named.conf")
    write(named, "[global]\nindex-url = http://named/\ncert = /named.pem\n")
    assert t.fetch(PIP_INDEX_URL="", PIP_CONFIG_FILE=named) == ["http://named/", "/named.pem"]
    assert t.fetch(PIP_INDEX_URL="http://env/", PIP_CERT="/env.pem", PIP_CONFIG_FILE=named) == ["http://env/", "/env.pem"]
    none = {"PIP_CONFIG_FILE": os.devnull}
    assert t.fetch(PIP_INDEX_URL="", **none) == ["https://pypi.org/simple", "None"]
    assert t.fetch(REQUESTS_CA_BUNDLE="/r.pem", **none) == [NOWHERE, "/r.pem"]
    done = t.run(PIP_CERT="/no/such.pem")
    assert "certificates of /no/such.pem: No such file" in done.stderr, done.stderr
    write(named, "index-url = no section\n")
    done = t.run(PIP_INDEX_URL="", PIP_CONFIG_FILE=named)
    assert done.returncode == 0 and f"{named} is not a configuration" in done.stderr and "Traceback" not in done.stderr, done.stderr


def in_a_tree(fn):
    @functools.wraps(fn)
    def go():
        with tempfile.TemporaryDirectory() as folder:
            fn(Tree(folder))
    return go


sys.exit(tap_loop.run([in_a_tree(fn) for fn in (no_model, no_chat, with_model, newer, words, pip)]))
