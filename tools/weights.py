#!/usr/bin/env python3
"""Large weights lie in the tree compressed, as FILE.planes.xz, and are unpacked beside that. The build's configuration
and tools/prepare unpack; it is done again only where a file's sha256 is not the one of models/packed.sha256.

usage: weights.py unpack [models/packed.sha256]
       weights.py pack FILE...     under models/; then add FILE to .gitignore, and FILE.planes.xz and the sha256 to git

The planes: all bytes at even places, then all at odd ones, as one xz stream. Of bf16 values the odd bytes (sign and
exponent) compress well, the even ones (mantissa) do not; mixed, both compress worse.
"""
import hashlib
import lzma
import os
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LIST = os.path.join(ROOT, "models/packed.sha256")
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24, "lc": 0, "lp": 0, "pb": 0}]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data):
    """Whole or not at all."""
    part = f"{path}.part{os.getpid()}"
    with open(part, "wb") as f:
        f.write(data)
    os.replace(part, path)


def listed():
    """name -> sha256; as sha256sum has it, names from the tree's top."""
    if not os.path.exists(LIST):
        return {}
    with open(LIST, encoding="utf-8") as f:
        return {name: sha for sha, name in (line.split() for line in f)}


def joined(planes):
    data = bytearray(len(planes))
    n_even = (len(planes) + 1) // 2
    data[0::2] = planes[:n_even]
    data[1::2] = planes[n_even:]
    return bytes(data)


def unpack():
    for name, sha in listed().items():
        path = os.path.join(ROOT, name)
        if os.path.isfile(path) and sha256(read(path)) == sha:
            continue
        data = joined(lzma.decompress(read(path + ".planes.xz")))
        if sha256(data) != sha:
            raise SystemExit(f"{name}.planes.xz unpacks to sha256 {sha256(data)}, must be {sha}")
        write(path, data)


def pack(paths):
    names = listed()
    for path in paths:
        data = read(path)
        write(path + ".planes.xz", lzma.compress(data[0::2] + data[1::2], filters=FILTERS))
        names[os.path.relpath(path, ROOT)] = sha256(data)
    lines = "".join(f"{sha}  {name}\n" for name, sha in sorted(names.items()))
    write(LIST, lines.encode())


def main():
    if sys.argv[1:2] == ["unpack"]:
        unpack()
    elif sys.argv[1:2] == ["pack"] and len(sys.argv) > 2:
        pack(sys.argv[2:])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except (OSError, lzma.LZMAError) as e:
        raise SystemExit(f"weights.py: {e}")
