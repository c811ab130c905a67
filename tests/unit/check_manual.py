#!/usr/bin/env python3
"""The man pages that the build makes: man and groff find nothing to warn of, and the options are in them. Prints TAP.

usage: check_manual.py PAGE..."""
import os
import re
import shutil
import subprocess
import sys

PAGES = sys.argv[1:]
WANTED = {  # what a reader finds in it, and what is no business of the program
    "graft.1": (["graft session list", "--max-tokens", "GRAFT_MAX_TOKENS", "session.max_tokens", "130"], ["--listen", "--busy"]),
    "graft-target.1": (["--join", "GRAFT_LISTEN", "--listen"], ["--prompt", "--target-device"]),
    "graft-draft.1": (["--target", "--test-delay-us"], ["--listen", "--head"]),
    "graft-bench.1": (["graft-bench tune", "--format, -o", "gemm|attention"], ["GRAFT_MODEL", "--join"]),
}


def shown(page):
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], capture_output=True, text=True,
                          check=True, env={**os.environ, "MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
    assert done.stderr == "", f"{page}: {done.stderr}"
    groff = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-P-cbou", "-rLL=200n", page], capture_output=True, text=True,
                           check=True)
    assert groff.stderr == "", f"{page}: {groff.stderr}"
    return groff.stdout.replace("\u2010", "-").replace("\u2212", "-")


def check(page):
    text = shown(page)
    there, missing = WANTED[os.path.basename(page)]
    for word in there:
        assert word in text, f"{page}: no {word}"
    for word in missing:
        assert not re.search(re.escape(word) + r"(?![-\w])", text), f"{page}: {word}"


def main():
    print(f"1..{len(PAGES)}")
    absent = [p for p in ("man", "groff") if shutil.which(p) is None]
    failed = len(PAGES) != len(WANTED)
    for i, page in enumerate(PAGES, 1):
        name = os.path.basename(page)
        if absent:
            print(f"ok {i} - {name} # SKIP {' and '.join(absent)} not installed")
            continue
        try:
            check(page)
            print(f"ok {i} - {name}")
        except (AssertionError, subprocess.CalledProcessError) as e:
            failed = True
            print(f"# {e}\nnot ok {i} - {name}")
    return 1 if failed else 0


sys.exit(main())
