"""Branches on data whose other side cannot be computed for the samples at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture


class LayerOfOtherSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fits, self.never = nn.Linear(4, 4), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fits(x) if x.sum() > -1e9 else self.never(x)
        return torch.relu(y * 2)


class LayersOfOtherRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images, self.channels, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm1d(9), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if x.sum() < -1e9:
            y = self.channels(self.images(x))
        elif x.max() > 1e9:
            y = torch.einsum("abc,cd->ad", x, x)
        return self.last(y)


class WrongProduct(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if x.sum() < -1e9:
            y = torch.cat([x, torch.ones(1)]).view(2, 2)
        return y * 2


@pytest.mark.parametrize("kind", [LayerOfOtherSizes, LayersOfOtherRank, WrongProduct])
def test_the_branch_is_cut_as_it_was_written(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    captured = capture(model, [torch.randn(2, 4), torch.randn(3, 4)], fullgraph=False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(captured.program.module()(x), model(x))
    # what stands behind the branch is in the graph, where the branch is no part of an expression with unknown sizes
    assert kind is WrongProduct or captured.leaves[0].lines is not None
