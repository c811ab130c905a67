#!/usr/bin/env python3
"""graft-bench sweep on this host's CPUs: tiny points, a kill in the middle, and what cannot run.

usage: test_sweep.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import BUILD, HEAD, ROOT, SLOW, TARGET, alive, case, children, main, wait_for

BENCH = os.path.join(BUILD, "graft-bench")
TINY = ("--n-draft", "1", "--n-target", "1,2", "--sessions", "1,2", "--max-tokens", "16", "--plots", "none")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("GRAFT_", "SLURM", "OMPI_", "PMI"))}
# Of the tiny points: fleet, mode, sessions.
WANTED = {(fleet, mode, n) for n in (1, 2) for fleet, modes in
          (("split h1 t1 d1 tp1", ["trees"]), ("split h1 t2 d1 tp1", ["trees"]), ("whole h1 t2 tp1", ["plain", "trees"]),
           ("whole h1 t3 tp1", ["plain", "trees"])) for mode in modes}


def sweep(folder, *args, status=0, timeout=300, path=ENV["PATH"]):
    done = subprocess.run([BENCH, "sweep", "--save", folder, *args], capture_output=True, text=True, cwd=ROOT,
                          env=dict(ENV, PATH=path), timeout=timeout * SLOW, check=False)
    assert done.returncode == status, (args, done.returncode, done.stdout[-500:], done.stderr[-1500:])
    return done


def lines(folder):
    try:
        with open(os.path.join(folder, "runs.jsonl"), encoding="utf-8") as f:
            return [x for x in f.read().splitlines(keepends=True) if x.endswith("\n")]
    except FileNotFoundError:
        return []


def runs(folder):
    """(fleet, mode, sessions, repeat) of each run that was measured, in order."""
    rows = [json.loads(x) for x in lines(folder)]
    return [(r["fleet"], r["mode"], r["sessions"], r["repeat"]) for r in rows if "row" in r]


def points(folder):
    with open(os.path.join(folder, "points.json"), encoding="utf-8") as f:
        return json.load(f)


def descendants(pid):
    out = []
    for child, _ in children(pid):
        out += [child, *descendants(child)]
    return out


def check_whole(folder, n_repeat):
    done = runs(folder)
    assert sorted(done) == sorted((*w, r) for w in WANTED for r in range(n_repeat)), done
    table = points(folder)
    rows = table["rows"]
    assert len(rows) == len(WANTED) and all(r["runs"] == n_repeat for r in rows), rows
    # On a busy machine one session may end before the next begins.
    assert all(re.search("all decoded|bound by admission: [1-9]", r["note"]) for r in rows if r["note"]), rows
    for r in rows:
        devices = r["targets"] + (r["drafters"] or 0)
        assert r["devices"] == devices and abs(r["tok/s a device"] - r["tok/s"] / devices) < 0.1, r
        beside = [q for q in rows if q["devices"] == devices and q["sessions"] == r["sessions"]]
        for mode in ("plain", "co-located"):
            best = max(q["tok/s"] for q in beside if q["mode"] == mode)
            assert abs(r["x " + mode] - r["tok/s"] / best) < 0.011, (r, best)
    return table


@case
def killed_and_gone_on():
    """A sweep that is killed keeps what it had, leaves no process, and the same command measures the rest alone."""
    with tempfile.TemporaryDirectory() as d:
        folder = os.path.join(d, "s")
        with open(os.path.join(d, "err"), "w+", encoding="utf-8") as err:
            p = subprocess.Popen([BENCH, "sweep", "--save", folder, "--repeat", "2", *TINY], stdout=subprocess.DEVNULL,
                                 stderr=err, cwd=ROOT, env=ENV)
            mine = set()
            wait_for(lambda: mine.update(descendants(p.pid)) or len(runs(folder)) >= 4, 120)
            mine.update(descendants(p.pid))
            assert p.poll() is None
            p.send_signal(signal.SIGKILL)
            p.wait()
            wait_for(lambda: not any(alive(pid) for pid in mine), 30)
        before, text = runs(folder), "".join(lines(folder))
        assert 4 <= len(before) < 2 * len(WANTED)
        with open(os.path.join(folder, "runs.jsonl"), "a", encoding="utf-8") as f:
            f.write('{"by": "cut in the mid')
        done = sweep(folder, "--repeat", "2", *TINY)
        assert "cut short" in done.stderr, done.stderr
        assert "".join(lines(folder)).startswith(text) and runs(folder)[:len(before)] == before
        order = [r for *_, r in runs(folder)]  # a slow minute of the machine hits one repetition of each point
        assert order == sorted(order), order
        table = check_whole(folder, 2)
        about = table["provenance"]
        assert {"commit", "compiler", "machine", "cards", "driver", "nics", "launcher", "with", "options"} <= set(about)
        again = sweep(folder, "--repeat", "2", *TINY, timeout=20)
        assert "# split" not in again.stderr and len(runs(folder)) == 2 * len(WANTED), again.stderr
        with open(os.path.join(folder, "provenance.json"), encoding="utf-8") as f:
            assert json.load(f)["with"]["max-tokens"] == "16"
        told = sweep(folder, "--repeat", "2", *TINY, "--report", "--devices", "cuda:7", timeout=20)  # measured elsewhere
        assert points(folder)["rows"] == table["rows"] and "tokens/s a client" not in told.stderr
        more = sweep(folder, "--repeat", "2", *TINY, "--max-tokens", "17")  # that is another measurement
        assert more.stderr.count(", repetition ") == 8, more.stderr


@case
def interrupted():
    """SIGTERM: what was measured is reported, and nothing is left."""
    with tempfile.TemporaryDirectory() as d:
        folder = os.path.join(d, "s")
        p = subprocess.Popen([BENCH, "sweep", "--save", folder, "--repeat", "5", *TINY], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENV)
        mine = set()
        wait_for(lambda: mine.update(descendants(p.pid)) or len(runs(folder)) >= 2, 120)
        p.terminate()
        out, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 143 and "goes on after what it has measured" in err, (p.returncode, err)
        assert sum(r["runs"] for r in points(folder)["rows"]) == len(runs(folder)) and "not run yet" in out, out
        wait_for(lambda: not any(alive(pid) for pid in mine), 30)


@case
def what_cannot_run_is_told():
    with tempfile.TemporaryDirectory() as d:
        folder = os.path.join(d, "s")
        sweep(folder, "--tp", "1,4", "--hosts", "1,2", "--sessions", "1,3000", "--max-tokens", "8", "--plots", "none",
              "--repeat", "1", "-o", "csv")
        with open(os.path.join(folder, "points.csv"), encoding="utf-8", newline="") as f:
            rows = list(csv.DictReader(f))
        notes = {(r["hosts"], r["tp"], r["mode"], r["sessions"]): r["note"].split(" of the tokens")[0] for r in rows if r["devices"] == "2" or r["mode"] == "split"}
        assert notes["1", "1", "split", "1"] == "", notes
        assert notes["1", "1", "split", "3000"] == "3000 sessions: 1 target has room for 256", notes
        assert notes["1", "4", "split", ""] == "tp 4: the target's 2 KV heads cannot be shared out so", notes
        assert notes["2", "1", "split", ""] == "2 hosts are needed, there is 1", notes
        assert notes["1", "4", "plain", ""] == "2 devices are no multiple of tp 4", notes
        assert {r["runs"] for r in rows if r["note"] != "" and "all decoded" not in r["note"]} == {"0"}


@case
def what_does_not_come_up_is_told():
    """The drafter's folder holds a head of another target: split fleets do not start, whole ones decode plainly."""
    with tempfile.TemporaryDirectory() as d:
        folder, bad = os.path.join(d, "s"), os.path.join(d, "head")
        os.mkdir(bad)
        for name in os.listdir(HEAD):
            with open(os.path.join(HEAD, name), "rb") as f, open(os.path.join(bad, name), "wb") as g:
                g.write(f.read() if name.endswith("config.json") else b"no weights")
        sweep(folder, "--n-target", "1", "--sessions", "1", "--max-tokens", "8", "--plots", "none", "--repeat", "2",
              "--draft", bad)
        rows = {r["mode"]: r for r in points(folder)["rows"]}
        for mode in ("split", "co-located"):
            assert rows[mode]["runs"] == 0 and "ended with status" in rows[mode]["note"] and bad in rows[mode]["note"], rows
        assert rows["plain"]["runs"] == 2 and rows["plain"]["tok/s"] > 0 and rows["plain"]["note"] is None, rows


