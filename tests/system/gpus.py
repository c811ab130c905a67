"""The GPUs that the tests of several of them have."""
import os
import re

from harness import TARGET, run

SOFT = "SOFT_GPU_DEVICES" in os.environ  # a pass takes seconds there


def count_gpus():
    """As graft counts them, which also says why there are none."""
    said = run("run", "--model", TARGET, "--prompt", "x", "--target-device", "cuda:255").stderr.strip().splitlines()[-1]
    found = re.search(r"there (?:are|is) (\d+) GPU", said)
    return int(found.group(1)) if found else 0, said


N_GPU, WHY = count_gpus()
