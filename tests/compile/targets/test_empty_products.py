"""Products, reductions and blocks of nothing, as an empty batch gives: ONNX Runtime's own kernels end the process for
products, and give reductions over dims that count from the end another shape.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

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


class Blocks(nn.Module):
    """Operators whose translation would leave a size to the runtime, which finds none where others are 0."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = x.unsqueeze(1)
        blocks = functional.unfold(images, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))
        shares = functional.cross_entropy(x.transpose(1, 2), x.argmax(-1), reduction="none")
        return blocks, x.repeat_interleave(2, -1), x.repeat_interleave(3, 0), shares, (x * 9).long() % x.shape[0]


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.OpenVinoDeployment])
def test_blocks_of_nothing_are_as_in_pytorch(target: Any) -> None:
    model = Blocks()
    samples = [torch.randn(rows, steps, 6) for rows, steps in ((2, 4), (3, 7))]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target())
    for shape in ((0, 4, 6), (2, 5, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.OpenVinoDeployment])
def test_groups_of_nothing_are_as_in_pytorch(target: Any) -> None:
    model = nn.GroupNorm(2, 6).eval()
    samples = [torch.randn(rows, 6, steps) for rows, steps in ((2, 4), (3, 7))]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target())
    for shape in ((0, 6, 4), (2, 6, 0), (0, 6, 0), (2, 6, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


def test_kernels_that_take_nothing_empty_are_named() -> None:
    samples = [torch.randn(rows, steps, 6) for rows, steps in ((2, 4), (3, 7))]
    model = nn.MaxPool1d(2)
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())
    with pytest.raises(pb.errors.InputError, match=r"input of shape \(0, 4, 6\)\. Not all kernels of openvino take"):
        compiled(torch.empty(0, 4, 6))
