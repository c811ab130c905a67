#!/usr/bin/env python3
"""Which room may include which, no circles, neither of rooms nor of files, and what compares keys. Prints TAP.

A room is a folder. ROOMS names for each the rooms whose headers it may include; what is not listed fails. A circle of files
is a set of .c files that call each other's functions around: none of them could be read or tested before the others.

`check_layers.py ROOT --draw` prints what each room includes today."""
import collections
import os
import re
import subprocess
import sys

ROOT = sys.argv[1] if len(sys.argv) > 1 else "."

RULES = ["common/base", "common/rules"]
PROTOCOL = [*RULES, "common/protocol"]
MODEL = ["model", "model/cuda", "model/files", "model/kv", "model/tokenizer"]
CUDA = "kernels/cuda/"
ROOMS = {
    # What everything stands on. Rules are shared with CUDA; processes know no model and no socket.
    "common/base": [],
    "common/rules": ["common/base"],
    "common/protocol": RULES,
    "common/process": ["common/base"],
    # The table of options of all programs, and its reader.
    "common/options": PROTOCOL,
    # Operations: definition, CPU, GPU.
    "kernels": RULES,
    "kernels/ref": ["common/rules", "kernels"],
    "kernels/cpu": [*RULES, "kernels"],
    CUDA + "device": RULES,
    CUDA + "linear": [*RULES, CUDA + "device"],
    CUDA + "group": [*RULES, CUDA + "device", CUDA + "linear"],
    CUDA + "rows": [*RULES, CUDA + "device"],
    CUDA + "pick": [*RULES, CUDA + "device"],
    CUDA + "attention": ["common/base", "kernels", CUDA + "device", CUDA + "rows"],
    "kernels/cuda": [],
    # Models. files: what lies on disk; load: weights into memory; kv: who owns which block; model: the forward pass.
    "model/files": [*RULES, CUDA + "attention", CUDA + "linear"],
    "model/tokenizer": ["common/base", "model/files"],
    "model/chat": ["common/base", "model/tokenizer"],
    "model/load": [*RULES, "kernels", CUDA + "linear", "model/files"],
    "model/kv": [*RULES, "kernels"],
    "model/group": ["common/base"],
    "model": [*RULES, "kernels", "model/files", "model/group", "model/kv", "model/load"],
    "model/cuda": ["common/base", CUDA + "attention", CUDA + "device", CUDA + "group", CUDA + "linear", CUDA + "pick",
                   CUDA + "rows", "model", "model/files", "model/group", "model/load"],
    # Connections. connect: hand-shakes, and what listens; worker: the shell of a worker's process.
    "transport": ["common/base", "common/protocol"],
    "transport/verbs": ["common/base", "transport"],
    "transport/connect": ["common/base", "common/protocol", "transport", "transport/verbs"],
    "transport/worker": ["common/base", "common/options", "common/process", "common/protocol", "transport",
                         "transport/connect", "transport/verbs"],
    # The three machines: no clock, no socket, no thread, no model.
    "target_worker/policy": ["common/base", "common/protocol"],
    "target_worker/machine": [*PROTOCOL, "model/kv", "target_worker/policy"],
    "draft_worker/tree": PROTOCOL,
    "draft_worker/machine": [*PROTOCOL, "model/kv", "draft_worker/tree"],
    "orchestrator/journal": ["common/base"],
    "orchestrator/machine": PROTOCOL,
    "orchestrator/ledger": [*PROTOCOL, "orchestrator/journal", "orchestrator/machine"],
    # What the machines are wrapped in.
    "target_worker/compute": [*RULES, "model", "target_worker/machine", "target_worker/policy"],
    "target_worker": ["common/base", "common/process", *MODEL, "model/group", "model/load", "transport", "transport/connect", "transport/worker", "target_worker/compute",
                      "target_worker/machine", "target_worker/policy"],
    "draft_worker/compute": [*RULES, "model", "draft_worker/machine", "draft_worker/tree"],
    "draft_worker": ["common/base", *MODEL, "transport", "transport/worker", "draft_worker/compute", "draft_worker/machine"],
    "orchestrator/server": ["common/base", "common/process", "common/protocol", "orchestrator/journal", "orchestrator/ledger", "orchestrator/machine", "transport",
                            "transport/connect"],
    # An answer's tokens and text, and what a request asks of them.
    "orchestrator/answer": [*PROTOCOL, "common/options", "model/chat", "model/files", "model/tokenizer"],
    # The endpoint. It asks the desk by messages, and knows neither it nor the hub.
    "orchestrator/http": [*PROTOCOL, "common/options", "model/chat", "model/files", "model/tokenizer", "orchestrator/answer",
                          "orchestrator/machine", "transport", "transport/connect"],
    "orchestrator/cli": [*PROTOCOL, "orchestrator/answer", "orchestrator/http", "common/options", "common/process", "model/chat", "model/files", "model/tokenizer", "orchestrator/machine",
                         "orchestrator/server", "transport", "transport/connect", "transport/verbs"],
    # Ranks of a job: stands on the command line.
    "orchestrator/launch": ["common/base", "common/options", "common/process", "orchestrator/cli", "transport", "transport/connect"],
    # Fleets on a virtual clock: what processes and sockets are to the machines otherwise.
    "bench/simulate": [*RULES, "draft_worker/compute", "draft_worker/machine", "model", "orchestrator/machine",
                       "target_worker/compute", "target_worker/machine"],
    "bench/options": ["common/base", "common/options", "common/protocol", "common/rules"],
    # The mains. The co-located pair stands above both workers.
    "orchestrator/programs": ["bench/options", "common/base", "common/options", "common/process", "common/protocol", "draft_worker", "orchestrator/cli",
                              "orchestrator/launch", "target_worker", "transport/worker"],
}
ANYTHING = ("bench", "bench/cuda", "bench/serve", "bench/server", "bench/sweep")  # they measure all rooms
ENDINGS = (".c", ".h", ".cu", ".cuh", ".inc")
# They compare API keys, and digests of what only its owner may ask for, by sodium_memcmp: the time of another comparison says
# how much of two is the same. A header's word `Bearer' is no secret (strncasecmp).
COMPARE_SECRETS = ("orchestrator/http/api_keys.c", "orchestrator/http/once.c", "orchestrator/http/recall.c")
TELLS_BY_TIME = re.compile(r"\b(?:str(?:n?cmp|casecmp|coll|str)|mem(?:cmp|mem)|bcmp)\(")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def sources():
    for top in ("common", "kernels", "model", "transport", "target_worker", "draft_worker", "orchestrator", "bench"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for n in sorted(names):
                if n.endswith(ENDINGS):
                    yield os.path.relpath(os.path.join(folder, n), ROOT)


def includes(text):
    return re.findall(r'^\s*#\s*include "([^"]+)"', text, re.M)


def arrows(files):
    """room -> room -> the includes that make the arrow."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for name in files:
        for header in includes(read(name)):
            here, there = os.path.dirname(name), os.path.dirname(header)
            if "/" in header and here != there:
                found[here][there].append(f"{name} includes {header}")
    return found


def circles(edges):
    """Strongly connected sets of more than one (Tarjan)."""
    number, low, stack, out = {}, {}, [], []

    def visit(v):
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in sorted(edges.get(v, ())):
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            component = []
            while not component or component[-1] != v:
                component.append(stack.pop())
            if len(component) > 1:
                out.append(sorted(component))

    sys.setrecursionlimit(10000)
    for v in sorted(edges):
        if v not in number:
            visit(v)
    return out


def without_comments(text):
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.S)


def defined(text):
    """Functions with external linkage that a .c file defines: a name at the start of a line's declaration, a body after."""
    found = set()
    for m in re.finditer(r"^(?!static\b|#|\s|typedef\b)[A-Za-z_][\w\s*]*?\b(\w+)\([^;{}]*\)\s*\n\{", text, re.M):
        found.add(m.group(1))
    return found


def calls(files):
    """.c file -> .c files whose functions it names."""
    texts = {f: without_comments(read(f)) for f in files if f.endswith(".c") and not f.startswith("bench/cuda")}
    owners = collections.defaultdict(set)
    for f, text in texts.items():
        for name in defined(text):
            owners[name].add(f)
    edges = collections.defaultdict(set)
    for f, text in texts.items():
        for name in set(re.findall(r"\b\w+\b", text)):
            if len(owners.get(name, ())) == 1 and f not in owners[name]:
                edges[f] |= owners[name]
    return edges


def draw(found):
    for room in sorted(found):
        print(room)
        for other in sorted(found[room]):
            print(f"    {other} ({len(found[room][other])})")


def complaints_about_rooms(found):
    for room, others in sorted(found.items()):
        if room in ANYTHING:
            continue
        for other, why in sorted(others.items()):
            if room not in ROOMS:
                yield f"{room} is no room that check_layers.py knows: {why[0]}"
            elif other not in ROOMS[room]:
                yield f"{room} may not include {other}: {'; '.join(why[:3])}"


def headless(files):
    """Files that do not begin by saying what they are. A .c file may leave that to the header of its name."""
    for name in files:
        paired = os.path.splitext(name)[0] + ".h"
        begins = read(name).startswith("/*")
        if not begins and not (name.endswith((".c", ".cu")) and paired in files and read(paired).startswith("/*")):
            yield f"{name} has no head that says what it is"


def compared_by_time():
    for name in COMPARE_SECRETS:
        text = without_comments(read(name))
        yield from (f"{name} compares by {call}...)" for call in TELLS_BY_TIME.findall(text))
        if "sodium_memcmp(" not in text:
            yield f"{name} compares nothing by sodium_memcmp: take it off the list in check_layers.py"


def main():
    files = list(sources())
    found = arrows(files)
    if "--draw" in sys.argv:
        draw(found)
        return 0
    unused = [f"{room} may include {other}, and does not" for room, others in sorted(ROOMS.items())
              for other in others if room in found and other not in found[room] and not other.startswith("common/")]
    checks = [
        ("rooms include what they may", list(complaints_about_rooms(found))),
        ("nothing is allowed that is not so", unused),
        ("no circle of rooms", [" <-> ".join(c) for c in circles({r: set(o) for r, o in ROOMS.items()})]),
        ("no circle of files", [" <-> ".join(c) for c in circles(calls(files))]),
        ("files have heads", list(headless(files))),
        ("secrets are compared in constant time", list(compared_by_time())),
    ]
    print(f"1..{len(checks)}")
    for i, (name, complaints) in enumerate(checks, 1):
        for line in complaints:
            print(f"# {line}")
        print(f"{'not ok' if complaints else 'ok'} {i} - {name}")
    return 1 if any(c for _, c in checks) else 0


sys.exit(main())
