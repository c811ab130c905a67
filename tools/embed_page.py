#!/usr/bin/env python3
"""Makes C of the page of GET / (orchestrator/http/look.h): its bytes, and the policy that lets its script and its style
run and nothing else. What would need more than that policy gives is refused here, by its line.

usage: embed_page.py PAGE.html OUT.c
"""
import base64
import hashlib
import re
import sys

BYTES_MAX = 60 << 10
FORBIDDEN = (
    (r"https?://|\bsrc=|@import|url\((?!data:)", "a reference to something outside"),
    (r"\son[a-z]+\s*=\s*[\"']", "an event handler in an attribute"),
    (r"\sstyle\s*=\s*[\"']", "a style in an attribute"),
    (r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|\.cookie",
     "text as code or HTML, or a store that outlives the tab"),
)


class Wrong(Exception):
    """one line for a person"""


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def only_one(page, tag):
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
    if len(found) != 1 or page.count(f"<{tag}") != 1:
        raise Wrong(f"the page needs one <{tag}>, without attributes")
    return found[0]


def policy(page):
    return "; ".join((
        "default-src 'none'", f"script-src {digest(only_one(page, 'script'))}",
        f"style-src {digest(only_one(page, 'style'))}", "img-src data:", "connect-src 'self'", "base-uri 'none'",
        "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"))


def check(page):
    if len(page.encode()) > BYTES_MAX:
        raise Wrong(f"the page has {len(page.encode())} bytes; at most {BYTES_MAX} are wanted")
    for number, line in enumerate(page.splitlines(), 1):
        for pattern, what in FORBIDDEN:
            if re.search(pattern, line):
                raise Wrong(f"line {number} has {what}: {line.strip()[:80]}")


def as_c(page):
    data = page.encode() + b"\0"
    rows = [",".join(str(b - 256 * (b > 127)) for b in data[i:i + 32]) for i in range(0, len(data), 32)]
    return ('/* Made by tools/embed_page.py. */\n#include "orchestrator/http/look.h"\n\n'
            'const char gr_look_policy[] = "%s";\nconst char gr_look_html[] = {\n%s};\n' % (policy(page), ",\n".join(rows)))


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        page = f.read()
    if "\0" in page or "\r" in page:
        raise Wrong("the page has a NUL, or lines that end in CR")
    check(page)
    with open(sys.argv[2], "w", encoding="ascii") as f:
        f.write(as_c(page))


if __name__ == "__main__":
    try:
        main()
    except Wrong as e:
        sys.exit(f"{sys.argv[1]}: {e}")
