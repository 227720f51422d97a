"""Ctrl-C at random moments: no damage, no abort, answered soon, and the same call succeeds afterwards."""

from __future__ import annotations

import datetime
import sys

import pytest

from tests.system.stress.many_interrupts import harmed, interrupts_of, summary


def test_interrupts_do_no_damage() -> None:
    # the day chooses the stages, so that all of them come within a few days; a failure names its stage
    lines = interrupts_of(datetime.date.today().toordinal(), 2)
    assert not harmed(lines)
    times = [line["seconds"] for line in lines if line["seconds"] is not None]
    assert times, "no step was interrupted"
    # a machine that runs many tests at once takes longer than the long form asks for
    assert max(times) < 10


@pytest.mark.stress
@pytest.mark.timeout(14400)
def test_two_thousand_interrupts(record_property: pytest.RecordProperty) -> None:
    lines = [line for seed in range(20) for line in interrupts_of(seed, 100)]
    assert not harmed(lines)
    times = sorted(line["seconds"] for line in lines if line["seconds"] is not None)
    assert len(times) >= 600, "too few steps were interrupted to say anything"
    slowest = times[int(len(times) * 0.99)]
    record_property("99th percentile of the seconds until an interrupt is answered", slowest)
    sys.__stdout__.write(f"\n{summary(lines)}\n")
    # prepbench's own loops answer at once; single calls of a target's compiler cannot be interrupted
    assert slowest < 0.5
