"""What the cases under real launchers share: jobs, their ranks and processes, and the Slurm of this machine."""
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import (AFTER_FAILURE, CASES, DRAFT, GRAFT, SLOW, TARGET, generate, main, parent_of, stat_of, wait_busy,
                     wait_for)

LONG = bool(os.environ.get("GRAFT_TEST_LONG"))
HERE = os.path.dirname(os.path.abspath(__file__))
SLURM = os.path.join(HERE, "slurm-local")
PROMPT = "def fibonacci(n):"
ROLES = ("--roles", "serve:1,draft:1,target:1")
PAIR = (*ROLES, "--model", TARGET, "--draft", DRAFT)
TURN = ("graft", "run", "--json", "--model", TARGET, "--prompt", PROMPT, "--ignore-eos")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")
SRUN = ("srun", "--wait=0", "--kill-on-bad-exit=0", "--no-kill")  # as in examples/cluster: what a rank's end means is its role's
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("GRAFT_", "SLURM", "OMPI_", "PMI"))}
OWN_HOSTS = "GRAFT_TEST_HOSTS"  # set where the tests run in a mount namespace of their own
N_NODE = 8  # of the Slurm of this machine
STATE = {}  # dir: of the job folders; conf: of Slurm


def answer(tokens):
    if tokens not in STATE:
        STATE[tokens] = generate("--method", "none", "--ignore-eos", "--max-tokens", str(tokens))
    return STATE[tokens]


def plain(tokens):
    return answer(tokens)["token_ids"]


def plain_text(tokens):
    return answer(tokens)["text"]


def env_of(**more):
    env = dict(ENV, **more)
    if "conf" in STATE:
        env["SLURM_CONF"] = STATE["conf"]
    return env


def path(name):
    return os.path.join(STATE["dir"], name)


def job(*argv, timeout=90, **env):
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout * SLOW, env=env_of(**env),
                          stdin=subprocess.DEVNULL, cwd=STATE["dir"])


def ids_of(done):
    """The token ids of the JSON object that the command has printed."""
    found = re.search(r"^(?:\d+: )?(\{.*\})$", done.stdout, re.M)
    assert done.returncode == 0 and found, (done.returncode, done.stdout[-600:], done.stderr[-2000:])
    return json.loads(found.group(1))["token_ids"]


def texts_of(done):
    """The token ids of each JSON object that the job's command has printed."""
    found = re.findall(r"^(?:\d+: )?(\{.*\})$", done.stdout, re.M)
    assert found, (done.returncode, done.stdout[-600:], done.stderr[-2000:])
    return [json.loads(x)["token_ids"] for x in found]


def has(done, *words):
    text = done.stdout + done.stderr
    for w in words:
        assert w in text, (w, text[-3000:])


def ranks(done):
    """rank -> (size, host, role, source) of the lines in which each rank tells what it is."""
    text = done.said() if isinstance(done, Job) else done.stderr
    found = re.findall(r"graft launch: rank (\d+) of (\d+) on host (\S+): (\w+) \(ranks by (\w+)", text)
    out = {int(r): (int(n), h, role, s) for r, n, h, role, s in found}
    assert len(out) == len(found), text
    return out


def processes(words):
    """Numbers of the processes whose command lines have these words."""
    out = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                line = f.read().decode(errors="replace").split("\0")
        except (OSError, NotADirectoryError):
            continue
        if name.isdigit() and all(any(a.endswith(w) for a in line) for w in words):
            out.append(int(name))
    return out


def workers(program, job_dir):
    """The worker itself, below its supervisor."""
    mine = [p for p in processes((program, TARGET if program == "graft-target" else DRAFT))
            if "--supervise" not in open(f"/proc/{p}/cmdline", "rb").read().decode().split("\0")]
    return [p for p in mine if belongs(p, job_dir)]


def belongs(pid, job_dir):
    """Is it below a rank that was given this folder?"""
    while pid > 1:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if job_dir in f.read().decode(errors="replace").split("\0"):
                    return True
            pid = parent_of(pid)
        except OSError:
            return False
    return False


def parent_and_start(pid):
    """None: there is no such process."""
    try:
        state, parent, *more = stat_of(pid)
    except OSError:
        return None
    return (int(parent), int(more[17])) if state != "Z" else None


