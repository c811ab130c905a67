#!/usr/bin/env python3
"""What `meson install` brings, in a folder that no program was built for: all of it is there, says what is so, and runs.

usage: test_installed.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import contextlib
import functools
import gzip
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

from harness import BUILD, ROOT, SLOW, Skip, case, main, wait_for

PROGRAMS = ("graft", "graft-target", "graft-draft", "graft-bench")
ROLES = {"graft-serve.service": "serve", "graft-target@.service": "target", "graft-draft@.service": "draft"}
COMMANDS = ("run", "chat", "serve", "launch", "session open", "session send", "session list", "worker list", "ping", "wait",
            "stop")  # of graft: between them they have all of its options
API_KEY = "sk-installed-0123456789abcdef"


class Installed:
    """The tree, moved away from where it was installed, so that nothing finds it by the path that the build knows."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], check=True, capture_output=True,
                       env=dict(os.environ, DESTDIR=os.path.join(self.folder, "staged")))
        with open(os.path.join(BUILD, "meson-info/intro-buildoptions.json"), encoding="utf-8") as f:
            option = {o["name"]: o["value"] for o in json.load(f)}
        self.built_for = option["prefix"]
        self.prefix = os.path.join(self.folder, "moved")
        os.rename(os.path.join(self.folder, "staged", option["prefix"].lstrip("/")), self.prefix)
        self.bin, self.data = self.path(option["bindir"]), self.path(option["datadir"], "graft")
        self.man, self.share = self.path(option["mandir"], "man1"), self.path(option["datadir"])

    def path(self, *names):
        return os.path.join(self.prefix, *names)

    def program(self, name):
        return os.path.join(self.bin, name)

    def run(self, name, *args, env=None):
        return subprocess.run([self.program(name), *args], capture_output=True, text=True, timeout=60 * SLOW, cwd="/",
                              env=env or plain_environment(), check=False)

    def unit(self, name):
        """Its lines, with the programs where they lie here."""
        with open(self.path("lib/systemd/system", name), encoding="utf-8") as f:
            return f.read().replace(self.built_for + "/bin", self.bin)


installed = functools.cache(Installed)


def plain_environment(**more):
    return dict({k: v for k, v in os.environ.items() if not k.startswith("GRAFT_")}, **more)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


@functools.cache
def options_of(*command):
    """{option: whether it takes a value}, as --help of the installed program says."""
    done = installed().run(command[0], *command[1:], "--help")
    assert done.returncode == 0, done
    return {name: bool(value.strip()) for name, value in re.findall(r"^  (--[\w-]+)((?: -\w)?(?: [^ \n]+)?) ", done.stdout, re.M)}


@functools.cache
def variables_of(role):
    """Of the page of options: those that a program of that role reads."""
    program = {"serve": "serve", "target": "graft-target", "draft": "graft-draft"}[role]
    rows = [re.split(r"(?<!\\)\|", line) for line in
            read(os.path.join(installed().share, "doc/graft/docs/options.md")).splitlines() if line.startswith("| `--")]
    assert len(rows) > 100, len(rows)
    return {row[2].strip(" `") for row in rows if program in row[6].replace(",", " ").split()} | {"GRAFT_LOG", "GRAFT_KEY_FILE"}


def role_of(words):
    return {"graft": "serve", "graft-target": "target", "graft-draft": "draft"}[os.path.basename(words[0])]


def check_command(words):
    """Every option is one of the program's, with a value where it takes one."""
    words = list(words)
    program, *rest = os.path.basename(words[0]), *words[1:]
    known = options_of(program, *([rest.pop(0)] if program == "graft" else []))
    while rest:
        word = rest.pop(0)
        assert word in known, f"{' '.join(words)}: {word}"
        if known[word]:
            value = rest.pop(0)
            assert not value.startswith("--"), f"{' '.join(words)}: {word} {value}"


def seconds(text):
    return float(text.removesuffix("s"))


def check_time_to_end(words, limit):
    drain = seconds(words[words.index("--drain-timeout") + 1])
    assert drain + 10 <= limit, f"{drain} s to end in order, and killed after {limit} s"


# ---- files ----

