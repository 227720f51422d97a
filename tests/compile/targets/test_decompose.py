"""Operators are replaced by others: equal ones are traced once, and each is right in its own layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets import decompose


class Block(nn.Module):
    """Attention over heads of one width."""

    def __init__(self, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.lift, self.heads, self.is_causal = nn.Linear(8, 8), heads, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lift(x).reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(y, y, y, is_causal=self.is_causal)
        return x + y.transpose(1, 2).reshape(x.shape)


class Chosen(nn.Module):
    """Takes the largest window of what a mask leaves, whose count only its values decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x[x.sum((1, 2)) > 0], x[x.sum((1, 2)) <= 0]
        return torch.cat([nn.functional.max_pool1d(first, 2), nn.functional.max_pool1d(second, 2)])


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that were traced."""
    found: list[Any] = []
    trace = decompose._newly_traced
    monkeypatch.setattr(decompose, "_newly_traced", lambda node, *rest: found.append(node) or trace(node, *rest))
    return found


# ExecuTorch takes seconds for each block
@pytest.mark.parametrize(
    ("deployment", "blocks"),
    [
        (pb.OnnxRuntimeDeployment(), [(2, False), (2, False), (4, False), (2, True), (2, False)]),
        pytest.param(pb.ExecuTorchDeployment(), [(2, False), (2, True), (2, False)], marks=pytest.mark.stress),
    ],
    ids=["OnnxRuntime", "ExecuTorch"],
)
def test_equal_blocks_are_traced_once_and_others_again(
    traced: list[Any], deployment: pb.DeploymentSettings, blocks: list[tuple[int, bool]]
) -> None:
    model = nn.Sequential(*(Block(*block) for block in blocks)).eval()
    samples = [torch.randn(2, 5, 8), torch.randn(3, 7, 8)]
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=deployment, discard_input_model=False
    )
    assert len(traced) == len(set(blocks))
    for x in (*samples, torch.randn(1, 4, 8)):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_sizes_that_values_decide_are_not_shared() -> None:
    model = Chosen().eval()
    program = pb.capture(model, [torch.randn(6, 3, 8)]).program
    pools = {torch.ops.aten.max_pool1d.default: lambda x, *rest: torch.nn.functional.max_pool2d(x, (1, 2))}
    found = decompose.decompose(program, pools)
    x = torch.randn(6, 3, 8)
    torch.testing.assert_close(found.module()(x), model(x))