def processes_of(folder):
    """(number, time of its start) -> program, of each process of the job with this folder, and of the launcher's own one."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as f:
                words = f.read()
        except OSError:  # it has ended meanwhile
            continue
        at = parent_and_start(name)
        if words and at and belongs(int(name), folder):
            found[int(name), at[1]] = os.path.basename(words.split("\0")[0])
    return found


class Job:
    """A job in the background, its output in files."""

    def __init__(self, *argv, **env):
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(argv, stdout=self.out, stderr=self.err, stdin=subprocess.DEVNULL, env=env_of(**env),
                                  cwd=STATE["dir"])

    def said(self):
        return os.pread(self.err.fileno(), 1 << 20, 0).decode(errors="replace")

    def printed(self):
        return os.pread(self.out.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait_for(self, words):
        wait_for(lambda: words in self.said() or self.p.poll() is not None, 60)
        assert words in self.said(), self.said()[-3000:]

    def end(self, seconds=90):
        self.p.wait(timeout=seconds * SLOW)
        return subprocess.CompletedProcess(self.p.args, self.p.returncode, self.printed(), self.said())


LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} [^ /]+/\d+ (?:graft|target|draft): |graft launch: |serving on ")
LAUNCHERS = re.compile(r"srun: |slurmstepd: |\[[^ ]+:\d+\] |-{20}")  # what these say themselves


def lines_are_whole_under(start, tag, *more):
    """Eight ranks and their workers on one standard error: each line begins as one does, and has no second beginning. A rank
    says less than 4096 bytes, of which mpirun passes on a part at a time."""
    done = job(*start, GRAFT, "launch", "--roles", "serve:1,draft:3,target:4", *PAIR[2:], "--threads", "1", "--draft-threads", "1",
               "--kv-blocks", "64", "--log-level", "info", *more, "--", *TURN, "--max-tokens", "16", GRAFT_LOG="info")
    lines = [x for x in done.stderr.splitlines() if not LAUNCHERS.match(x)]
    assert done.returncode == 0 and len(lines) > 40, (done.returncode, done.stderr)
    torn = [x for x in lines if not re.match(f"{tag}(?:{LINE.pattern})", x) or len(LINE.findall(x)) != 1]
    assert not torn, torn[:3]


def streams_in_time(*start):
    """A job whose command streams a text: its first token is there within 5 s of the launcher's start, and the text is
    plain's. What else the machine does has a say in the time: the best of some starts counts."""
    took = []
    while not took or (min(took) >= 5 * SLOW and len(took) < 3):
        begin = time.monotonic()
        j = Job(*start, GRAFT, "launch", *PAIR, "--", *(w for w in TURN if w != "--json"), "--max-tokens", "64")
        wait_for(lambda j=j: j.printed() or j.p.poll() is not None, 60)
        took.append(time.monotonic() - begin)
        done = j.end()
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stdout.rstrip("\n") == plain_text(64).rstrip("\n"), done.stdout
        print(f"# the first token came after {took[-1]:.1f} s")
    assert min(took) < 5 * SLOW, (took, done.stderr)
    return done


N_MET = 1000  # tokens of a turn that is met in its midst


class Turns:
    """A command that runs one turn after another until end(): a fault that is late hits another one of them. A turn
    that fails is the command's end."""

    def __init__(self, folder, *how):
        self.stays = folder + ".stays"
        with open(self.stays, "w", encoding="utf-8"):
            pass
        self.command = ("sh", "-c", f'while [ -e {self.stays} ]; do "$@" || exit; done', "sh", GRAFT, *TURN[1:],
                        "--max-tokens", str(N_MET), *how)
        AFTER_FAILURE.append(self.end)

    def end(self):
        os.remove(self.stays)


def killed_worker(start, program, folder):
    """kill -9 of a worker in a turn: it comes back, each text is right, and the job's status is the command's."""
    want, turns = plain(N_MET), Turns(folder, "--num-speculative-tokens", "4")
    j = Job(*start, "--job-dir", folder, "--", *turns.command)
    j.wait_for("roles are up")
    wait_for(lambda: workers(program, folder))
    victim = workers(program, folder)[0]
    wait_busy(victim)
    os.kill(victim, signal.SIGKILL)
    j.wait_for("starting it again")
    turns.end()
    done = j.end()
    assert done.returncode == 0, (done.stdout[-300:], done.stderr[-2000:])
    assert all(ids == want for ids in texts_of(done)), done.stdout[-600:]


def nothing_is_left(folder, mine=()):
    """mine: of processes_of() while the job ran; their numbers find them also where they have lost their parents."""
    def left():
        alive = [(pid, start) for pid, start in mine if (parent_and_start(pid) or (0, 0))[1] == start]
        return alive + [p for p in processes(("launch",)) if belongs(p, folder)]
    wait_for(lambda: not left())