@case
def everything_is_there():
    here = installed()
    share = here.share
    for name in PROGRAMS:
        assert os.access(here.program(name), os.X_OK), name
        assert os.path.exists(os.path.join(here.man, name + ".1")) or os.path.exists(os.path.join(here.man, name + ".1.gz")), name
        assert os.path.getsize(os.path.join(share, "bash-completion/completions", name)) > 1000, name
    for name in ("zsh/site-functions/_graft", "doc/graft/README.md", "doc/graft/CHANGELOG.md", "doc/graft/LICENSE",
                 "doc/graft/docs/start.md", "graft/models/demo/target/config.json", "graft/models/demo/draft/tokenizer.json",
                 "graft/models/demo/eagle3/model.safetensors", "graft/models/smollm2-eagle3/model.safetensors",
                 "graft/models/README.md", "graft/bench/gates/h200.json", "graft/bench/gates/demo-cpu.json",
                 "graft/bench/costs/cpu-demo.json", "graft/bench/texts/demo.json", "graft/bench/prompts/coding.json",
                 "graft/examples/serve.yaml", "graft/examples/grafana/graft.json", "graft/examples/container/compose.yaml",
                 "graft/examples/systemd/serve.env"):
        assert os.path.getsize(os.path.join(share, name)) > 0, name
    for name in ("mpirun.sh", "cluster/mpirun.sh", "cluster/slurm-2.sbatch"):
        assert os.access(os.path.join(here.data, "examples", name), os.X_OK), name
    for name in ROLES:
        assert os.path.exists(here.path("lib/systemd/system", name)), name
    assert os.path.exists(here.path("lib/sysusers.d/graft.conf"))
    stray = [f for _, _, files in os.walk(here.prefix) for f in files if f.endswith((".pc", ".a", ".so", ".h", ".xz", ".part"))]
    assert not stray, f"graft installs no library, and no weights that are packed: {stray}"


@case
def pages_have_every_option():
    """man's page of each program, against what the program's own --help lists."""
    here = installed()
    for program in PROGRAMS:
        path = os.path.join(here.man, program + ".1")
        page = read(path) if os.path.exists(path) else gzip.open(path + ".gz", "rt").read()
        page = page.replace("\\-", "-")
        words = {"graft": [c.split() for c in COMMANDS], "graft-bench": [[w] for w in
                 re.findall(r"^  (\w+)  ", here.run("graft-bench", "--help").stdout, re.M)]}.get(program, [[]])
        assert words, program
        n = 0
        for w in words:
            for name in options_of(program, *w):
                n += 1
                assert name + "\\fR" in page or name == "--help" or name == "--version" and name in page, (program, w, name)
        assert n > 20, (program, n)


@case
def the_changelog_has_its_form():
    text = read(os.path.join(installed().share, "doc/graft/CHANGELOG.md"))
    assert text.startswith("# Changelog\n") and "keepachangelog.com" in text and "semver.org" in text
    heads = re.findall(r"^## (.*)$", text, re.M)
    assert heads and heads[0] == "[Unreleased]", heads
    dates = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d)", h) for h in heads[1:]]
    assert all(dates) and [d[1] for d in dates] == sorted((d[1] for d in dates), reverse=True), heads
    kinds = set(re.findall(r"^### (.*)$", text, re.M))
    assert kinds and kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, kinds


# ---- units ----

def settings(unit):
    """{name: [values]} of a unit's lines."""
    found = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit, re.M):
        found.setdefault(name, []).append(value)
    return found


@case
def units_are_sound():
    here = installed()
    for name, role in ROLES.items():
        s = settings(here.unit(name))
        words = shlex.split(s["ExecStart"][0])
        assert os.access(words[0], os.X_OK) and role_of(words) == role, words
        check_command(words)
        check_time_to_end(words, float(s["TimeoutStopSec"][0]))
        assert s["Restart"] == ["on-failure"] and s["KillSignal"] == ["SIGTERM"] and s["RestartPreventExitStatus"] == ["2"], s
        assert s["NoNewPrivileges"] == ["yes"] and s["ProtectSystem"] == ["strict"] and s["User"] == ["graft"], s
        assert s["LoadCredential"] == ["graft.key:/etc/graft/graft.key"] and s["Environment"] == ["GRAFT_KEY_FILE=%d/graft.key"], s
        assert ("LimitMEMLOCK" in s) == (role != "serve"), s
        given = re.findall(r"^(?:# )?(GRAFT_\w+)=\S", read(os.path.join(here.data, "examples/systemd", role + ".env")), re.M)
        assert len(given) > 2 and set(given) <= variables_of(role), set(given) - variables_of(role)
    assert re.search(r"^u graft ", read(here.path("lib/sysusers.d/graft.conf")), re.M)


