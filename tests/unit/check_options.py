#!/usr/bin/env python3
"""docs/options.md is what the table of options says today. Prints TAP.

usage: check_options.py ROOT GRAFT      `GRAFT options > docs/options.md` brings the page up to date"""
import difflib
import os
import subprocess
import sys

ROOT, GRAFT = sys.argv[1:3]
CELL_MAX = 120


def main():
    told = subprocess.run([GRAFT, "options"], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(ROOT, "docs/options.md"), encoding="utf-8") as f:
        page = f.read()
    lines = [line for line in difflib.unified_diff(page.splitlines(), told.splitlines(), "docs/options.md", "graft options",
                                                   lineterm="", n=0)]
    wide = [cell for line in told.splitlines() if line.startswith("|") for cell in line.split(" | ") if len(cell) > CELL_MAX]
    print("1..2")
    for line in lines[:40]:
        print(f"# {line}")
    print(f"{'not ok' if lines else 'ok'} 1 - docs/options.md is up to date")
    for cell in wide:
        print(f"# over {CELL_MAX}: {cell}")
    print(f"{'not ok' if wide else 'ok'} 2 - its cells are narrow")
    return 1 if lines or wide else 0


sys.exit(main())
