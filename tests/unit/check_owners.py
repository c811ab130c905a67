#!/usr/bin/env python3
"""One owner a field: how many fields of the structs that the three state machines reach are written in two files or more.

A write is an assignment (also a compound one), ++ or --, to a member or an element of a member that is an array or a pointer;
the field is the last member named: `s->link.owed = true` writes `owed` of `struct link`. A struct that is assigned whole
writes the field that holds it. Functions of another file that a pointer is handed to write for themselves. Prints TAP;
`check_owners.py ROOT --all` lists every shared field with its files.

Needs libclang's Python module (Debian: python3-clang-14), since a regular expression cannot tell whose `->n` it sees;
skipped without it."""
import collections
import os
import sys

MOST = 5  # shared fields of a machine
MACHINES = ("target_worker/machine", "draft_worker/machine", "orchestrator/machine")

ROOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")

try:
    from clang import cindex
except ImportError:
    if os.path.realpath(sys.executable) != os.path.realpath("/usr/bin/python3") and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    cindex = None

ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")


def operator_of(cursor):
    """The operator's token of a binary expression: the first one after the left side."""
    left = next(cursor.get_children())
    end = left.extent.end.offset
    for token in cursor.get_tokens():
        if token.extent.start.offset >= end:
            return token.spelling
    return ""


def field_of(cursor):
    """The FieldDecl that an lvalue ends in, looking through brackets, subscripts and dereferences."""
    kinds = cindex.CursorKind
    while cursor is not None:
        if cursor.kind == kinds.MEMBER_REF_EXPR:
            return cursor.referenced
        if cursor.kind in (kinds.PAREN_EXPR, kinds.UNEXPOSED_EXPR, kinds.ARRAY_SUBSCRIPT_EXPR, kinds.UNARY_OPERATOR,
                           kinds.CSTYLE_CAST_EXPR):
            cursor = next(cursor.get_children(), None)
        else:
            return None
    return None


def writes(unit, path):
    """(struct, field) of every write in the file itself."""
    kinds = cindex.CursorKind
    for c in unit.cursor.walk_preorder():
        if c.location.file is None or c.location.file.name != path:
            continue
        target = None
        if c.kind == kinds.COMPOUND_ASSIGNMENT_OPERATOR or (c.kind == kinds.BINARY_OPERATOR and operator_of(c) in ASSIGN):
            target = next(c.get_children())
        elif c.kind == kinds.UNARY_OPERATOR:
            tokens = [t.spelling for t in c.get_tokens()]
            if tokens and (tokens[0] in ("++", "--") or tokens[-1] in ("++", "--")):
                target = next(c.get_children())
        field = field_of(target) if target is not None else None
        if field is not None and field.location.file is not None and field.location.file.name.startswith(ROOT):
            yield field.semantic_parent.spelling or f"line {field.semantic_parent.location.line}", field.spelling


def parse(index, path):
    unit = index.parse(path, args=["-std=gnu17", "-D_GNU_SOURCE", "-DGR_VERSION=\"\"", "-I" + ROOT])
    errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
    if errors:
        raise RuntimeError(f"{path}: {errors[0].spelling}")
    return unit


def shared_fields(index, folder):
    """field -> files that write it, where there are two or more; and how many fields are written at all."""
    found = collections.defaultdict(set)
    for name in sorted(os.listdir(os.path.join(ROOT, folder))):
        if name.endswith(".c"):
            path = os.path.join(ROOT, folder, name)
            for field in writes(parse(index, path), path):
                found[field].add(name)
    return {f: files for f, files in found.items() if len(files) > 1}, len(found)


def main():
    print(f"1..{len(MACHINES)}")
    if cindex is None:
        for i, folder in enumerate(MACHINES, 1):
            print(f"ok {i} - owners in {folder} # SKIP no libclang for Python (python3-clang-14)")
        return 0
    index, failed = cindex.Index.create(), False
    for i, folder in enumerate(MACHINES, 1):
        shared, n = shared_fields(index, folder)
        if len(shared) > MOST or "--all" in sys.argv:
            for (struct, field), files in sorted(shared.items()):
                print(f"# {struct}.{field}: {', '.join(sorted(files))}")
        failed |= len(shared) > MOST
        print(f"{'not ok' if len(shared) > MOST else 'ok'} {i} - owners in {folder}: {len(shared)} of {n} fields are written in two files or more")
    return 1 if failed else 0


sys.exit(main())
