#!/usr/bin/env python3
"""Every header compiles by itself; the rules that GPUs will run compile as C++ and as CUDA, too. Prints TAP."""
import os
import shutil
import subprocess
import sys
import tempfile

ROOT, CC = sys.argv[1], sys.argv[2]
CUDA_INCLUDE = sys.argv[3] if len(sys.argv) > 3 else ""
COMMON_SUBSET = ["common/rules/gr_math.h", "common/rules/hash.h", "common/rules/expand_rule.h", "common/rules/token_tree.h", "common/rules/kv_block.h",
                 "common/rules/accept.h", "common/rules/sampler.h", "common/protocol/wire_layout.h", "common/base/status.h"]
FOLDERS = ["common", "kernels", "model", "target_worker", "draft_worker", "orchestrator", "transport", "bench"]
# A device function that uses the rules, so that they are compiled for the device and not only parsed.
DEVICE = """
__global__ void rules(const float *logits, float *scratch, int *work, const int *pick, gr_token_tree *t, gr_walk *w)
{
    gr_sampling s = {0.7f, 0.0f, 0.9f, 40, 0, 1};
    gr_stop stop = {10, {0, {0}}};
    int where = 0;
    if (gr_tree_check(t, 100, &where) == GR_TREE_GOOD) {
        gr_accept_walk(t, pick, &stop, w);
    }
    w->bonus = gr_sampler_pick(&s, logits, 100, (unsigned)gr_hash_extend(0, 5), scratch, work);
}
"""


def headers():
    for folder in FOLDERS:
        for base, _, names in os.walk(os.path.join(ROOT, folder)):
            for n in sorted(names):
                # lane16_*.h are parts of the kernels' template, one per instruction set
                if n.endswith(".h") and not n.startswith("lane16"):
                    yield os.path.relpath(os.path.join(base, n), ROOT)


def compile_text(argv, text, suffix):
    with tempfile.NamedTemporaryFile("w", suffix=suffix) as f:
        f.write(text)
        f.flush()
        return subprocess.run([*argv, f"-I{ROOT}", f.name], capture_output=True, text=True)


def report(n, name, done):
    print(f"{'ok' if done.returncode == 0 else 'not ok'} {n} - {name}")
    for line in done.stderr.splitlines()[:10] if done.returncode else []:
        print("#", line)
    return done.returncode != 0


def main():
    names = list(headers())
    n = failed = 0
    for name in names:
        n += 1
        if name.startswith("model/cuda/") and not os.path.exists(os.path.join(CUDA_INCLUDE, "cuda_runtime_api.h")):
            print(f"ok {n} - {name} # SKIP no CUDA toolkit")
            continue
        # Twice: a missing include guard shows, too.
        text = f'#include "{name}"\n#include "{name}"\n'
        failed += report(n, name, compile_text([*CC.split(), "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
                                                "-Wno-unused-function", "-isystem", CUDA_INCLUDE or ROOT,
                                                "-fsyntax-only"], text, ".c"))
    includes = "".join(f'#include "{h}"\n' for h in COMMON_SUBSET)
    for tool, argv, suffix, text in (("g++", ["g++", "-std=c++17", "-fsyntax-only"], ".cc", includes),
                                     ("nvcc", ["nvcc", "-c", "-o", "/dev/null", "-arch=sm_90"], ".cu", includes + DEVICE)):
        n += 1
        if shutil.which(tool) is None:
            print(f"ok {n} - common subset with {tool} # SKIP {tool} is not installed")
        else:
            failed += report(n, f"common subset with {tool}", compile_text(argv, text, suffix))
    print(f"1..{n}")
    return 1 if failed else 0


sys.exit(main())
