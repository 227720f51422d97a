"""Arithmetic on integers that are too large for a byte, or that differ in their lower 32 bits alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb

Way = Callable[[torch.Tensor, torch.Tensor], Any]


class Computes(nn.Module):
    def __init__(self, ways: list[Way]) -> None:
        super().__init__()
        self.ways = ways

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[Any]:
        return [way(x, y) for way in self.ways]


def check(ways: list[Way], calls: list[list[torch.Tensor]], deployment: pb.DeploymentSettings) -> None:
    model, (x, _) = Computes(ways), calls[0]
    small = [[torch.randint(1, 4, (n, x.shape[1])).to(x.dtype) for _ in range(2)] for n in (3, 5)]
    compiled = pb.compile_model(
        model, tracing_inputs=[tuple(sample) for sample in small], deployment_settings=deployment
    )
    for x, y in calls:
        for place, (found, expected) in enumerate(zip(compiled(x, y), model(x, y), strict=True)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=lambda text, at=place: f"way {at}: {text}")


ON_LARGE: list[Way] = [
    lambda x, y: x.clamp(0, 100),
    lambda x, y: x.clamp(min=2**33 + 2**31),
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.clamp(x, y, y + 5),
    lambda x, y: x.sign(),
    lambda x, y: x.relu(),
    lambda x, y: x.amax(1),
    lambda x, y: x.amin(),
    lambda x, y: tuple(x.max(1)),
    lambda x, y: tuple(x.min(0, keepdim=True)),
    lambda x, y: (x * 2**20).sum(1),
    lambda x, y: x.sum(),
    lambda x, y: torch.fmod(x * 2**15, 1000),
    lambda x, y: (x**2, x**5),
]


def test_onnx_runtime_compares_all_64_bits() -> None:
    torch.manual_seed(0)
    calls = []
    for rows in (1, 6, 33):
        upper = torch.randint(-3, 3, (rows, 1)).expand(rows, 7) * 2**32
        x, y = (upper + torch.randint(0, 2**32, (rows, 7)) for _ in range(2))
        x[0, 0] = y[0, 0]
        calls += [[x, y], [x * 1000, y]]
    check(ON_LARGE, calls, pb.OnnxRuntimeDeployment())


ON_BYTES: list[Way] = [
    lambda x, y: (x + y, x + 50, x - y, x * y, -x, x.abs()),
    lambda x, y: (x << 1, x >> 2, x**2, x**5),
    lambda x, y: (x // 7, x % 7, torch.div(x, 7, rounding_mode="trunc")),
    lambda x, y: (x + y - y, (x * y).to(torch.int32), (x + y) > 0),
    lambda x, y: x @ y.T,
]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_bytes_wrap_on_openvino(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    info = torch.iinfo(dtype)
    calls = [[torch.randint(info.min, info.max + 1, (rows, 7)).to(dtype) for _ in range(2)] for rows in (1, 6, 33)]
    check(ON_BYTES, calls, pb.OpenVinoDeployment())
