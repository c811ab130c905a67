#!/usr/bin/env python3
"""Every C, CUDA and header file looks as clang-format 14 with .clang-format makes it. Prints TAP.

Another version of clang-format formats a few constructs in another way, so only Debian 12's judges; without it the case is
skipped. `tests/unit/check_format.py --mend ROOT` formats what is not."""
import re
import shutil
import subprocess
import sys

MEND = sys.argv[1:2] == ["--mend"]
ROOT = sys.argv[2 if MEND else 1]
VERSION = 14
ENDINGS = (".c", ".h", ".cu", ".cuh", ".inc")


def formatter():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
            if re.search(rf"version {VERSION}\.", told):
                return name
    return None


def sources():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    return [n for n in names if n.endswith(ENDINGS)]


def main():
    program, files = formatter(), sources()
    print("1..1")
    if program is None or not files:
        print(f"ok 1 - format # SKIP no clang-format {VERSION}" if program is None else
              "ok 1 - format # SKIP this is no git checkout")
        return 0
    how = ["-i"] if MEND else ["--dry-run", "-Werror"]
    done = subprocess.run([program, *how, *files], cwd=ROOT, capture_output=True, text=True)
    found = sorted({line.split(":")[0] for line in done.stderr.splitlines() if ": error:" in line})
    for name in found:
        print(f"# {name}: run tests/unit/check_format.py --mend .")
    print(f"{'not ok' if found or done.returncode else 'ok'} 1 - format of {len(files)} files")
    return 1 if found or done.returncode else 0


sys.exit(main())
