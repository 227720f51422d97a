"""Estimates that measured sums correct, and the curve from noise to the metric."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from prepbench.search.corrected import Corrected, Estimate, Measured
from prepbench.search.curve import DropCurve


def test_sums_correct_what_is_doubtful_and_leave_what_is_known() -> None:
    parts = {"a": Estimate(1.0, 0.5), "b": Estimate(2.0, 1e-6), "c": Estimate(3.0, 0.5)}
    corrected = Corrected(parts).with_measured(Measured({"a": 1, "b": 1}, 3.8, 1e-3))
    assert corrected.size("a") == pytest.approx(1.8, abs=0.01)
    assert corrected.size("b") == pytest.approx(2.0, abs=0.01)
    assert corrected.size("c") == 3.0
    assert corrected.total({"a": 2, "unknown": 5}) == pytest.approx(3.6, abs=0.02)


def test_enough_sums_find_every_part() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1, 5, 6)
    corrected = Corrected({at: Estimate(3.0, 3.0) for at in range(6)})
    for counts in rng.integers(0, 2, (40, 6)):
        measured = Measured({at: int(count) for at, count in enumerate(counts)}, float(counts @ sizes), 1e-3)
        corrected = corrected.with_measured(measured)
    assert [corrected.size(at) for at in range(6)] == pytest.approx(sizes, abs=0.01)


def test_no_part_becomes_negative() -> None:
    corrected = Corrected({"a": Estimate(1.0, 5.0)}).with_measured(Measured({"a": 1}, -3.0, 0.1))
    assert 0 < corrected.size("a") < 0.1


def test_the_curve_never_falls_and_is_met_at_its_bounds() -> None:
    curve = DropCurve.through([(0.0, 0.0), (0.1, 0.05), (0.02, 0.03), (0.03, 0.01), (0.4, 0.3)])
    assert all(first <= second for first, second in itertools.pairwise(curve.drops))
    assert curve.drop(0.025) == pytest.approx(0.02)
    for drop in (0.005, 0.04, 0.2, 0.3, 0.6):
        assert curve.drop(curve.noise_at(drop)) == pytest.approx(drop)
    assert curve.noise_at(0.02) == pytest.approx(0.03)  # the most noise with this drop


def test_a_curve_through_little() -> None:
    assert DropCurve.through([]).noise_at(0.0) == math.inf
    flat = DropCurve.through([(0.0, 0.0), (0.5, 0.0)])
    assert flat.drop(3.0) == 0.0
    assert flat.noise_at(0.1) == math.inf
    assert DropCurve.through([(0.0, 0.02), (1.0, 0.5)]).noise_at(0.01) == -math.inf
    assert DropCurve.through([(0.1, 0.2), (math.inf, 1.0)]).drop(0.05) == pytest.approx(0.1)
