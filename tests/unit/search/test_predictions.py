"""Estimates that measured sums correct, and the curve from noise to the metric."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from prepbench.search.states import expected_gain
from prepbench.search.tables import Corrected, DropCurve, Estimate, Measured


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


def test_doubt_falls_with_what_is_measured_and_parts_in_common_have_none() -> None:
    parts = {name: Estimate(1.0, 0.1) for name in "abcd"}
    first = Corrected(parts)
    assert first.doubt({"a": 1, "b": 1}) == pytest.approx(0.1 * math.sqrt(2))
    assert first.doubt({"a": 0, "e": 1}) == 0  # what is not known is in no sum
    known = first.with_measured(Measured({"a": 1, "b": 1, "c": 1}, 3.0, 1e-6))
    assert known.doubt({"a": 1, "b": 1, "c": 1}) == pytest.approx(0, abs=1e-5)
    assert known.doubt({"a": 1}) < first.doubt({"a": 1})
    # beside a sum that was measured, another is as doubtful as what they do not have in common
    beside = {"a": 0, "b": 0, "c": -1, "d": 1}
    draws = np.random.default_rng(0).normal(0, 0.1, (200_000, 4))
    draws -= np.array([1, 1, 1, 0]) * draws[:, :3].sum(1, keepdims=True) / 3  # as far as the sum is known
    assert known.doubt(beside) == pytest.approx(float((draws[:, 3] - draws[:, 2]).std()), rel=0.02)


def test_what_is_expected_to_be_gained_is_the_mean_of_what_is_below_the_best() -> None:
    draws = np.random.default_rng(0).normal(1.02, 0.05, 400_000)
    assert expected_gain(1.02, 0.05, 1.0) == pytest.approx(float(np.maximum(1.0 - draws, 0).mean()), rel=0.02)
    assert expected_gain(0.9, 0.0, 1.0) == pytest.approx(0.1)
    assert expected_gain(1.1, 0.0, 1.0) == 0
    assert expected_gain(math.inf, 1.0, 1.0) == 0