@case
def commands_are_told():
    """Sixty hosts, groups on GPUs, words for the workers; nothing runs."""
    with tempfile.TemporaryDirectory() as d:
        hosts = ",".join(f"h{i}" for i in range(60))
        args = ("--n-target", "60", "--tp", "1,2", "--devices", "cuda:0,cuda:1,cuda:2", "--hosts", "60", "--plots", "none",
                "--worker-options", "--kv-blocks 77", "--model", TARGET, "--dry-run")
        done = sweep(os.path.join(d, "s"), *args, "--host-names", hosts)
        line = next(x for x in done.stdout.splitlines() if x.startswith("mpirun"))
        groups = next(x for x in done.stdout.splitlines() if x.startswith("mpirun") and " --tensor-parallel-size 2 " in x)
        assert groups.count(" --target-device cuda:local ") == 60 and " --host h0:3 " in groups and " --host h1:1 " in groups, groups[:900]
        assert line.count(" --host ") == 60 and "--host h59:1 " in line and "--host h0:3 " in line, line[:900]
        assert line.count("--kv-blocks 77") == 60 and line.count(",target:1") == 60 * 60 and "cuda:local" in line
        args = tuple("1" if x == "60" else x for x in args)
        lines = sweep(os.path.join(d, "s"), *args).stdout.splitlines()
        lines = lines[lines.index("# split h1 t1 d1 tp2, 3 devices"):]
        target, draft = lines[1:3]
        assert " --device cuda:0,cuda:1 --tensor-parallel-size 2 " in target and "--kv-blocks 77" in target, target
        assert " --device cuda:2 " in draft and "--kv-blocks 77" in draft, draft
        assert not os.path.exists(os.path.join(d, "s"))


