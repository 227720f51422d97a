"""Memory that was freed goes back to the system where models are large, and stays where workers compute."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from prepbench import freed_memory
from prepbench.freed_memory import give_back

FAULTS = """
import resource
import torch
from prepbench.freed_memory import memory_kept

def faults(elements=2**20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(elements).add(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
outside = faults()
with memory_kept():
    faults()
    inside = faults()
    large_inside = [faults(2**22), faults(2**22)][1]
larger = 3 * 2**21  # fits no gap that the block left between what is still used
print(outside, inside, large_inside, [faults(larger), faults(larger)][1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_results_of_operators_take_no_new_memory() -> None:
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}  # as Dask has it
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    outside, inside, large_inside, after = map(int, done.stdout.split())
    assert inside < outside / 10
    assert large_inside < after / 10


@pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc")
def test_what_was_freed_between_what_is_kept_goes_back_where_weights_are_large() -> None:
    blocks = [bytearray(60_000) for _ in range(5_000)]  # 300 MB, too small for pages of their own
    kept = blocks[::50]
    del blocks
    before = _held()
    give_back(freed_memory._LARGE_WEIGHTS - 1)
    assert _held() > before - 50_000_000
    give_back(freed_memory._LARGE_WEIGHTS)
    assert _held() < before - 200_000_000
    assert len(kept) == 100


def _held() -> int:
    return int(psutil.Process().memory_info().rss)
