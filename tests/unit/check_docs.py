#!/usr/bin/env python3
"""What the pages say about the code is so: every `file: function` that they name exists, every file, every relative link.
Prints TAP."""
import os
import re
import subprocess
import sys

ROOT = sys.argv[1]
WIDTH, CELL = 100, 120  # columns: of text, of a table's cell
WIDE_CELLS = ("docs/PROTOCOL.md", "docs/USAGE.md")  # so far
DIAGRAMS = ("sequenceDiagram", "stateDiagram-v2", "flowchart", "graph")
ENDINGS = (".c", ".h", ".cu", ".cuh", ".inc", ".py")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def listed():
    told = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                          capture_output=True, text=True)
    return [n for n in told.stdout.splitlines() if os.path.exists(os.path.join(ROOT, n))] if told.returncode == 0 else []


def find(name, files):
    """Files of the project that a page's name means: the whole path, or its end."""
    return [f for f in files if f == name or f.endswith("/" + name)]


def defines(path, word):
    return re.search(r"\b" + re.escape(word) + r"\b", read(path)) is not None


def quoted_names(text):
    """(file, names after its colon) of each piece of code in the text."""
    for piece in re.findall(r"`([^`\n]+)`", text):
        m = re.match(r"^([\w/.-]+\.(?:c|h|cu|cuh|inc|py))(?:: ([\w, ]+))?$", piece)
        if m:
            yield m.group(1), [w.strip() for w in (m.group(2) or "").split(",") if w.strip()]


def too_wide(page, text):
    fenced = False
    for i, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            continue
        elif line.startswith("|"):
            if page not in WIDE_CELLS and any(len(cell.strip()) > CELL for cell in line.strip("|").split("|")):
                yield f"{page}:{i}: a cell of more than {CELL} characters"
        elif len(line) > WIDTH:
            yield f"{page}:{i}: {len(line)} columns, {WIDTH} are the most"


def unproved_bytes(page, text):
    """Examples of bytes: those of a golden frame that test_wire encodes and decodes, nothing else."""
    golden = "".join(re.findall(r'"([0-9a-f]+)"', read("tests/unit/common/protocol/test_wire.c")))
    for example in re.findall(r"^```hex\n(.*?)^```", text, re.M | re.S):
        if "".join(example.split()) not in golden:
            yield f"{page}: no golden frame of test_wire.c has the bytes {example.split()[0]} ..."


def other_constants(page, text, files):
    """Constants that docs/policy.md names must be defined so, and all of the policies' must be in it."""
    if page != "docs/policy.md":
        return
    defined = {}
    for f in files:
        if f.startswith(("target_worker/policy/", "draft_worker/tree/")):
            defined.update(re.findall(r"^#define (\w+) ([-\d.]+[fu]?)(?= |$)", read(f), re.M))
    for name, value in re.findall(r"^\| `(\w+)` \| ([^ ]+) \|", text, re.M):
        if defined.get(name) != value:
            yield f"{page}: {name} is {defined.get(name)} in the code, not {value}"
    for name in defined:
        if name.startswith("GR_SPEC_") and f"| `{name}` |" not in text:
            yield f"{page}: {name} is missing"


def complaints(page, files):
    text = read(page)
    yield from other_constants(page, text, files)
    yield from unproved_bytes(page, text)
    yield from too_wide(page, text)
    for kind in re.findall(r"^```mermaid\n(\S+)", text, re.M):
        if kind not in DIAGRAMS:
            yield f"{page}: {kind} is no diagram that check_docs.py knows"
    for name, words in quoted_names(text):
        paths = find(name, files)
        if not paths:
            yield f"{page}: there is no {name}"
        for word in words:
            if paths and not any(defines(p, word) for p in paths):
                yield f"{page}: {name} has no {word}"
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
        if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), target)):
            yield f"{page}: the link to {target} leads nowhere"


def main():
    files = listed()
    pages = [f for f in files if f.endswith(".md") and not f.startswith("docs/lab/")]
    print("1..1")
    if not files:
        print("ok 1 - pages # SKIP this is no git checkout")
        return 0
    found = [line for page in pages for line in complaints(page, files)]
    for line in found:
        print(f"# {line}")
    print(f"{'not ok' if found else 'ok'} 1 - what {len(pages)} pages name exists")
    return 1 if found else 0


sys.exit(main())