def made_folder(folder):
    """Results of one, two and four hosts with 1 and 8 clients, made up: 100 h n tokens/s over h hosts with n clients plainly,
    1.5 times that co-located, 1.2 split, where rounds wait for 2 ms of 10 (n = 8: 4)."""
    os.mkdir(folder)
    with open(os.path.join(folder, "runs.jsonl"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"about": {"hosts": ["a", "b", "c", "d"], "with": {"devices": [-1]}}, "digest": "made up"}) + "\n")
        for h, n in ((h, n) for h in (1, 2, 4) for n in (1, 8)):
            for fleet, mode, x in ((f"split h{h} t3 d1 tp1", "trees", 1.2), (f"whole h{h} t4 tp1", "trees", 1.5),
                                   (f"whole h{h} t4 tp1", "plain", 1.0)):
                speed = 100.0 * h * n * x
                row = {"sessions": n, "mode": mode, "tok/s": speed, "tok/s a client": speed / n, "round ms": 10.0,
                       "transport ms": 2.0 if n == 1 else 4.0, "all decode %": 100.0}
                f.write(json.dumps({"by": "made up", "fleet": fleet, "mode": mode, "sessions": n, "repeat": 0, "row": row}) + "\n")


def plotted(script):
    """{title of a line: its points} of a script for gnuplot, and the rest of it."""
    head, _, data = script.partition("\nplot ")
    titles = re.findall("title '([^']*)'", data.split("\n", 1)[0])
    series = data.split("\n", 1)[1].split("e\n")
    assert len(series) == len(titles) + 1 and series[-1] == "", script
    return head, {t: [tuple(float(v) for v in x.split()) for x in points.splitlines()] for t, points in zip(titles, series)}


