"""The interval of a median holds what it promises, and is no wider than that takes."""

from __future__ import annotations

import math

import pytest

from prepbench.measure.latency import interval


def chance_outside(left: int, count: int) -> float:
    """Return the chance that the true median lies outside, if ``left`` values at each end are left out."""
    return 2 * sum(math.comb(count, below) for below in range(left + 1)) / 2**count


@pytest.mark.parametrize("rounds", [*range(6, 40), 100])
def test_intervals_hold_the_median_with_95_percent(rounds: int) -> None:
    found = interval([float(value) for value in range(rounds)], rounds)
    assert found is not None
    left = int(found[0])
    assert found == (left, rounds - 1 - left)
    assert chance_outside(left, rounds) <= 0.05
    assert chance_outside(left + 1, rounds) > 0.05
