#!/usr/bin/env python3
"""Runs the test suites of ./test and counts their cases.

Each suite is one build: gcc with warnings as errors, clang with AddressSanitizer and UBSan (with the fuzzers), clang with
ThreadSanitizer for what has threads, gcc with the kernels for a GPU in software. Meson runs the test programs; the cases
are counted from their TAP output.

Three things go on beside others, so that no core waits: packages that only tests need are installed while gcc builds,
the builds that follow a sanitizer's are made while its tests run, which judge no times, and tests of the suite `aside',
which mostly wait for other processes, run one at a time beside all the rest of their build.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import threading
import time

# Without a GPU nothing runs the kernels: they are compiled to see that they can be, and fast code takes five times as
# long to make.
CUDA = [] if glob.glob("/dev/nvidia[0-9]*") else ["-Dkernels_check_only=true"]
BUILDS = [
    # name, folder, CC, meson arguments, meson test arguments
    ("gcc", "build-test/gcc", "gcc", ["-Dwerror=true", *CUDA], ["--no-suite", "long"]),
    ("clang asan+ubsan", "build-test/asan", "clang",
     ["-Dbuildtype=debug", "-Doptimization=1", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled",
      "-Dc_args=-fno-sanitize-recover=all"],
     ["--no-suite", "slow", "--no-suite", "long", "--no-suite", "rdma"]),
    ("clang tsan", "build-test/tsan", "clang",
     ["-Dbuildtype=debugoptimized", "-Db_sanitize=thread", "-Db_lundef=false", "-Dfuzz=disabled",
      "-Dcuda=disabled"],
     ["--suite", "transport", "--suite", "threads"]),
    ("soft gpu", "build-test/soft", "gcc", ["-Dwerror=true", "-Dsoft_gpu=true", "-Dfuzz=disabled"],
     ["--suite", "soft_gpu", "--no-suite", "soft_gpu_long"]),
]


ASIDE = "aside"  # suite of tests that mostly wait: they go on beside all others, one at a time
# Tests of real processes wait for a third of their time.
PROCESSES = ["--num-processes", str((os.cpu_count() or 1) + 1)]
IN_LONG = {"gcc": "long", "clang asan+ubsan": "rdma", "soft gpu": "soft_gpu_long"}  # suites that --long adds
# Of every change: gcc's build, without what takes long or needs the RDMA machine. The rest is --all's.
QUICK = {"gcc": ["--no-suite", "long", "--no-suite", "rdma", "--no-suite", "all"]}


def with_suite(args, name):
    """The arguments without what leaves out the suite."""
    pairs = zip(args[::2], args[1::2])
    return [a for pair in pairs if pair != ("--no-suite", name) for a in pair]


def say(text):
    print(text, flush=True)


def run(argv, **kw):
    return subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)


def needed(folder, args):
    """What ninja must build for the tests of these suites; nothing for all."""
    suites = {"graft:" + name for option, name in zip(args[::2], args[1::2]) if option == "--suite"}
    if not suites:
        return []
    info = {}
    for name in ("tests", "targets"):
        with open(os.path.join(folder, "meson-info", f"intro-{name}.json"), encoding="utf-8") as f:
            info[name] = json.load(f)
    ids = {i for test in info["tests"] if suites & set(test["suite"]) for i in test["depends"]}
    return [os.path.relpath(path, os.path.abspath(folder))
            for target in info["targets"] if target["id"] in ids for path in target["filename"]]


class Build(threading.Thread):
    """Configures and builds a folder; afterwards `error` is what went wrong, or None."""

    def __init__(self, folder, cc, setup, args, nice=False, after=None):
        super().__init__(daemon=True)
        self.folder, self.cc, self.setup, self.args = folder, cc, setup, args
        self.nice = ["nice", "-n", "19"] if nice else []
        self.after = after
        self.error = "the build was not tried"
        self.start()

    def run(self):
        if self.after is not None:
            self.after.join()
        self.error = self.build()

    def build(self):
        env = dict(os.environ, CC=self.cc)
        if not os.path.exists(os.path.join(self.folder, "build.ninja")):
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            done = run([*self.nice, "meson", "setup", self.folder, *self.setup], env=env)
            if done.returncode != 0:
                return done.stdout
        else:  # what meson knows of the tests may be older than they are
            run([*self.nice, "ninja", "-C", self.folder, "build.ninja"], env=env)
        jobs = ["-j", str(max(1, (os.cpu_count() or 1) // 2))] if self.nice else []  # half of the machine
        done = run([*self.nice, "ninja", *jobs, "-C", self.folder, *needed(self.folder, self.args)])
        return None if done.returncode == 0 else done.stdout


def count_cases(entry):
    """Cases of one meson test: TAP lines if it printed any, else the test itself."""
    out = entry.get("stdout") or ""
    passed = failed = skipped = 0
    for line in out.splitlines():
        m = re.match(r"^(not ok|ok)\b(.*)", line)
        if not m:
            continue
        if re.search(r"#\s*skip", m.group(2), re.I):
            skipped += 1
        elif m.group(1) == "ok":
            passed += 1
        else:
            failed += 1
    result = entry["result"]
    if passed + failed + skipped == 0:
        return (result == "OK", result not in ("OK", "SKIP"), result == "SKIP")
    if result not in ("OK", "SKIP") and failed == 0:
        failed = 1  # crashed, timed out, or a sanitizer spoke after the last case
    return passed, failed, skipped


def skip_reasons(entry):
    """Why cases of one meson test were skipped, each reason once."""
    return sorted(set(re.findall(r"^ok\b.*#[ \t]*skip[ \t]+(\S.*)", entry.get("stdout") or "", re.I | re.M)))


def failed_cases(entry):
    """What one meson test printed of its failed cases: their lines and the notes below them."""
    said, keep = [], False
    for line in (entry.get("stdout") or "").splitlines():
        keep = line.startswith("not ok") or (keep and not line.startswith("ok "))
        if keep:
            said.append(line)
    return said[-200:]


def in_short(name, build, said):
    """One failure as it is told again at the end: its cases, and what is noted of each first."""
    lines = [line for before, line in zip(["", *said], said) if line.startswith("not ok") or before.startswith("not ok")]
    return [f"{build}: {name}: {line[:400]}" for line in lines] or [f"{build}: {name}: it ended without saying why"]


def run_suite(folder, args, env, log="testlog"):
    done = run(["meson", "test", "-C", folder, "--no-rebuild", "--timeout-multiplier", "3", "--print-errorlogs", "--logbase", log, *args], env=env)
    log = os.path.join(folder, "meson-logs", log + ".json")
    totals = [0, 0, 0]
    failures = []
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f:
            entry = json.loads(line)
            cases = count_cases(entry)
            totals = [a + int(b) for a, b in zip(totals, cases)]
            if cases[1]:
                failures.append((entry["name"], failed_cases(entry)))
                for said in failures[-1][1]:
                    say(f"{entry['name']}: {said}")
            for reason in skip_reasons(entry):
                say(f"{entry['name']}: skipped: {reason}")
    if done.returncode != 0 and not failures:  # it was killed, say: those after that have not run
        totals[1] += 1
        failures.append(("meson test", [f"not ok - it ended with status {done.returncode}, and not all tests have run"]))
    return totals, failures, done.stdout


class Lane(threading.Thread):
    """Runs tests beside others; afterwards `result` is what run_suite returned, or one failure."""

    def __init__(self, *args):
        super().__init__(daemon=True)
        self.args, self.result = args, ([0, 1, 0], [("those beside the others", [])], "")
        self.start()

    def run(self):
        self.result = run_suite(*self.args)


def start_packages(what):
    """The packages that only tests need. Where they are installed already, it takes no time."""
    return subprocess.Popen([os.path.join(os.path.dirname(os.path.abspath(__file__)), "prepare"), what])


def run_build(name, folder, args):
    """The tests of one build. Returns counts, and what failed, in short."""
    # Time limits of tests that watch processes: sanitizers cost a factor.
    env = dict(os.environ, GRAFT_TEST_SLOW="1" if name == "gcc" else "8")
    lane = None
    if "--suite" not in args:  # none is named, so these are among the tests
        lane = Lane(folder, [*args, "--suite", ASIDE, "--num-processes", "1"], env, "asidelog")
        args = [*args, "--no-suite", ASIDE, *PROCESSES]
    results = [run_suite(folder, args, env)]
    if lane is not None:
        lane.join()
        results.append(lane.result)
    for _, failures, out in results:
        if failures:
            print(out[-12000:])
            say(f"{name}: failed: {', '.join(test for test, _ in failures)}")
    shorts = [line for _, failures, _ in results for test, said in failures for line in in_short(test, name, said)]
    return [sum(column) for column in zip(*(counts for counts, _, _ in results))], shorts


def start_builds(others):
    """Starts builds one after the other, by name. They take what processors are left over."""
    started, before = {}, None
    for other in others:
        before = started[other[0]] = Build(*other[1:], nice=True, after=before)
    return started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="sanitizers, the RDMA machine, the GPU in software, soaks: what CI runs")
    parser.add_argument("--long", action="store_true", help="the full matrices as well")
    parser.add_argument("--only", help="only builds whose name contains this, with all of their tests")
    parser.add_argument("--install", action="store_true", help="first the packages that tests need")
    parser.add_argument("--last-start", type=float, default=float("inf"), metavar="S",
                        help="a build that is not begun after so many seconds is skipped: for who ends the run at some time")
    opts = parser.parse_args()
    chosen = [b for b in BUILDS if not opts.only or opts.only in b[0]]
    if not (opts.all or opts.long or opts.only):
        chosen = [(*b[:4], QUICK[b[0]]) for b in BUILDS if b[0] in QUICK]
    packages = start_packages("--long" if opts.long else "--tests") if opts.install else None
    total, failed = [0, 0, 0], []
    builds, first = {}, time.monotonic()
    for i, (name, folder, cc, setup, args) in enumerate(chosen):
        begin = time.monotonic()
        if begin - first > opts.last_start:
            say(f"{name}: skipped: {begin - first:.0f} s have gone, and --last-start is {opts.last_start:.0f}")
            total[2] += 1
            continue
        if opts.long:
            args = with_suite(args, IN_LONG.get(name))
        if packages is not None and name != "gcc":
            packages.wait()  # clang is one of them
        say(f"{name}: building in {folder}")
        build = builds.get(name) or Build(folder, cc, setup, args)
        build.join()
        if build.error is not None:
            print(build.error[-6000:])
            say(f"{name}: the build failed")
            failed.append(f"{name}: the build failed")
            total[1] += 1
            continue
        built = time.monotonic()
        if packages is not None and packages.wait() != 0:
            failed.append(f"{name}: packages that tests need could not be installed")
            total[1] += 1
            break
        if name != "gcc" and not builds:  # gcc's tests judge times
            builds = start_builds(chosen[i + 1:])
        counts, shorts = run_build(name, folder, args)
        failed += shorts
        say(f"{name}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped"
            f" in {time.monotonic() - begin:.0f} s, {built - begin:.0f} s of them building")
        total = [a + b for a, b in zip(total, counts)]
    if sum(total) == 0:
        total[1] = 1
    for line in failed:
        say(line)
    say(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
