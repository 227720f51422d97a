"""Division and remainders of numbers whose quotient, in float32, may round up to the next integer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb

STEPS = torch.arange(12) * 0.1
ENDS = [(math.inf, 2.0), (-1.0, math.inf), (1.0, -math.inf), (math.nan, 2.0), (-5.0, 0.0), (0.0, 3.0), (-7.0, 3.0)]
X = torch.cat([STEPS, -STEPS, torch.tensor([x for x, _ in ENDS])])
Y = torch.cat([torch.full((24,), 0.1), torch.tensor([y for _, y in ENDS])])


class Divides(nn.Module):
    def __init__(self, ways: list[Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.ways = ways

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [way(x, y) for way in self.ways]


DIVISIONS: list[Callable[..., torch.Tensor]] = [
    lambda x, y: x // y,
    lambda x, y: x // 0.1,
    lambda x, y: 0.7 // y,
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: x.clone().floor_divide_(0.1),
    lambda x, y: x.nan_to_num(0, 9, -9).int() // 2.5,
    lambda x, y: x.nan_to_num(0, 9, -9).int() // 2,
]
REMAINDERS: list[Callable[..., torch.Tensor]] = [
    lambda x, y: x % y,
    lambda x, y: x % -0.3,
    lambda x, y: x.clone().remainder_(0.1),
    lambda x, y: x.nan_to_num(0, 9, -9).int() % 2.5,
    lambda x, y: x.nan_to_num(0, 9, -9).int() % 2,
]


@pytest.mark.parametrize("deployment", [pb.OnnxRuntimeDeployment(), pb.InductorDeployment()])
def test_they_are_rounded_as_in_torch(deployment: Any) -> None:
    model = Divides([*DIVISIONS, *REMAINDERS]).eval()
    compiled = pb.compile_model(model, tracing_inputs=[(X[:5], Y[:5]), (X[:7], Y[:7])], deployment_settings=deployment)
    found, expected = compiled(X.clone(), Y.clone()), model(X, Y)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert expected[1][5] == 4.0, "0.5 / 0.1 is rounded to 5"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("deployment", [pb.OnnxRuntimeDeployment(), pb.InductorDeployment()])
def test_large_integers_are_divided_towards_0(deployment: Any, dtype: torch.dtype) -> None:
    ways: list[Callable[..., torch.Tensor]] = [
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, -7, rounding_mode="trunc"),
    ]
    model = Divides(ways).eval()
    x = torch.tensor([2**31 - 1, -(2**31) + 1, 2**30 + 1, -7, 6, -6, 0, torch.iinfo(dtype).min], dtype=dtype)
    y = torch.tensor([7, 7, -7, 7, 7, 7, 3, 5], dtype=dtype)
    compiled = pb.compile_model(model, tracing_inputs=[(x[:2], y[:2]), (x[:3], y[:3])], deployment_settings=deployment)
    torch.testing.assert_close(compiled(x, y), model(x, y))
