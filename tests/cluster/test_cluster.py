#!/usr/bin/env python3
"""`graft launch` under the launchers themselves: mpirun, and a Slurm of eight nodes on this machine (slurm-local).

The nodes are one machine: they differ by name, and share /dev/shm, ports and process numbers. Names in brackets are the rows
of reports that a case comes from.

usage: test_cluster.py BUILD_DIR SOURCE_ROOT      prints TAP
"""
import sys

import mpirun_cases  # noqa: F401: cases run in the order of these lines
import slurm_cases  # noqa: F401
import example_cases  # noqa: F401
import kill_cases  # noqa: F401
import sweep_cases  # noqa: F401
import channel_cases  # noqa: F401
from cluster import run_cases

sys.exit(run_cases())
