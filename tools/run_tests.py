#!/usr/bin/env python3
"""Runs the test suites of ./test and counts their cases.

Each suite is one build: gcc with warnings as errors, clang with AddressSanitizer and UBSan (with the fuzzers), clang with
ThreadSanitizer for what has threads. Meson runs the test programs; the cases are counted from their TAP output.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

BUILDS = [
    # name, folder, CC, meson arguments, meson test arguments
    ("gcc", "build-test/gcc", "gcc", ["-Dwerror=true"], ["--no-suite", "long"]),
    ("clang asan+ubsan", "build-test/asan", "clang",
     ["-Dbuildtype=debug", "-Doptimization=1", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled",
      "-Dc_args=-fno-sanitize-recover=all"],
     ["--no-suite", "slow", "--no-suite", "long", "--no-suite", "rdma"]),
    ("clang tsan", "build-test/tsan", "clang",
     ["-Dbuildtype=debugoptimized", "-Db_sanitize=thread", "-Db_lundef=false", "-Dfuzz=disabled",
      "-Dcuda=disabled"],
     ["--suite", "transport", "--suite", "sim", "--suite", "threads"]),
]


IN_LONG = {"gcc": "long", "clang asan+ubsan": "rdma"}  # suites that --long adds


def with_suite(args, name):
    """The arguments without what leaves out the suite."""
    pairs = zip(args[::2], args[1::2])
    return [a for pair in pairs if pair != ("--no-suite", name) for a in pair]


def say(text):
    print(text, flush=True)


def run(argv, **kw):
    return subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)


def prepare(folder, cc, args):
    env = dict(os.environ, CC=cc)
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        done = run(["meson", "setup", folder, *args], env=env)
        if done.returncode != 0:
            return done.stdout
    done = run(["ninja", "-C", folder])
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


def run_suite(folder, args, env):
    done = run(["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs", *args], env=env)
    log = os.path.join(folder, "meson-logs", "testlog.json")
    totals = [0, 0, 0]
    failures = []
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f:
            entry = json.loads(line)
            cases = count_cases(entry)
            totals = [a + int(b) for a, b in zip(totals, cases)]
            if cases[1]:
                failures.append(entry["name"])
                for said in failed_cases(entry):
                    say(f"{entry['name']}: {said}")
            for reason in skip_reasons(entry):
                say(f"{entry['name']}: skipped: {reason}")
    return totals, failures, done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true", help="the full matrices as well")
    parser.add_argument("--only", help="only builds whose name contains this")
    opts = parser.parse_args()
    env = dict(os.environ)
    total = [0, 0, 0]
    for name, folder, cc, setup, args in BUILDS:
        if opts.only and opts.only not in name:
            continue
        begin = time.monotonic()
        say(f"{name}: building in {folder}")
        error = prepare(folder, cc, setup)
        if error is not None:
            print(error[-6000:])
            say(f"{name}: the build failed")
            total[1] += 1
            continue
        if opts.long:
            args = with_suite(args, IN_LONG.get(name))
        # Time limits of tests that watch processes: sanitizers cost a factor.
        slow = {"GRAFT_TEST_SLOW": "1" if name == "gcc" else "8"}
        counts, failures, out = run_suite(folder, args, dict(env, **slow))
        if failures:
            print(out[-12000:])
            say(f"{name}: failed: {', '.join(failures)}")
        say(f"{name}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped"
            f" in {time.monotonic() - begin:.0f} s")
        total = [a + b for a, b in zip(total, counts)]
    if sum(total) == 0:
        total[1] = 1
    say(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
