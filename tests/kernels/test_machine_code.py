#!/usr/bin/env python3
"""The machine code of the attention kernels, as it was measured: what the assembler did on its own has cost up to 8 % of a
pass and changes with its version, and neither results nor the source show it.

usage: test_machine_code.py NVCC SOURCE_ROOT      prints TAP
"""
import re
import subprocess
import sys
import tempfile

NVCC, ROOT = sys.argv[1], sys.argv[2]


def compiled(name, *args):
    """(what the compiler said, what it made) of kernels/cuda/NAME.cu with these arguments."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run([NVCC, "-O3", "-std=c++17", "-I", ROOT, *args, "-o", out.name, f"{ROOT}/kernels/cuda/{name}.cu"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout, out.read()


def registers_suffice(name):
    """No register is kept in memory, and no product of the matrix units waits for the one before it (C7511)."""
    said, _ = compiled(name, "-gencode=arch=compute_90a,code=sm_90a", "-c", "-Xptxas", "-v")
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert spills, said
    assert all(pair == ("0", "0") for pair in spills), spills
    assert "serialized" not in said, said


def far_keys_registers():
    registers_suffice("attention_far")


def near_keys_registers():
    registers_suffice("attention_near")


def far_keys_sums_are_stored_whole():
    _, text = compiled("attention_far", "-gencode=arch=compute_90a,code=compute_90a", "-ptx")
    stores = re.findall(rb"st\.global(\.v4)?\.f32", text)
    assert stores and all(stores), (len(stores), stores.count(b".v4"))


CASES = [far_keys_registers, near_keys_registers, far_keys_sums_are_stored_whole]


def main():
    print(f"1..{len(CASES)}")
    failed = 0
    for i, fn in enumerate(CASES):
        try:
            fn()
            print(f"ok {i + 1} - {fn.__name__}", flush=True)
        except AssertionError as e:
            failed += 1
            print(f"not ok {i + 1} - {fn.__name__}")
            print("# " + "\n# ".join(str(e).splitlines()[-12:]), flush=True)
    return 1 if failed else 0


sys.exit(main())
