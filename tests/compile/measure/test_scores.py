"""How far a score could be off: the spread over draws of the batches."""

from __future__ import annotations

from typing import Any

import torch

import prepbench as pb
from prepbench.running.metric_scores import spread_of


def _mean(sums: torch.Tensor) -> torch.Tensor:
    return sums[:, 0] / sums[:, 1]


def test_few_batches_say_nothing_about_the_spread() -> None:
    assert spread_of([(1.0, 2.0)] * 7, _mean) is None


def test_equal_batches_have_no_spread() -> None:
    assert spread_of([(1.0, 2.0)] * 20, _mean) == (0.5, 0.5)


def test_the_interval_has_the_width_of_the_standard_error() -> None:
    torch.manual_seed(0)
    values = torch.rand(400, dtype=torch.float64)
    found = spread_of([(float(value), 1.0) for value in values], _mean)
    assert found is not None
    error = float(values.std() / 400**0.5)
    assert abs((found[1] - found[0]) / (2 * 1.96 * error) - 1) < 0.1


def test_a_comparison_tells_the_spread_of_each_score() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    data = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(12)]
    comparison = pb.compare(
        {"float32": net, "other": torch.nn.Linear(4, 3)}, data, metric=pb.metrics.accuracy, rounds=0
    )
    for row in comparison.rows:
        assert row.spread is not None
        assert row.spread[0] <= row.metric <= row.spread[1]
    inputs = [x for x, _ in data]
    reference, other = pb.compare({"float32": net, "other": torch.nn.Linear(4, 3)}, inputs, rounds=0).rows
    assert reference.spread is None  # it is infinitely close to itself
    assert other.spread is not None
    assert {"low", "high"} <= set(comparison.table().columns)


class _LooksAtSizes(torch.nn.Module):
    def forward(self, x: torch.Tensor, size: Any) -> torch.Tensor:
        return x.reshape(size) * (1.0 if isinstance(size, torch.Size) else 2.0)


def test_sizes_that_are_arguments_stay_sizes() -> None:
    batch = (torch.ones(6), torch.Size([2, 3]))
    found = pb.compare({"model": _LooksAtSizes(), "once": lambda x, size: x.reshape(size)}, [batch], rounds=0)
    assert found.rows[1].metric == float("inf")