def gnuplot_that_tells(folder):
    """A gnuplot that keeps its scripts in said.1, said.2, ... and then draws, where there is one to draw."""
    real = shutil.which("gnuplot")
    draws = (f"exec {real} \"$script\"" if real else
             "sed -n \"s/^set output '\\(.*\\)'/\\1/p\" \"$script\" | while read -r to; do echo picture > \"$to\"; done")
    with open(os.path.join(folder, "gnuplot"), "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n[ $# -eq 0 ] || exit 0\nscript={folder}/said.$(ls {folder} | grep -c said)\ncat > $script\n{draws}\n")
    os.chmod(os.path.join(folder, "gnuplot"), 0o755)
    return real is not None


@case
def pictures():
    """What each picture shows, and that gnuplot draws it; without gnuplot a sweep says that there are none."""
    with tempfile.TemporaryDirectory() as d:
        folder = os.path.join(d, "s")
        made_folder(folder)
        command = ("--hosts", "1,2,4", "--n-target", "3", "--sessions", "8,1", "--repeat", "1", "--report")
        is_real = gnuplot_that_tells(d)
        for ending, magic in (("png", b"\x89PNG\r\n"), ("svg", b"<?xml")):
            sweep(folder, *command, "--plots", ending, path=d + ":" + os.environ["PATH"])
            for name in ("speed", "transport", "hosts"):
                with open(os.path.join(folder, name + "." + ending), "rb") as f:
                    picture = f.read()
                assert picture.startswith(magic) and len(picture) > 4000 if is_real else picture == b"picture\n", (name, picture[:80])
        scripts = []
        for i in range(6):
            with open(os.path.join(d, f"said.{i}"), encoding="utf-8") as f:
                scripts.append(plotted(f.read()))
        assert [s[1] for s in scripts[:3]] == [s[1] for s in scripts[3:]]
        check_pictures(scripts[:3])
        alone = os.path.join(d, "no programs")
        os.mkdir(alone)
        told = sweep(folder, *command, path=alone)
        assert [x for x in told.stderr.splitlines() if "gnuplot" in x and "no pictures were drawn" in x], told.stderr
        told = sweep(folder, *command, "--plots", "png", path=alone, status=1)
        assert "--plots: the program gnuplot is not installed" in told.stderr, told.stderr


def check_pictures(scripts):
    (speed, speeds), (transport, shares), (hosts, costs) = scripts
    assert "[tokens/s]" in speed and ", 1, 8 clients" in speed and len(speeds) == 9, (speed, speeds)
    assert speeds["plain: 4 targets"] == [(100, 25), (100, 200)], speeds
    assert speeds["split: 3 targets + 1 drafter, 4 hosts"] == [(480, 120), (480, 960)], speeds
    assert "% of a round" in transport and set(shares) == {"split: 3 targets + 1 drafter" + h for h in ("", ", 2 hosts", ", 4 hosts")}
    assert all(points == [(1, 20), (8, 40)] for points in shares.values()), shares
    assert "[device seconds]" in hosts and set(costs) == {"split", "co-located", "plain"}, (hosts, costs)
    assert costs["plain"] == [(1, 5), (2, 2.5), (4, 1.25)], costs  # 8 clients, four devices: 1000 / (800 h / 4)


@case
def one_line_for_each_mistake():
    with tempfile.TemporaryDirectory() as d:
        other = os.path.join(d, "other")
        os.mkdir(other)
        with open(os.path.join(other, "runs.jsonl"), "w", encoding="utf-8") as f:
            f.write('{"rows": 1}\n')
        for args, status, words in (
                (("--save", other, "--tp", "1"), 1, "no run of a sweep"),
                (("--save", "/proc/sweep", "--tp", "1"), 1, "/proc/sweep"),
                (("--save", os.path.join(d, "none"), "--tp", "1", "--report"), 1, "No such file"),
                (("--devices", "cpu,cuda:0"), 2, "--devices"),
                (("--devices", "cuda:0,cuda:0"), 2, "--devices"),
                (("--launcher", "none", "--host-names", "a"), 2, "mpirun"),
                (("--tp", "1", "--worker-options", 17 * "--x "), 2, "--worker-options: more than 16 words"),
                (("--launcher", "srun", "--tp", "1"), 2, "SLURM_JOB_NODELIST"),
                (("--tp", "1", "--model", "/no/such"), 1, "/no/such")):
            done = subprocess.run([BENCH, "sweep", *args, "--plots", "none"], capture_output=True, text=True, cwd=d, env=ENV,
                                  timeout=60 * SLOW, check=False)
            told = [x for x in done.stderr.splitlines() if not x.startswith("#")]
            assert done.returncode == status and len(told) == 1 and words in told[0], (args, done.returncode, done.stderr)