def shared_memory():
    """Names of segments that stand."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("graft-")}


def ended_with_all_it_had(end, start, folder):
    """A job of the demo pair that `end' ends in the midst of one of its turns: each of its processes is gone soon, whoever its
    parent is by then, and /dev/shm has what it had. [C8]"""
    before = shared_memory()
    j = Job(*start, GRAFT, "launch", *PAIR, "--job-dir", folder, "--", "sh", "-c", 'while "$@"; do :; done', "sh", GRAFT, *TURN[1:],
            "--max-tokens", "128")  # ranks whose launcher is gone let a turn end
    j.wait_for("roles are up")
    # Three ranks, the orchestrator and the command; each worker below its supervisor.
    whole = collections.Counter({"graft": 5, "graft-target": 2, "graft-draft": 2})
    mine = {}

    def is_whole():
        mine.update(processes_of(folder))
        return not whole - collections.Counter(processes_of(folder).values())
    wait_for(lambda: is_whole() or j.p.poll() is not None)
    assert j.p.poll() is None, j.said()[-3000:]
    end(j)
    j.end()
    nothing_is_left(folder, mine)
    if OWN_HOSTS in os.environ:  # and so a /dev/shm of its own
        assert shared_memory() == before, (shared_memory(), before)


def has_ended(number):
    """Is the job in Slurm's queue no more?"""
    done = job("squeue", "-h", "-o", "%A")
    return done.returncode == 0 and number not in done.stdout.split()


def slurm(fn):
    if shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0:
        CASES.append(fn)
    return fn


def went_on_without_drafter(j, turns, want, folder):
    """What the launcher makes of it is no matter: some say that a rank was killed."""
    j.wait_for("the job goes on without it")
    turns.end()
    done = j.end()
    assert all(ids == want for ids in texts_of(done)), (done.stdout[-300:], done.stderr[-2000:])
    has(done, "rank 1 (draft) on host", "the job goes on without it", "the job ended with status 0")
    nothing_is_left(folder)


def killed_drafter_rank(start, folder, *more):
    """kill -9 of a drafter's rank, its supervisor and worker with it: the job goes on with the right text, and says so."""
    want, turns = plain(N_MET), Turns(folder, "--num-speculative-tokens", "4")
    j = Job(*start, GRAFT, "launch", *PAIR, "--job-dir", folder, *more, "--", *turns.command)
    j.wait_for("roles are up")
    wait_for(lambda: workers("graft-draft", folder))
    pid = workers("graft-draft", folder)[0]
    wait_busy(pid)
    for _ in range(2):  # worker, supervisor, rank
        pid = parent_of(pid)
    os.kill(pid, signal.SIGKILL)
    went_on_without_drafter(j, turns, want, folder)


# ---- the machine ----

def in_own_hosts():
    """Again, in a mount namespace whose /etc/hosts knows the nodes, and whose /dev/shm no other test sees: nothing of this
    machine is changed."""
    hosts = tempfile.NamedTemporaryFile("w", suffix=".hosts", delete=False)
    with hosts, open("/etc/hosts", encoding="utf-8") as f:
        hosts.write(f.read() + "".join(f"127.0.0.1 n{i}\n" for i in range(1, N_NODE + 1)))
    os.environ[OWN_HOSTS] = hosts.name
    if shutil.which("unshare"):
        os.execvp("unshare", ["unshare", "-m", "--propagation", "private", "bash", "-c",
                              f'mount --bind "${OWN_HOSTS}" /etc/hosts && mount -t tmpfs none /dev/shm && exec "$@"',
                              "x", sys.executable, *sys.argv])


def with_slurm(folder):
    up = subprocess.run([SLURM, "up", str(N_NODE), folder], capture_output=True, text=True, timeout=240,
                        env=dict(ENV, SLURM_LOCAL_PORT=str(random.randrange(16000, 18000, 10))))
    assert up.returncode == 0, up.stderr
    STATE["conf"] = up.stdout.strip().splitlines()[-1]


def run_cases():
    lacking = [p for p in ("mpirun",) if not shutil.which(p)]
    if lacking:
        print(f"1..0 # SKIP {lacking[0]} is not installed (openmpi-bin)")
        return 0
    slurm_is_here = any(fn.__name__ == "srun_pair" for fn in CASES)
    if slurm_is_here and OWN_HOSTS not in os.environ:
        in_own_hosts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a time limit's: the nodes do not stay
    with tempfile.TemporaryDirectory(prefix="graft-cluster-") as folder:
        STATE["dir"] = folder
        try:
            if slurm_is_here:
                with_slurm(os.path.join(folder, "slurm"))
            status = main(0 if slurm_is_here else 1)
        finally:
            if "conf" in STATE:
                subprocess.run([SLURM, "down", os.path.join(folder, "slurm")], check=False, capture_output=True)
    if not slurm_is_here:
        print(f"ok {len(CASES) + 1} - slurm # SKIP slurm-wlm and munge are not installed, or this is not root")
    return status
