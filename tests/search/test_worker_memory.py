"""A worker that gives memory back at once keeps it while a task computes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from prepbench.search.worker_memory import memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(2**20).add(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
outside = faults()
with memory_kept():
    faults()
    inside = faults()
print(outside, inside, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_results_of_operators_take_no_new_memory() -> None:
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}  # as Dask has it
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    outside, inside, after = map(int, done.stdout.split())
    assert inside < outside / 10
    assert after > inside * 10
