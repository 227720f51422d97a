"""Budgets that contradict themselves are refused, and name what does."""

from __future__ import annotations

import math
from typing import Any

import pytest

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.search.scoring import Scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "bounds nothing. Give at least one of max_drop"),
        ({"minimize": "size"}, "bounds nothing"),
        ({"max_drop": 0.01, "min_metric": 0.7}, "max_drop and min_metric contradict"),
        ({"max_latency_ms": 3}, r"minimize='latency' and max_latency_ms=3 contradict.*minimize='size' or 'drop'"),
        ({"max_size_mb": 3, "minimize": "size"}, "minimize='size' and max_size_mb=3 contradict"),
        ({"max_drop": 0.1, "minimize": "drop"}, "minimize='drop' and max_drop=0.1 contradict"),
        ({"min_metric": 0.1, "minimize": "drop"}, "minimize='drop' and min_metric=0.1 contradict"),
        ({"max_drop": -0.1}, r"Budget.max_drop must be None or a number 0 or more.*got -0.1"),
        ({"max_drop": math.nan}, r"Budget.max_drop must be"),
        ({"min_metric": math.inf}, r"Budget.min_metric must be"),
        ({"max_latency_ms": 0, "minimize": "drop"}, r"Budget.max_latency_ms must be.*above 0"),
        ({"max_size_mb": True}, r"Budget.max_size_mb must be.*got True"),
        ({"max_drop": "1%"}, r"Budget.max_drop must be.*got '1%'"),
        ({"max_drop": 0.1, "minimize": "speed"}, r"Budget.minimize must be 'latency' or 'size' or 'drop'"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        pb.Budget(**fields)


def test_a_budget_says_what_it_is_and_goes_to_json_and_back() -> None:
    budget = pb.Budget(min_metric=0.7, max_size_mb=2.5)
    assert str(budget) == "the fastest with a metric of 0.7 or better and at most 2.5 MB"
    assert pb.Budget.from_dict(budget.to_dict()) == budget


def test_losses_follow_the_direction_of_the_metric() -> None:
    accuracy, perplexity = Scale("accuracy", False, True, 0.9), Scale("perplexity", False, False, 4.0)
    assert accuracy.loss(0.8) == pytest.approx(0.1)
    assert perplexity.loss(5.0) == pytest.approx(1.0)
    assert perplexity.limit(pb.Budget(min_metric=4.5)) == pytest.approx(0.5)
    assert accuracy.limit(pb.Budget(max_drop=0.02)) == 0.02
    assert accuracy.metric_of(accuracy.loss(0.7)) == pytest.approx(0.7)
    decibels = Scale("SQNR", True, True, math.inf)
    assert decibels.limit(pb.Budget(min_metric=20)) == pytest.approx(0.01)
    assert decibels.metric_of(decibels.loss(33.0)) == pytest.approx(33.0)
    with pytest.raises(SettingsError, match=r"max_drop=0.01 needs a metric.*Budget\(min_metric=20\)"):
        decibels.limit(pb.Budget(max_drop=0.01))
