"""Branches and shapes by sizes as published models and torch's own examples have them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture
from prepbench.compile.pipeline import compile_model
from prepbench.settings import EagerDeployment, OnnxRuntimeDeployment


def _branch_on_size() -> nn.Module:
    """The example of torch.export for an `if` on a size."""
    examples = pytest.importorskip("torch._export.db.examples.dynamic_shape_if_guard")
    model: nn.Module = examples.DynamicShapeIfGuard()
    return model


BOTH_SIDES = [torch.randn(size, 2, 2) for size in (3, 4, 5)]


def test_samples_on_both_sides_of_a_branch_on_a_size_are_two_variants() -> None:
    model = _branch_on_size()
    captured = capture(model, BOTH_SIDES, variants=4)
    assert len(captured.variants) == 2
    compiled = compile_model(model, tracing_inputs=BOTH_SIDES, deployment_settings=EagerDeployment())
    for size in (2, 3, 4, 7):
        x = torch.randn(size, 2, 2)
        torch.testing.assert_close(compiled(x), model(x))


class PooledByRate(nn.Module):
    """Characters are pooled by a rate and repeated again, with a remainder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rate, self.pool, self.shrink = 4, nn.MaxPool1d(4, 4), nn.Conv1d(8, 8, 4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, _ = x.shape
        pooled_mask = self.pool(mask.reshape(batch, 1, length).float())
        pooled = self.shrink(x.transpose(1, 2)).transpose(1, 2)
        pooled = torch.cat([x[:, :1], pooled[:, :-1]], dim=1)
        repeated = torch.repeat_interleave(pooled[:, 1:], repeats=self.rate, dim=-2)
        last = torch.repeat_interleave(pooled[:, -1:], repeats=length % self.rate + self.rate, dim=-2)
        return torch.cat([repeated, last], dim=-2), pooled_mask


def test_pooling_by_a_rate_is_one_graph() -> None:
    model = PooledByRate().eval()
    samples = [(torch.randn(b, n, 8), torch.ones(b, n, dtype=torch.long)) for b, n in ((2, 16), (3, 24), (3, 21))]
    compiled = compile_model(model, tracing_inputs=samples, deployment_settings=OnnxRuntimeDeployment())
    for batch, length in ((1, 17), (4, 30), (2, 12)):
        x, mask = torch.randn(batch, length, 8), torch.ones(batch, length, dtype=torch.long)
        for found, expected in zip(compiled(x, mask), model(x, mask), strict=True):
            torch.testing.assert_close(found, expected)
