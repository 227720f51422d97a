"""Products and reductions of nothing, as an empty batch gives: ONNX Runtime's own kernels end the process for products,
and give reductions over dims that count from the end another shape.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb

WEIGHT = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))


class Product(nn.Module):
    """The rows are the first dim before the transposition."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0, 2) @ WEIGHT


class Sum(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.equation, x, WEIGHT)


class OfSelection(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        rows = x[x[:, 0, 0] > 0]
        return torch.einsum("nhd,mhd->hnm", rows, rows), torch.einsum("nhd,bhd->bh", rows, x)


MODELS = {
    "product": Product(),
    **{equation: Sum(equation) for equation in ("nhd,hdk->hnk", "nhd,hdk->nk", "nad,hdk->ahk", "nhd,hdk->knh")},
    "selection": OfSelection(),
}


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.OpenVinoDeployment])
@pytest.mark.parametrize("name", MODELS)
def test_products_of_nothing_are_as_in_pytorch(name: str, target: Any) -> None:
    model = MODELS[name]
    drawn = torch.Generator().manual_seed(1)
    samples = [torch.randn(rows, 2, 3, generator=drawn) for rows in (4, 6)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target())
    calls = [*samples, torch.randn(1, 2, 3, generator=drawn), -torch.ones(3, 2, 3)]
    for x in calls if name == "selection" else [*calls, torch.empty(0, 2, 3)]:
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


class Reductions(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole, is_above = (x * 3).long(), x > 0
        return (
            *(x.sum(-1), x.mean(-1), x.amax(-1), x.argmax(-1), x.norm(dim=-1), x.prod(-1), x.logsumexp(-1)),
            *(x.argmin(-1, keepdim=True), x.std(-1), x.softmax(-1), x.sum((-3, -1))),
            *(whole.sum(-1), whole.amin(-1), is_above.all(-1), is_above.any(-1)),
            *(x.sum(-2), is_above.any(-2), is_above.all(-2), is_above.any(), is_above.any((0, 1), keepdim=True)),
        )


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.OpenVinoDeployment])
def test_reductions_of_nothing_are_as_in_pytorch(target: Any) -> None:
    model = Reductions()
    samples = [torch.randn(rows, steps, 6) for rows, steps in ((2, 4), (3, 7))]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target())
    for shape in ((0, 4, 6), (2, 0, 6), (0, 0, 6), (2, 3, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
