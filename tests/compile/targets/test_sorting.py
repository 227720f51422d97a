"""Sorting where values are equal: a stable sort keeps their order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb

TARGETS = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()]
TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


class Sorted(nn.Module):
    """Every way to ask for a stable order, in both directions, for values of each type; and a number."""

    def forward(self, *values: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        found: list[tuple[torch.Tensor, ...]] = []
        for x in values:
            rising, falling = torch.sort(x, dim=0, stable=True), torch.sort(x, stable=True, descending=True)
            order = torch.argsort(x, stable=True), torch.argsort(x, dim=0, descending=True, stable=True)
            found.append((*rising, *falling, *order))
        return [*found, (*torch.sort(values[0].sum(), stable=True),)]


def few(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Of each type, a tensor of four different values or fewer."""
    values = torch.randint(-2, 2, (rows, columns))
    return tuple((values if dtype.is_signed else values.abs()).to(dtype) for dtype in TYPES)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__.removesuffix("Deployment"))
def test_equal_values_keep_their_order(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    samples = [few(3, 40), few(5, 30)]
    compiled = pb.compile_model(Sorted(), tracing_inputs=samples, deployment_settings=target)
    for sample in (*samples, few(70, 600)):
        for dtype, found, expected in zip([*TYPES, "number"], compiled(*sample), Sorted()(*sample), strict=True):
            for place, (one, other) in enumerate(zip(found, expected, strict=True)):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=0, msg=f"result {place} of {dtype}")


class Chosen(nn.Module):
    """The largest values in any order, as experts are chosen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, 3, sorted=False).values.sum(-1)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__.removesuffix("Deployment"))
def test_values_are_chosen_in_any_order(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    samples = [torch.randn(3, 40), torch.randn(5, 30)]
    compiled = pb.compile_model(Chosen(), tracing_inputs=samples, deployment_settings=target)
    for sample in (*samples, torch.randn(70, 600)):
        torch.testing.assert_close(compiled(sample), Chosen()(sample))
