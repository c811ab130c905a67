#!/usr/bin/env python3
"""Converts the pytorch_model.bin files of a model's folder to model.safetensors beside them.

usage: tools/bin_to_safetensors.py FOLDER

Needs torch and safetensors (pip install torch safetensors). The files are read with weights_only, so that nothing they
hold is executed. Names and values stay as they are; tensors that share memory are written once each. A
model.safetensors that is there already is never overwritten.
"""
import json
import os
import sys


def bin_files(folder):
    """The files that hold the weights: one, or those that the index names."""
    index = os.path.join(folder, "pytorch_model.bin.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            names = sorted(set(json.load(f)["weight_map"].values()))
    else:
        names = ["pytorch_model.bin"]
    for name in names:
        if os.path.basename(name) != name:
            raise SystemExit(f"{index}: {name!r} is not the plain name of a file")
    return [os.path.join(folder, name) for name in names]


def read(paths):
    import torch  # pylint: disable=import-outside-toplevel

    tensors = {}
    for path in paths:
        for name, value in torch.load(path, map_location="cpu", weights_only=True).items():
            if not isinstance(value, torch.Tensor):
                raise SystemExit(f"{path}: {name} is no tensor")
            if name in tensors:
                raise SystemExit(f"{path}: {name} is in two files")
            tensors[name] = value.clone().contiguous()
    return tensors


def write(folder, tensors):
    from safetensors.torch import save_file  # pylint: disable=import-outside-toplevel

    out = os.path.join(folder, "model.safetensors")
    part = out + ".part"
    save_file(tensors, part, metadata={"format": "pt"})
    os.replace(part, out)
    return out


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    folder = sys.argv[1]
    out = os.path.join(folder, "model.safetensors")
    if os.path.exists(out):
        raise SystemExit(f"{out} is there already; move it away to convert anew")
    paths = bin_files(folder)
    missing = [p for p in paths if not os.path.exists(p)]
    if missing:
        raise SystemExit(f"{missing[0]}: no such file")
    tensors = read(paths)
    print(f"{write(folder, tensors)}: {len(tensors)} tensors of {len(paths)} file(s)")


if __name__ == "__main__":
    main()
