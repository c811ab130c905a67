"""Orchestrator, target and drafter on hosts of their own, as a cluster has them (tests/system/hosts.py), and what each is
told of the others.

usage: test_hosts.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys

from harness import BUILD, CASES, DRAFT, ENDLESS, GRAFT, SLOW, TARGET, case, children, main, run, wait_for
from hosts import hosts, missing
from served import FIXED, PLAIN, Folder, Serve, free_port, one_line, worker
from stream import closed, running_again

TARGET_EXE, DRAFT_EXE = (os.path.join(BUILD, name) for name in ("graft-target", "graft-draft"))
PROMPT = ("--prompt", "def fibonacci(n):", "--max-tokens", "60")
PORT = 5055
WHY = missing()


def apart(fn):
    """A case that needs hosts; where they cannot be had it says so and passes."""
    def skipped():
        print(f"# {fn.__name__}: skipped: {WHY}")
    skipped.__name__ = fn.__name__
    CASES.append(fn if WHY is None else skipped)
    return fn


class Job:
    """A server on host o; its workers' and clients' environment."""

    def __init__(self, o, *args, control=f":{PORT}", names=(), **env):
        self.folder, self.o = Folder(), o
        self.env = {k: v for k, v in self.folder.env(**env).items() if k not in ("GRAFT_LOG", "GRAFT_CONNECT")}
        self.ready = self.folder.path("ready")
        self.serve = o.start(GRAFT, "serve", "--control", control, "--ready-file", self.ready, *args, names=names,
                             log=self.path("serve"), env=self.env)
        wait_for(lambda: os.path.exists(self.ready) or self.serve.poll() is not None)
        assert self.serve.poll() is None, self.log("serve")

    def path(self, name):
        return self.folder.path(name + ".err")

    def log(self, name):
        with open(self.path(name), encoding="utf-8") as f:
            return f.read()

    def start(self, name, host, exe, model, *args, join=None, names=(), **env):
        return host.start(exe, "--model", model, "--join", join or f"{self.o.four}:{PORT}", *args, names=names,
                          log=self.path(name), env=dict(self.env, **env))

    def target(self, host, *args, name="target", **kw):
        return self.start(name, host, TARGET_EXE, TARGET, *args, **kw)

    def drafter(self, host, *args, name="draft", **kw):
        return self.start(name, host, DRAFT_EXE, DRAFT, *args, **kw)

    def client(self, *args, status=0):
        done = self.o.run(GRAFT, args[0], *args[1:], env=dict(self.env, GRAFT_CONNECT=f"127.0.0.1:{PORT}"),
                          timeout=60 * SLOW)
        assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr, self.log("serve"))
        return done

    def workers(self):
        return json.loads(self.client("session", "list", "--json").stdout)["workers"]

    def joined(self, n):
        wait_for(lambda: len(self.workers()) == n)
        return self.workers()

    def generate(self, *args):
        return json.loads(self.client("run", "--json", *PLAIN, *PROMPT, *FIXED, *args).stdout)


def plain_ids():
    out = run("run", "--json", "--model", TARGET, *PROMPT, "--ignore-eos", "--method", "none")
    return json.loads(out.stdout)["token_ids"]


def drafted(job):
    out = job.generate()
    assert out["token_ids"] == plain_ids()
    assert out["metrics"]["num_drafts"] > 0, (out["metrics"], job.log("draft"), job.log("serve"))
    return out


@apart
def a_target_without_options_is_reached_from_other_hosts():
    with hosts("def", "co", "ct", "cd") as (o, t, d):
        for host in (o, t, d):
            host.add_docker()
        job = Job(o)
        with open(job.ready, encoding="utf-8") as f:
            told = f.read().strip()
        assert told.startswith(f"{o.four}:{PORT}") and "172.17" not in told and "0.0.0.0" not in told, told
        job.target(t)
        job.drafter(d, join=told)
        rows = {w["role"]: w for w in job.joined(2)}
        assert rows["target"]["address"].startswith(t.four + ":"), rows
        assert "172.17" not in rows["target"]["address"] and t.six in rows["target"]["address"], rows
        assert (rows["target"]["host"], rows["target"]["peer"]) == ("ct", t.four), rows
        assert (rows["draft"]["host"], rows["draft"]["peer"]) == ("cd", d.four), rows
        out = drafted(job)
        assert out["metrics"]["transport"] == "tcp", out["metrics"]
        listed = job.client("session", "list").stdout
        assert f"draft, host cd, from {d.four}" in listed, listed
        # A log at the default level tells who came, when and from where.
        joined = [x for x in job.log("serve").splitlines() if "has joined" in x]
        assert len(joined) == 2, job.log("serve")
        assert re.match(r"\d\d:\d\d:\d\d\.\d{3} co graft: target worker \d+ has joined \(host ct, address "
                        + re.escape(t.four), joined[0] if "target" in joined[0] else joined[1]), joined


@apart
def everything_over_ipv6_alone():
    with hosts("six", "co", "ct", "cd") as (o, t, d):
        for host in (o, t, d):
            host.ip("address", "flush", "dev", "eth0", "scope", "global")
            host.ip("address", "add", f"{host.six}/64", "dev", "eth0", "nodad")
        job = Job(o)
        for start, host in ((job.target, t), (job.drafter, d)):
            start(host, join=f"[{o.six}]:{PORT}")
        job.joined(2)
        drafted(job)


@apart
def a_loopback_listener_is_warned_of_on_both_sides():
    with hosts("lo", "co", "ct") as (o, t):
        job = Job(o)
        job.target(t, "--listen", "127.0.0.1:0")
        job.joined(1)
        assert "leads drafters of other hosts to themselves" in job.log("serve"), job.log("serve")
        assert "leads other hosts to themselves" in job.log("target"), job.log("target")


@apart
def a_target_that_joins_by_loopback_is_for_its_own_host():
    with hosts("own2", "co", "cd") as (o, d):
        job = Job(o)
        job.target(o, join=f"127.0.0.1:{PORT}")
        job.drafter(d)
        rows = {w["role"]: w for w in job.joined(2)}
        assert rows["target"]["address"].startswith("127.0.0.1:"), rows
        wait_for(lambda: "cannot reach target worker" in job.log("serve"))
        assert "host cd" in job.log("serve") and "--listen :0" in job.log("serve"), job.log("serve")
        job.target(o, "--listen", ":0", name="second", join=f"127.0.0.1:{PORT}")
        n = job.log("serve").count("cannot reach")
        at = [w["address"] for w in job.joined(3) if w["role"] == "target"]
        assert any(f"{o.four}:" in x for x in at) and job.log("serve").count("cannot reach") == n, at


@apart
def another_target_at_the_address_is_passed_over():
    """Both hosts have a target at docker0's address; the one beside the drafter is not the session's."""
    with hosts("id", "co", "ct", "cd") as (o, t, d):
        t.add_docker()
        d.add_docker()
        job, other = Job(o), Job(d, control=f"127.0.0.1:{PORT}")
        other.env["GRAFT_KEY_FILE"] = job.env["GRAFT_KEY_FILE"]
        other.serve.kill()
        other.serve.wait()
        os.remove(other.ready)
        other.serve = d.start(GRAFT, "serve", "--control", f"127.0.0.1:{PORT}", "--ready-file", other.ready,
                              log=other.path("serve"), env=other.env)
        wait_for(lambda: os.path.exists(other.ready))
        other.target(d, "--listen", "172.17.0.1:7777", join=f"127.0.0.1:{PORT}")
        wait_for(lambda: "has joined" in other.log("serve"))
        job.target(t, "--listen", "172.17.0.1:7777")
        job.drafter(d)
        job.joined(2)
        done = job.client("run", *PLAIN, *PROMPT, *FIXED)
        said = [x for x in job.log("draft").splitlines() if "incarnation" in x]
        assert len(said) == 1 and "172.17.0.1:7777 (from 172.17.0.1:" in said[0], job.log("draft")
        assert "incarnation" in other.log("target") and "172.17.0.1" in other.log("target"), other.log("target")
        assert "the drafter that is there was not used" in done.stderr and "incarnation" in done.stderr, done.stderr
        out = json.loads(job.client("run", "--json", *PLAIN, *PROMPT, *FIXED).stdout)
        assert "incarnation" in out["undrafted"] and out["metrics"]["num_drafts"] == 0, out


def session(job):
    """The only one."""
    return json.loads(job.client("session", "list", "--json").stdout)["sessions"][0]


@apart
def a_data_path_that_comes_up_in_the_turn_is_used():
    with hosts("late", "co", "ct", "cd") as (o, t, d):
        job = Job(o)
        job.target(t)
        d.ip("route", "add", "blackhole", f"{t.four}/32")
        d.ip("route", "add", "blackhole", f"{t.six}/128")
        job.drafter(d)
        job.joined(2)
        with open(job.folder.path("out"), "w", encoding="utf-8") as out:
            client = subprocess.Popen(o.command(GRAFT, "run", "--json", *PLAIN, "--prompt", "import os",
                                                "--max-tokens", str(ENDLESS), *FIXED), stdout=out,
                                      stderr=subprocess.PIPE, text=True,
                                      env=dict(job.env, GRAFT_CONNECT=f"127.0.0.1:{PORT}"))
        wait_for(lambda: "cannot connect" in job.log("draft"))
        d.ip("route", "del", "blackhole", f"{t.four}/32")
        d.ip("route", "del", "blackhole", f"{t.six}/128")
        wait_for(lambda: session(job)["num_drafts"] > 0)
        job.client("session", "close", session(job)["id"])
        _, err = client.communicate(timeout=120 * SLOW)
        assert client.returncode == 1 and "another client has closed" in err, (err, job.log("serve"))
        with open(job.folder.path("out"), encoding="utf-8") as f:
            metrics = json.load(f)["metrics"]
        assert metrics["num_drafts"] > 0 and metrics["transport"] == "tcp", (metrics, job.log("serve"), job.log("draft"))
        assert len([x for x in job.log("draft").splitlines() if "cannot connect" in x]) == 1, job.log("draft")
        told = [x for x in job.log("serve").splitlines() if "[fallback]" in x]
        assert len(told) == 1 and f"(host cd, address {d.four}): cannot connect to {t.four}" in told[0], told


@apart
def names_that_come_late_and_addresses_that_are_silent():
    with hosts("dns", "co", "ct", "cd") as (o, t, d):
        path = os.path.join(o.net.dir.name, "names")
        with open(path, "w", encoding="utf-8") as f:
            f.write("127.0.0.1 localhost\n")
        job = Job(o)
        line = ["mount", "--bind", path, "/etc/hosts"]
        # The target's host learns the name of the head only when it has been asked for a while.
        target = t.start("sh", "-c", " ".join(line) + ' && exec "$@"', "sh", TARGET_EXE, "--model", TARGET, "--join",
                         f"head:{PORT}", log=job.path("target"), env=dict(job.env, GRAFT_LOG="info"))
        wait_for(lambda: "nobody listens on head" in job.log("target"))
        assert target.poll() is None
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"{o.four} head\n")
        # The drafter's has a first address that nobody has: it costs a moment.
        job.drafter(d, join=f"head:{PORT}", names=("10.91.7.200 head", f"{o.four} head"))
        job.joined(2)
        drafted(job)
        late = d.run(DRAFT_EXE, "--model", DRAFT, "--join", f"nohead:{PORT}", "--join-timeout", "5", env=job.env,
                     names=("10.91.7.200 nohead", "10.91.7.201 nohead"))
        assert late.returncode == 1, late
        one_line(late, "within 5 s", "10.91.7.200:5055", "10.91.7.201:5055")


@apart
def a_host_whose_own_name_is_loopback_is_warned_of():
    with hosts("own", "co") as (o,):
        job = Job(o, control=f"co:{PORT}", names=("127.0.1.1 co",))
        said = job.log("serve")
        assert "127.0.1.1" in said and "no other host reaches it" in said and f"`:{PORT}'" in said, said


# ---- on one host ----


@case
def workers_of_another_job_are_refused():
    with Serve("--cluster", "mine", spawn=False) as named:
        env = dict(SLURM_JOB_ID="4711")
        with worker("graft-target", named.folder, named.address, **env) as t:
            assert t.wait(timeout=30 * SLOW) == 1
            said = t.stderr.read()
            assert "slurm-job-4711" in said and "`mine'" in said and named.address in said, said
        wait_for(lambda: "slurm-job-4711" in named.log())
        assert "a connection from 127.0.0.1" in named.log(), named.log()
        with worker("graft-target", named.folder, named.address, "--cluster", "mine", **env):
            named.wait()
        named.graft("ping")  # a client of no job is welcome
        with socket.create_connection(named.address.rsplit(":", 1)) as http:
            http.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            wait_for(lambda: "warning: an HTTP request came" in named.log())


@case
def a_second_server_at_a_taken_port_says_so():
    with Serve(spawn=False) as s:
        one_line(s.graft("serve", "--control", s.address, status=1), "port in use", s.address)


@case
def the_ready_file_is_waited_for_and_goes_away():
    folder = Folder()
    ready = folder.path("ready")
    with worker("graft-target", folder, "@" + ready, "--join-timeout", "30") as t:
        assert t.poll() is None
        with Serve(spawn=False, folder=folder) as s:
            s.wait()
            s.p.send_signal(signal.SIGTERM)
            assert s.p.wait(timeout=20 * SLOW) == 0
            assert not os.path.exists(ready)


@case
def ranges_of_ports():
    port = free_port()
    with Serve(spawn=False, control=f"127.0.0.1:{port}-{port + 20}") as a:
        with Serve(spawn=False, control=f"127.0.0.1:{port}-{port + 20}") as b:
            assert a.address != b.address and int(b.address.split(":")[1]) in range(port, port + 21)
        one_line(a.graft("serve", "--control", "127.0.0.1:9-8", status=2), "--control", "5080-5090")


@case
def a_check_of_health_is_no_error():
    with Serve(spawn=False) as s:
        host, port = s.address.split(":")
        for _ in range(20):
            socket.create_connection((host, int(port))).close()
        for _ in range(5):  # with a reset
            c = socket.create_connection((host, int(port)))
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            c.close()
        s.graft("ping")
        assert "error" not in s.log() and "warning" not in s.log(), s.log()
        c = socket.create_connection((host, int(port)))
        c.send(b"GET / HTTP/1.0\r\n\r\n")
        wait_for(lambda: "a connection from 127.0.0.1" in s.log())
        c.close()


@case
def a_killed_target_costs_its_drafter_one_line():
    with Serve(spawn=False) as s, worker("graft-target", s.folder, s.address, "--supervise") as t, \
         worker("graft-draft", s.folder, s.address, "--transport", "tcp") as d:
        s.wait("--draft", DRAFT)
        turn = s.start(*FIXED, "--transport", "tcp", tokens=ENDLESS)
        s.wait_running(10)
        os.kill(children(t.pid)[0][0], signal.SIGKILL)
        running_again(s.sessions)
        assert closed(s, turn)["metrics"]["reopens"] == 1
        d.kill()
        lines = [x for x in d.stderr.read().splitlines() if " warning: " in x or " error: " in x]
        assert len(lines) <= 1 and not any("lost its connection" in x for x in lines), lines
        t.terminate()


@case
def options_of_workers_from_the_environment():
    with Serve(spawn=False) as s:
        env = s.env(GRAFT_JOIN=s.address, GRAFT_MODEL=TARGET, GRAFT_THREADS="1", GRAFT_LISTEN="127.0.0.1:0")
        p = subprocess.Popen([TARGET_EXE], env=env, stderr=subprocess.PIPE, text=True)
        try:
            s.wait()
        finally:
            p.kill()
            p.communicate()


@case
def more_threads_than_cpus_are_warned_of():
    with Serve(spawn=False) as s:
        env = dict(SLURM_CPUS_PER_TASK="1", SLURM_JOB_ID="1", GRAFT_CLUSTER="")
        with worker("graft-target", s.folder, s.address, "--threads", "2", **env) as t:
            s.wait()
            t.kill()
            log = t.stderr.read()
            assert "may use 1 CPU (" in log, log


if __name__ == "__main__":
    sys.exit(main())