@case
def systemd_takes_the_units():
    if shutil.which("systemd-analyze") is None:
        raise Skip("systemd-analyze is not installed")
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for name in ROLES:
            names.append(os.path.join(folder, name.replace("@.", "@0.")))
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(installed().unit(name))
            if "@" in name:
                os.symlink(name, names[-1])
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if "graft" in line]
        assert done.returncode == 0 and not said, (done.returncode, done.stderr)
        for name in ROLES:
            path = os.path.join(folder, name)
            done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=40", path], capture_output=True,
                                  text=True, check=False)
            print(f"# {name}: {done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr}")
            assert done.returncode == 0, done.stdout[-400:] + done.stderr


# ---- what runs ----

class Fleet:
    """Processes of several command lines, each with an environment of its own, in a folder with both keys."""

    def __init__(self, stack):
        self.stack = stack
        self.folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.key, self.api_keys, self.ready = (os.path.join(self.folder, n) for n in ("graft.key", "api.keys", "ready"))
        assert installed().run("graft", "serve", "--make-key", self.key).returncode == 0
        with open(self.api_keys, "w", encoding="utf-8") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(API_KEY + "\n")
        self.journal = os.path.join(self.folder, "journal")
        os.mkdir(self.journal, 0o700)
        self.processes = {}

    def start(self, words, env, cwd="/"):
        role = role_of(words)
        err = self.stack.enter_context(open(os.path.join(self.folder, role + ".err"), "w", encoding="utf-8"))
        p = subprocess.Popen(words, env=plain_environment(**env), cwd=cwd, stdout=subprocess.DEVNULL, stderr=err)
        self.processes[role] = p
        self.stack.callback(lambda: (p.kill(), p.wait()))
        if role == "serve":
            wait_for(lambda: os.path.exists(self.ready) or p.poll() is not None)
        assert p.poll() is None, self.log(role)

    def log(self, role):
        return read(os.path.join(self.folder, role + ".err"))

    def complete(self):
        """A text by the endpoint, once both workers are there."""
        done = installed().run("graft", "wait", "--connect", "@" + self.ready, "--draft", "any", env=plain_environment(GRAFT_KEY_FILE=self.key))
        assert done.returncode == 0, (done.stderr, self.log("target"), self.log("draft"))
        port = int(re.search(r"at http://\S+:(\d+)/v1", self.log("serve"))[1])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60 * SLOW)) as c:
            c.request("POST", "/v1/completions", json.dumps({"prompt": "import os", "max_tokens": 8, "temperature": 0}),
                      {"Content-Type": "application/json", "Authorization": "Bearer " + API_KEY})
            answer = json.loads(c.getresponse().read())
        assert answer["usage"]["completion_tokens"] == 8, answer
        return answer["choices"][0]["text"]

    def check_places(self):
        """Nothing that runs was taken from the tree or its build folder."""
        for role, p in self.processes.items():
            assert os.readlink(f"/proc/{p.pid}/exe").startswith(installed().bin + os.sep), role
            maps = read(f"/proc/{p.pid}/maps")
            assert installed().bin in maps and BUILD + os.sep not in maps and ROOT + "/models" not in maps, role

    def end(self):
        """As a service manager would: all are told at once, and every one ends in order."""
        for p in self.processes.values():
            p.send_signal(signal.SIGTERM)
        for role, p in self.processes.items():
            assert p.wait(timeout=60 * SLOW) == 0, (role, p.returncode, self.log(role))


def plain_text():
    model = os.path.join(installed().data, "models/demo/target")
    done = installed().run("graft", "run", "--model", model, "--prompt", "import os", "--max-tokens", "8", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


@case
def benchmarks_find_their_files():
    here = installed()
    done = here.run("graft-bench", "simulate", "-o", "json", "--sessions", "1", "--max-tokens", "16", "--groups", "1")
    assert done.returncode == 0, done.stderr
    done = here.run("graft-bench", "gates", "--results", "/dev/null")
    assert here.data + "/bench/gates/h200.json" in os.path.normpath(done.stderr.replace("/bin/../", "/")), done.stderr


@case
def units_start_a_fleet():
    here = installed()
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack)
        for name, role in ROLES.items():
            text = read(os.path.join(here.data, "examples/systemd", role + ".env"))
            env = dict(re.findall(r"^(GRAFT_\w+)=(.*)$", text.replace("/usr/local/share/graft", here.data), re.M))
            env.update({"GRAFT_CONTROL": "127.0.0.1:0", "GRAFT_HTTP": "127.0.0.1:0", "GRAFT_READY_FILE": fleet.ready,
                        "GRAFT_API_KEY_FILE": fleet.api_keys} if role == "serve" else {"GRAFT_JOIN": "@" + fleet.ready})
            s = settings(here.unit(name))
            env.update(line.replace("%d", fleet.folder).split("=") for line in s["Environment"])
            fleet.start(shlex.split(s["ExecStart"][0].replace("${STATE_DIRECTORY}", fleet.journal)), env)
        assert fleet.complete() == plain_text()
        fleet.check_places()
        fleet.processes["serve"].send_signal(signal.SIGHUP)  # ExecReload
        wait_for(lambda: "were read again" in fleet.log("serve"))
        fleet.end()
        assert os.listdir(fleet.journal), "no journal"