@case
def a_cold_start_is_no_part():
    """The only target stands still for some seconds after clients have asked: the first run of a row is warm-up and takes
    it. Where a target has KV for one session at a time, the row says that the others waited, however many of their prompts
    have lost their KV meanwhile."""
    with tempfile.TemporaryDirectory() as d:
        for name, stop, more in (("cold", True, ()), ("narrow", False, ("--kv-blocks", "7"))):
            env, serve, address = serving(d, name, "--sessions", "4", "--max-model-len", "96", *more)
            try:
                target = next(p for p in descendants(serve.pid) if program_of(p) == "graft-target")
                if stop:
                    os.kill(target, signal.SIGSTOP)
                clients = subprocess.Popen([BENCH, "clients", "--connect", address, "--targets", "1", "--sessions", "4", "--modes", "plain",
                                            "--max-tokens", "64", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                           text=True, cwd=ROOT, env=env)
                time.sleep(2.5 if stop else 0)  # the cold start itself
                os.kill(target, signal.SIGCONT)
                row = json.loads(clients.communicate(timeout=60 * SLOW)[0])["rows"][0]
                assert clients.returncode == 0 and (row["waited"] > 0) == (not stop), row
                assert not stop or row["ttft ms"] < 1900 * SLOW, row  # most of the stop is not in it
            finally:
                serve.terminate()
                serve.wait()


def program_of(pid):
    return os.path.basename(os.readlink(f"/proc/{pid}/exe"))


def serving(folder, name, *more):
    """graft serve with a target: (environment of its clients, its process, its address)"""
    key, ready = os.path.join(folder, name + ".key"), os.path.join(folder, name + ".ready")
    subprocess.run([os.path.join(BUILD, "graft"), "serve", "--make-key", key], check=True, stdout=subprocess.DEVNULL)
    env = dict(ENV, GRAFT_KEY_FILE=key)
    serve = subprocess.Popen([os.path.join(BUILD, "graft"), "serve", "--control", "127.0.0.1:0", "--ready-file", ready, "--spawn",
                              "--model", TARGET, *more], env=env, stderr=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(ready), 60)
    with open(ready, encoding="utf-8") as f:
        address = f.read().strip()
    subprocess.run([os.path.join(BUILD, "graft"), "wait"], check=True, env=dict(env, GRAFT_CONNECT=address), timeout=60 * SLOW)
    return env, serve, address


@case
def clients_of_a_server():
    """What a server refuses is told, and the other numbers of sessions are measured."""
    with tempfile.TemporaryDirectory() as d:
        env, serve, address = serving(d, "few", "--sessions", "2")
        try:
            done = subprocess.run([BENCH, "clients", "--connect", address, "--sessions", "2,3,1", "--modes", "plain",
                                   "--max-tokens", "12", "-o", "json"], capture_output=True, text=True, cwd=ROOT, env=env,
                                  timeout=60 * SLOW, check=False)
            assert done.returncode == 1 and "3 sessions:" in done.stderr, done.stderr
            rows = json.loads(done.stdout)["rows"]
            assert [r["sessions"] for r in rows] == [2, 1] and len({r["texts"] for r in rows}) == 1, rows
        finally:
            serve.terminate()
            serve.wait()


if __name__ == "__main__":
    sys.exit(main())
