"""Ctrl-C at random moments: no damage, no abort, answered within 2 s, and the same call succeeds afterwards."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def _interrupts(seed: int, count: int) -> list[float]:
    """The answer times of one process."""
    command = [sys.executable, "-m", "tests.system.stress.interrupted", str(seed), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (
        f"seed {seed}, after {len(lines)} interrupts: exit code {done.returncode}\n{done.stderr[-3000:]}"
    )
    damaged = [line for line in lines if line["problems"]]
    assert not damaged, f"seed {seed}: {damaged}"
    return [line["seconds"] for line in lines if line["seconds"] is not None]


def test_interrupts_do_no_damage() -> None:
    # the day chooses the stages, so that all of them come within a few days; a failure names its stage
    times = _interrupts(seed=datetime.date.today().toordinal(), count=5)
    assert times, "no step was interrupted"
    # a machine that runs many tests at once takes longer than the 2 s that the long form asks for
    assert max(times) < 10


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_five_hundred_interrupts(record_property: pytest.RecordProperty) -> None:
    times = sorted(seconds for seed in range(10) for seconds in _interrupts(seed, 50))
    assert len(times) >= 150, "too few steps were interrupted to say anything"
    slowest = times[int(len(times) * 0.99)]
    record_property("99th percentile of the seconds until an interrupt is answered", slowest)
    sys.__stdout__.write(f"\n{len(times)} interrupts, 99th percentile {slowest:.2f} s, slowest {times[-1]:.2f} s\n")
    assert slowest < 2
