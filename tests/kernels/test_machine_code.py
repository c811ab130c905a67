#!/usr/bin/env python3
"""The machine code of the attention kernels, as it was measured: what the assembler did on its own has cost up to 8 % of
a pass and changes with its version, and neither results nor the source show it.

usage: test_machine_code.py BUILD_DIR SOURCE_ROOT NVCC      prints TAP
"""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../system"))
from harness import ROOT, case, main  # noqa: E402  pylint: disable=wrong-import-position

NVCC = sys.argv[3]


def compiled(name, *args):
    """(what the compiler said, what it made) of kernels/cuda/NAME.cu with these arguments."""
    source = os.path.join(ROOT, "kernels/cuda", name + ".cu")
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run([NVCC, "-O3", "-std=c++17", "-I", ROOT, *args, "-o", out.name, source], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout, out.read()


def registers_suffice(name):
    """No register is kept in memory, and no product of the matrix units waits for the one before it (C7511)."""
    said, _ = compiled(name, "-gencode=arch=compute_90a,code=sm_90a", "-c", "-Xptxas", "-v")
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert spills, said[-3000:]
    assert all(pair == ("0", "0") for pair in spills), spills
    assert "serialized" not in said, said[-3000:]


@case
def far_keys_registers():
    registers_suffice("attention/attention_far")


@case
def near_keys_registers():
    registers_suffice("attention/attention_near")


@case
def far_keys_sums_are_stored_whole():
    _, text = compiled("attention/attention_far", "-gencode=arch=compute_90a,code=compute_90a", "-ptx")
    stores = re.findall(rb"st\.global(\.v4)?\.f32", text)
    assert stores and all(stores), (len(stores), stores.count(b".v4"))


sys.exit(main())
