#!/usr/bin/env python3
"""What the pages say about the code is so: every file, `file: function`, option, variable and link that they name exists,
every message, constant and byte is the code's. Prints TAP."""
import os
import re
import subprocess
import sys

ROOT = sys.argv[1]
WIDTH, CELL = 100, 120  # columns: of text, of a table's cell
DECISION_LINES = 15
DIAGRAMS = ("sequenceDiagram", "stateDiagram-v2", "flowchart", "graph")
CODE = (".c", ".h", ".cu", ".cuh", ".inc")
# Options of programs that are not ours: git, meson, mpirun, pip, ...
FOREIGN = {"--hostfile", "--map-by", "--enable-recovery", "--oversubscribe", "--suite", "--force", "--gpus-per-task",
           "--gpu-bind", "--multi-prog", "--kill-on-bad-exit", "--signal", "--wait"}  # mpirun's, meson's, Slurm's
BYTES = ("tests/unit/common/protocol/test_wire.c", "tests/transport/test_protocol_page.c")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def listed():
    told = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"],
                          capture_output=True, text=True)
    return [n for n in told.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, n))] if told.returncode == 0 else []


def find(name, files):
    """Files of the project that a page's name means: the whole path, or its end."""
    return [f for f in files if f == name or f.endswith("/" + name)]


def without_comments(text):
    """C without its comments and texts."""
    parts = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\""
    return re.sub(parts, lambda m: '""' if m[0][0] == '"' else " ", text, flags=re.S)


def defines(path, word):
    """A file defines a name: a function with its body, a macro, a type, an enum's value, a header's member of a struct,
    a variable of the file, a row of an X-macro; Python's def, class or variable. A call, a declaration of a function
    and a comment are none."""
    w = re.escape(word)
    if path.endswith(".py"):
        return re.search(rf"^(?:def|class) {w}\b|^{w} = ", read(path), re.M) is not None
    text = without_comments(read(path))
    kinds = [rf"^[A-Za-z_][^;{{}}#]*?\b{w}\([^;{{}}]*\)\s*\{{",  # a function; at the margin, as no call is
             rf"^\s*# *define {w}\b",
             rf"\b(?:struct|enum|union) {w}\s*\{{",
             rf"\benum \w*\s*\{{[^}}]*\b{w}\b",
             rf"^typedef [^;]*\b{w}\b[^;]*;",
             rf"^(?:[A-Za-z_][\w *]*|\}} ){w}(?:\[[^]]*\])*(?: = |;)"]  # a variable or a table
    if path.endswith((".cu", ".cuh")):  # a member of a struct is a function as well
        kinds.append(rf"^ +(?:template <[^>]*> )?(?:static )?__device__[^;{{}}#]*?\b{w}\([^;{{}}]*\)(?: const)?\s*\{{")
    if path.endswith((".h", ".cuh")):
        kinds.append(rf"^ +(?!return\b)[A-Za-z_][\w *,]*\b{w}(?:\[[^]]*\])*;")
    if path.endswith(".inc"):
        kinds.append(rf"^[A-Z_0-9]+\((?:\w+, )?{w}\b")
    return any(re.search(kind, text, re.M) for kind in kinds)


def pieces_of_code(text):
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def quoted_names(text):
    """(file, names after its colon) of each piece of code in the text."""
    for piece in pieces_of_code(text):
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
            if any(len(cell.strip()) > CELL for cell in line.strip("|").split("|")):
                yield f"{page}:{i}: a cell of more than {CELL} characters"
        elif len(line) > WIDTH:
            yield f"{page}:{i}: {len(line)} columns, {WIDTH} are the most"


def broken_tables(page, text):
    """Rows of a table that have more or fewer cells than its head, as by a bar in a piece of code, and rows without a
    head, as after an empty line: they are shown as text."""
    n_cell = 0
    lines = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S).splitlines()
    for i, line in enumerate(lines, 1):
        n = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if n > 0 and n_cell == 0 and not re.match(r"\|(?: *:?-+:? *\|)+ *$", lines[i] if i < len(lines) else ""):
            yield f"{page}:{i}: a row of a table that has no head"
        if n > 0 and n_cell > 0 and n != n_cell:
            yield f"{page}:{i}: {n - 1} cells in a table of {n_cell - 1}"
        n_cell = n if n_cell == 0 or n == 0 else n_cell


def unproved_bytes(page, text):
    """Examples of bytes: those that a test compares with the code's, nothing else."""
    golden = ["".join(re.findall(r'"([0-9a-f]+)"', read(name))) for name in BYTES]
    for example in re.findall(r"^```hex\n(.*?)^```", text, re.M | re.S):
        if not any("".join(example.split()) in g for g in golden):
            yield f"{page}: no test has the bytes {example.split()[0]} ..."


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


