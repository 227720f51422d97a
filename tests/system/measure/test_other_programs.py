"""Latencies measured beside other programs say so."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import prepbench as pb
from prepbench.measure import process
from prepbench.measure.comparison import CandidateResult
from prepbench.measure.process import OtherPrograms, load_warning

BURN = "import time\nend = time.time() + 2\nwhile time.time() < end: pass"


def test_a_busy_program_is_noted() -> None:
    # one whose parent has ended, so that it is nobody's child
    subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, BURN], check=True, stdout=subprocess.DEVNULL)
    time.sleep(0.2)
    with OtherPrograms() as others:
        time.sleep(0.8)
    assert others.cores >= 0.5


def test_own_work_and_short_blocks_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 50.0, 101.0, 51.0])  # busy and own before, busy and own after
    monkeypatch.setattr(process, "_busy_seconds", lambda: next(times))
    monkeypatch.setattr(process, "_own_seconds", lambda: next(times))
    with OtherPrograms() as others:
        time.sleep(0.15)
    assert others.cores == 0
    times = iter([100.0, 50.0, 200.0, 51.0])
    with OtherPrograms() as others:
        pass
    assert others.cores == 0


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.os, "cpu_count", lambda: 4)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("cores", "told"),
    [(0.0, ""), (0.4, ""), (0.41, "0.4 of 4"), (2.6, "2.6 of 4"), (9.0, "4.0 of 4")],
)
def test_it_is_told_where_more_than_a_tenth_was_busy(cores: float, told: str) -> None:
    text = load_warning(cores)
    assert told in text
    assert bool(text) == bool(told)


@pytest.mark.usefixtures("four_cores")
def test_the_caption_tells_it() -> None:
    row = CandidateResult("fp32", 0.9, 0.0, 2.0, 2.5, None, 4_000_000, "saved artifact", "eager", "own process")
    facts = {"samples": 64, "batch_size": 8, "rounds": 10, "threads": 4}
    assert "busy" not in pb.Comparison((row,), "accuracy", "", True, **facts).caption
    caption = pb.Comparison((row,), "accuracy", "", True, **facts, busy_cores=1.25).caption
    assert caption.endswith("rounds; other programs kept 1.2 of 4 cores busy meanwhile.")
