"""Mixtures near the best, and which of them are worth a measurement."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from prepbench.search.loop import gain, moves, near
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.objective import Budget
from prepbench.search.scoring import Scale
from prepbench.search.search_result import SearchCandidate
from prepbench.search.states import TargetState, excess
from prepbench.search.tables import Corrected, Estimate, Measured
from tests.unit.search.test_search_tables import LAYERS, pruned_tables, tables

SCALE = Scale("SQNR", is_sqnr=True, higher_is_better=True, base=float("inf"))
BEST: Mixture = ("int8",) * 6


def state(doubt: float) -> TargetState:
    """The best was measured, and every layer would take as long in float, as far as is known."""
    known = dataclasses.replace(tables(0), groups=(), refused={}, neighbours=())
    parts = {(fqn, name): Estimate(1e-3, doubt) for fqn in LAYERS for name in known.choices}
    whole = Measured(known.parts(BEST), 6e-3, 1e-6)
    known = dataclasses.replace(known, times=Corrected(parts, (whole,)))
    best = SearchCandidate("best", "", dict(zip(LAYERS, BEST, strict=True)), metric=30.0, ms=6.0, size_bytes=1)
    return TargetState("target", known, measured={BEST: best})


def test_a_few_layers_in_a_row_change_together() -> None:
    known = dataclasses.replace(tables(0), groups=(frozenset("bd"),), refused={("f", FLOAT): "no"})
    found = list(moves(known, BEST))
    assert len(found) == len(set(found))
    assert BEST not in found
    assert (FLOAT, "int8", "int8", "int8", "int8", "int8") in found
    assert ("int8", "int8", "int8", "int8", FLOAT, "int8") in found
    for one in found:
        changed = [fqn for fqn, name in zip(LAYERS, one, strict=True) if name != "int8"]
        assert ("b" in changed) == ("d" in changed), "they share weights"
        assert len(set(one) - {"int8"}) == 1
        assert one[-1] != FLOAT


def test_equalised_channels_are_not_mixed_with_others_and_not_timed_again() -> None:
    known = state(doubt=1e-4)
    scaled = dataclasses.replace(
        known.tables, choices=(*known.tables.choices, "scaled"), kernels={"int8": "int8", "scaled": "int8"}
    )
    known = dataclasses.replace(known, tables=scaled)
    assert not any("scaled" in one for one in moves(scaled, BEST))
    same: Mixture = ("scaled",) * 6
    assert known.predicted(same, "", SCALE).predicted_ms == 6.0
    assert known.doubt(same, BEST) == 0.0
    assert gain(known, same, BEST, 6.0, Budget(min_metric=20), SCALE) == 0.0


def test_layers_that_lose_the_same_channels_change_together() -> None:
    known = pruned_tables(0)
    found = list(moves(known, BEST))
    assert ("int4", "int8", "int8", "int4", "int8", "int8") in found
    assert (FLOAT, "int8", "int8", "int8", "int8", "int8") in found, "bits alone may differ"
    assert all((one[0] == "int4") == (one[3] == "int4") for one in found)


def test_what_is_as_fast_as_far_as_is_known_is_worth_a_try_where_little_is_known() -> None:
    budget, within = Budget(min_metric=0.0), set(itertools.islice(moves(state(0.0).tables, BEST), 1000))
    assert near(state(0.0), BEST, budget, SCALE) == []
    found = near(state(3e-4), BEST, budget, SCALE)
    assert found
    assert set(found) <= within
    gains = [gain(state(3e-4), one, BEST, 6.0, budget, SCALE) for one in found]
    assert gains == sorted(gains, reverse=True)
    # the more layers differ, the less is known beside the best
    assert sum(name != "int8" for name in found[0]) == 4


def test_what_was_simulated_or_is_far_too_noisy_is_left_out() -> None:
    budget, known = Budget(min_metric=20.0), state(3e-4)
    limit = SCALE.limit(budget)
    for one in near(known, BEST, budget, SCALE):
        assert known.tables.noise_of(one) <= 1.6 * limit
        assert one not in near(known.with_noise(one, 1e-6), BEST, budget, SCALE)


@pytest.mark.parametrize(("ms", "gained"), [(5.97, 0.0), (5.5, 0.5)])
def test_a_time_that_was_measured_has_no_doubt_and_differs_only_where_timing_tells(ms: float, gained: float) -> None:
    other: Mixture = (FLOAT, *BEST[1:])
    known = state(3e-4)
    timed = dataclasses.replace(known.measured[BEST], name="other", metric=None, ms=ms)
    known = dataclasses.replace(known, measured={**known.measured, other: timed})
    assert gain(known, other, BEST, 6.0, Budget(min_metric=0.0), SCALE) == pytest.approx(gained)


@pytest.mark.parametrize("least", [20.0, 40.0, 60.0])
def test_noise_counts_alike_for_any_floor(least: float) -> None:
    budget = Budget(min_metric=least, max_latency_ms=4.0, minimize="size")
    loud = SearchCandidate("loud", "", {}, metric=least - 10, ms=4.0)
    slow = SearchCandidate("slow", "", {}, metric=least, ms=6.0)
    assert excess(loud, budget, SCALE) == pytest.approx(9.0)  # ten times the noise
    assert excess(slow, budget, SCALE) == pytest.approx(0.5)