MACHINES = {  # whose states a diagram may show: the enum, and the prefix of its names
    "target_worker/machine/target_internal.h": ("session_state", "SESSION_"),
    "draft_worker/machine/drafter_internal.h": ("draft_state", "DRAFT_"),
    "orchestrator/machine/orch.h": ("gr_session_state", "GR_SESSION_"),
}


def other_states(page, text):
    """A state diagram has the states of one machine, all of them but FREE, which is no session's."""
    known = []
    for path, (enum, prefix) in MACHINES.items():
        names = re.findall(r"\b" + prefix + r"([A-Z]+)\b", re.search(r"enum " + enum + r" \{(.*?)\}", read(path), re.S)[1])
        known.append(set(names) - {"FREE"})
    for diagram in re.findall(r"^```mermaid\nstateDiagram-v2\n(.*?)^```", text, re.M | re.S):
        states = {s for arrow in re.findall(r"^ *(\S+) --> ([^:\n]+)", diagram, re.M) for s in map(str.strip, arrow)}
        if states - {"[*]"} not in known:
            yield f"{page}: no machine has the states {sorted(states)}"


# ---- control messages ----

LIMITS = ("common/protocol/msg.h", "common/protocol/specpv.h", "common/protocol/wishes.h",
          "common/rules/accept.h", "common/rules/adjust.h", "common/rules/kv_block.h",
          "common/rules/logprob.h", "common/rules/token_tree.h")


def number(text):
    """Of C: digits, or digits << digits; None: another text."""
    m = re.match(r"^\(?(\d+)u?(?: << (\d+))?\)?$", text)
    return int(m[1]) << int(m[2] or 0) if m else None


def named_numbers():
    """Limits of the fields of messages.inc that have a name."""
    text = "".join(read(f) for f in LIMITS)
    numbers = {name: number(value) for name, value in re.findall(r"#define (GR_\w+) (\([^)]*\)|\w+)", text)}
    for enum in re.findall(r"enum gr_(?:finish|specpv_mode) \{(.*?)\}", text, re.S):
        members = re.findall(r"(GR_\w+)(?: = (\d+))?,?", re.sub(r"/\*.*?\*/", "", enum, flags=re.S))
        at = 0
        for name, value in members:
            at = int(value) if value else at
            numbers[name] = at
            at += 1
    numbers["UINT32_MAX"] = 2**32 - 1
    numbers["GR_NODE_MAX"] = numbers["GR_TREE_MAX"] - 1
    return numbers


def type_of_field(kind, limit, numbers):
    """As the page writes it."""
    most = numbers[limit] if limit in numbers else number(limit)
    return {"BOOL": "u32 to 1", "CASE": "u32 to 1", "U32": "u32" if most == 2**32 - 1 else f"u32 to {most}", "U64": "u64",
            "F32": "f64", "F64": "f64", "STR": f"text to {(most or 0) - 1}", "TEXT": f"text to {(most or 0) - 1}",
            "IDS": f"ids to {most}",
            "LIST": f"ids to {most}", "FLOATS": f"f32s to {most}", "VALUES": f"f32s to {most}"}[kind]


def fields_of_messages():
    """{message: {field: (type as the page writes it, optional)}} by the table in messages.inc."""
    table = read("common/protocol/messages.inc")
    numbers = named_numbers()
    messages = {}
    for name, about, rows in re.findall(r"^GR_MSG_BARE\((\w+), (\w+)\)()$", table, re.M) + \
            re.findall(r"^GR_MSG_BEGIN\((\w+), \w+, (\w+)\)\n(.*?)^GR_MSG_END", table, re.M | re.S):
        messages[name] = {"session": ("u64", False)} if about == "GR_OF_SESSION" else {}
        for kind, key, need, limit in re.findall(r"GR_(?:FIELD|KEY)\((\w+), (\w+),(?: [\w.]+,)? (REQUIRED|OPTIONAL), ([^)]*)\)", rows):
            messages[name][key] = (type_of_field(kind, limit, numbers), need == "OPTIONAL")
    return messages


def other_messages(page, text):
    """The tables of docs/protocol.md are those of messages.inc."""
    if page != "docs/protocol.md":
        return
    messages = fields_of_messages()
    told = {}
    for name, body in re.findall(r"^### ([A-Z_]+)\n(.*?)(?=^##)", text, re.M | re.S):
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ?(optional)? ?\|", body, re.M)
        told[name] = {field: (kind.strip(), optional == "optional") for field, kind, optional in rows}
    if len(messages) < 20:
        yield f"{page}: only {len(messages)} messages were found in messages.inc"
    for name in sorted(set(messages) | set(told)):
        if messages.get(name) != told.get(name):
            yield f"{page}: {name} is {told.get(name)} here and {messages.get(name)} in messages.inc"


