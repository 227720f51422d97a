"""Batch norms are folded only where the layer before them can compute them, and the results stay the same."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from prepbench.quantize.algorithms import fold_batch_norms
from tests.compile.quantize.conftest import export


def trained(norm: nn.Module) -> nn.Module:
    """The norm as training might leave it."""
    generator = torch.Generator().manual_seed(norm.num_features)
    for values, low, high in ((norm.weight, 0.5, 2), (norm.bias, -1, 1), (norm.running_mean, -1, 1)):
        if values is not None:
            values.data.uniform_(low, high, generator=generator)
    norm.running_var.uniform_(0.2, 3, generator=generator)
    return norm


def folded(model: nn.Module, x: torch.Tensor) -> fx.GraphModule:
    """The graph with its norms folded, which computes what the model does and leaves the model's weights alone."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            trained(norm)
    expected = copy.deepcopy(model.eval())(x)
    graph = export(model, x).module(check_guards=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fold_batch_norms(graph)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(graph(x), expected, rtol=1e-4, atol=1e-4)
    return graph


def norms(graph: fx.GraphModule) -> int:
    return sum("batch_norm" in str(node.target) for node in graph.graph.nodes)


class SharedConvolution(nn.Module):
    """A detection head: one convolution for all levels, and for each of them its own norm, or one for all."""

    def __init__(self, one_norm: bool) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.second = self.first if one_norm else nn.BatchNorm2d(4, eps=1e-3)
        if not one_norm:
            self.second.momentum = 0.3

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(self.conv(x)), self.second(self.conv(2 * x))


class TiedWeight(SharedConvolution):
    """The second call has a weight of another name in the same memory, and no norm."""

    def __init__(self) -> None:
        super().__init__(one_norm=True)
        self.other = nn.Conv2d(3, 4, 3)
        self.other.weight = nn.Parameter(self.conv.weight.detach()[:])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(self.conv(x)), self.other(x)


class ReadTwice(SharedConvolution):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return y + self.first(y)


class WritesStatistics(SharedConvolution):
    """The variance is another one in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first.running_var.add_(1)
        return self.first(self.conv(x))


IMAGE = (2, 3, 8, 8)
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), IMAGE[:3]),
    "no bias": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)), IMAGE),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)), (2, 6, 8, 8)),
    "padding by name": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4)), IMAGE),
    "not affine": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), IMAGE),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2), nn.BatchNorm2d(4)), IMAGE),
    "transposed 3d": (lambda: nn.Sequential(nn.ConvTranspose3d(3, 4, 3, 2), nn.BatchNorm3d(4)), (2, 3, 4, 4, 4)),
    "grouped transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(6, 4, 3, 2, groups=2, bias=False), nn.BatchNorm2d(4)),
        (2, 6, 8, 8),
    ),
    "depthwise transposed": (
        lambda: nn.Sequential(nn.ConvTranspose1d(6, 12, 3, groups=6), nn.BatchNorm1d(12)),
        (2, 6, 8),
    ),
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (5, 3)),
    "one norm after two calls": (lambda: SharedConvolution(one_norm=True), IMAGE),
}
KEPT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two norms after two calls": (lambda: SharedConvolution(one_norm=False), IMAGE),
    "a tied weight": (TiedWeight, IMAGE),
    "read twice": (lambda: ReadTwice(one_norm=True), IMAGE),
    "statistics that change": (lambda: WritesStatistics(one_norm=True), IMAGE),
    "rows of linear layers": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(6)), (2, 6, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_norm_is_folded_into_the_layer_before_it(name: str) -> None:
    make, shape = CONVOLUTIONS[name]
    torch.manual_seed(0)
    assert norms(folded(make(), torch.randn(shape))) == 0


@pytest.mark.parametrize("name", KEPT)
def test_a_norm_stays_where_folding_would_change_what_else_is_computed(name: str) -> None:
    make, shape = KEPT[name]
    torch.manual_seed(0)
    assert norms(folded(make(), torch.randn(shape))) > 0


def test_a_norm_in_training_mode_stays() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    program = torch.export.export(model.train(), (torch.randn(IMAGE),), strict=False)
    graph = program.module(check_guards=False)
    fold_batch_norms(graph)
    assert norms(graph) == 1