# ---- containers ----

def compose():
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError as e:
        raise Skip("PyYAML is not installed") from e
    return yaml.safe_load(read(os.path.join(installed().data, "examples/container/compose.yaml")))


def told(service):
    command = service["command"]
    return shlex.split(command) if isinstance(command, str) else command


@case
def containers_are_sound():
    file = compose()
    services = file["services"]
    assert {role_of(told(s)) for s in services.values()} == {"serve", "target", "draft"}
    for s in services.values():
        check_command(told(s))
        check_time_to_end(told(s), seconds(s["stop_grace_period"]))
        assert s["read_only"] and s["cap_drop"] == ["ALL"] and s["image"] == "graft", s
        assert set(s["secrets"]) <= set(file["secrets"]) and set(s["networks"]) <= set(file["networks"]), s
        assert set(s["environment"]) <= variables_of(role_of(told(s))), s
        for path in re.findall(r"/run/secrets/(\S+)", " ".join([*told(s), *s["environment"].values()])):
            assert path in s["secrets"], (path, s["secrets"])
    check_command([w for w in services["serve"]["healthcheck"]["test"] if w != "CMD"])
    assert services["draft"]["ipc"] == "service:target" and services["target"]["ipc"] == "shareable"
    assert list(file["services"]["target"]["networks"]) == ["fleet"] and file["networks"]["fleet"]["internal"]
    file = read(os.path.join(installed().data, "examples/container/Containerfile"))
    mounted = [v.split(":") for v in services["serve"]["volumes"]]
    assert [[where, name in compose()["volumes"]] for name, where in mounted] == [["/var/lib/graft", True]]
    known = set(re.findall(r"^option\('(\w+)'", read(os.path.join(ROOT, "meson_options.txt")), re.M))
    assert set(re.findall(r" -D(\w+)=", file)) <= known


@case
def the_image_has_every_library():
    if not os.path.exists("/etc/debian_version") or not read("/etc/debian_version").startswith("12") or not shutil.which("readelf"):
        raise Skip("not Debian 12, or no readelf")
    file = read(os.path.join(installed().data, "examples/container/Containerfile"))
    first = set(file.split("FROM debian", 2)[1].replace("\\", " ").split())
    wanted = read(os.path.join(ROOT, "tools/prepare")).split("packages=(", 1)[1].split(")", 1)[0].replace("\\", " ").split()
    assert set(wanted) - {"ca-certificates", "libcmocka-dev", "ibverbs-providers"} <= first, set(wanted) - first
    packages = file.rsplit("apt-get install", 1)[1].split("&&")[0].replace("\\", " ").split()[2:]
    listed = subprocess.run(["dpkg", "-L", *packages, "libc6", "libgcc-s1"], capture_output=True, text=True, check=False).stdout
    there = {os.path.basename(line) for line in listed.splitlines()}
    needed = set()
    for name in ("graft", "graft-target", "graft-draft"):
        of = subprocess.run(["readelf", "-d", installed().program(name)], capture_output=True, text=True, check=True).stdout
        needed |= set(re.findall(r"Shared library: \[([^\]]+)\]", of))
    # The image is built without CUDA, whose compiler adds C++'s library.
    missing = {n for n in needed - there if not re.match(r"lib(asan|ubsan|tsan|clang|cuda|nccl|stdc\+\+)", n)}
    assert len(needed) > 10 and not missing, missing


@case
def containers_start_a_fleet():
    here = installed()
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack)
        for s in sorted(compose()["services"].values(), key=lambda s: role_of(told(s)) != "serve"):
            words = " ".join(told(s)).replace("/run/secrets", fleet.folder).replace("serve:5055", "@" + fleet.ready).replace("/var/lib/graft", fleet.journal)
            words = words.replace("--control :5055", "--control 127.0.0.1:0 --ready-file " + fleet.ready)
            words = shlex.split(words.replace("--http :8000", "--http 127.0.0.1:0"))
            env = {k: v.replace("/run/secrets", fleet.folder) for k, v in s["environment"].items()}
            fleet.start([here.program(words[0]), *words[1:]], env, cwd=here.data)
        assert fleet.complete() == plain_text()
        fleet.check_places()
        fleet.end()


main()