# ---- options, variables, functions ----

class Names:
    """What the project's programs and sources know by name."""

    def __init__(self, files):
        code = [f for f in files if f.endswith(CODE) and not f.startswith("docs/")]
        scripts = [f for f in files if not f.endswith(CODE + (".md", ".txt", ".json", ".safetensors"))]
        self.source = "\n".join(read(f) for f in code)
        self.scripts = "\n".join(read(f) for f in scripts if os.path.getsize(os.path.join(ROOT, f)) < 1 << 18)
        self.options = {m for row in re.findall(r"^\| `(--[^`]*)`", read("docs/options.md"), re.M)
                        for m in re.findall(r"--[\w-]+", row)}
        bench = "\n".join(read(f) for f in code if f.startswith(("bench/", "tests/")))
        self.options |= {"--" + name for name in re.findall(r'"(?:--)?([a-z][a-z0-9-]+)"', bench)}
        self.options |= set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", self.scripts))
        self.variables = set(re.findall(r"\bGRAFT_[A-Z_]+", self.source + self.scripts + read("docs/options.md")))
        self.functions = set(re.findall(r"\bgr_\w+", self.source))


def strangers(page, text, names):
    code = "\n".join(pieces_of_code(text) + re.findall(r"^```(?!mermaid|hex)[^\n]*\n(.*?)^```", text, re.M | re.S))
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code)) - names.options - FOREIGN):
        yield f"{page}: no program has {option}"
    for variable in sorted(set(re.findall(r"\bGRAFT_[A-Z_]+", text)) - names.variables):
        yield f"{page}: nothing reads {variable}"
    for magic in sorted(set(re.findall(r"magic \| (0x[0-9a-f]{8,})", text))):
        if magic not in names.source:
            yield f"{page}: the magic {magic} is in no source"
    for function in sorted(set(re.findall(r"\bgr_\w+", code)) - names.functions):
        yield f"{page}: there is no {function}"


# ---- links ----

def anchors(page):
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S), re.M)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h) for h in heads]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


def dead_links(page, text):
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", text):
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(os.path.join(ROOT, path)):
            yield f"{page}: the link to {target} leads nowhere"
        elif anchor and anchor not in anchors(path):
            yield f"{page}: {path} has no heading for #{anchor}"


# ---- decisions ----

def decisions(files):
    """Entries are short and in the index; a number that anybody names is one of an entry."""
    entries = {}
    for page in (f for f in files if re.match(r"docs/decisions/(?!README)\w+\.md$", f)):
        for number, title, body in re.findall(r"^## (D-\d+)\. ([^\n]*)\n(.*?)(?=^## |\Z)", read(page), re.M | re.S):
            entries[number] = title
            n_line = sum(line != "" for line in body.splitlines())
            if n_line > DECISION_LINES:
                yield f"{page}: {number} has {n_line} lines, {DECISION_LINES} are the most"
    index = dict(re.findall(r"^- (D-\d+)\. (.*)$", read("docs/decisions/README.md"), re.M))
    for number in sorted(set(entries) | set(index)):
        if entries.get(number) != index.get(number):
            yield f"docs/decisions/README.md: {number} is `{index.get(number)}', its entry `{entries.get(number)}'"
    for f in files:
        if f.endswith(CODE + (".py", ".md", ".build")) and not f.startswith("docs/lab/"):
            for number in sorted(set(re.findall(r"\bD-\d{3}\b", read(f))) - set(entries)):
                yield f"{f}: there is no decision {number}"


def lost_pages(files):
    """Pages that code and scripts send their readers to."""
    for f in files:
        if f.endswith(CODE + (".py", ".build", ".sh", ".yaml")):
            for page in sorted(set(re.findall(r"\bdocs/[\w/.-]+\.md\b", read(f)))):
                if page not in files and not page.endswith("/NAME.md"):
                    yield f"{f}: there is no {page}"


def complaints(page, files, names):
    text = read(page)
    yield from other_constants(page, text, files)
    yield from other_messages(page, text)
    yield from other_states(page, text)
    yield from unproved_bytes(page, text)
    yield from too_wide(page, text)
    yield from broken_tables(page, text)
    yield from strangers(page, text, names)
    yield from dead_links(page, text)
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


def main():
    files = listed()
    pages = [f for f in files if f.endswith(".md") and not f.startswith("docs/lab/")]
    print("1..1")
    if not files:
        print("ok 1 - pages # SKIP this is no git checkout")
        return 0
    names = Names(files)
    found = [line for page in pages for line in complaints(page, files, names)]
    found += list(decisions(files)) + list(lost_pages(files))
    for line in found:
        print(f"# {line}")
    print(f"{'not ok' if found else 'ok'} 1 - what {len(pages)} pages name exists")
    return 1 if found else 0


sys.exit(main())
