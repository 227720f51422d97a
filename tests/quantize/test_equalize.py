"""Cross-layer equalisation: which layers are neighbours, that the function stays, and that it helps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from prepbench.quantize.algorithms import equalize
from tests.quantize.transformed import (
    export,
    layers_of,
    simulated_sqnr,
    unchanged,
)


def spread(*layers: nn.Module, decades: float = 1.0) -> None:
    """Give the channels between neighbouring layers ranges that lie decades apart, the function staying the same."""
    with torch.no_grad():
        for one, two in pairwise(layers):
            factor = 10 ** ((torch.rand(len(one.weight)) * 2 - 1) * decades)
            one.weight *= factor.view([-1] + [1] * (one.weight.ndim - 1))
            if one.bias is not None:
                one.bias *= factor
            if getattr(two, "groups", 1) > 1:
                two.weight /= factor.repeat_interleave(len(two.weight) // len(factor)).view(-1, 1, 1, 1)
            else:
                two.weight /= factor.view([1, -1] + [1] * (two.weight.ndim - 2))


class Convolutions(nn.Module):
    """Convolution, depthwise convolution with two outputs per input, pool, pointwise, grouped, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding="same")
        self.depthwise = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.point = nn.Conv2d(16, 16, 1, bias=False)
        self.grouped = nn.Conv2d(16, 16, 3, groups=4)
        self.last = nn.Conv2d(16, 8, 1)
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.leaky_relu(self.depthwise(torch.relu_(self.stem(x))))
        x = torch.relu(self.point(nn.functional.max_pool2d(x, 2)))
        x = self.last(self.grouped(x)).mean((2, 3))
        return self.two(torch.relu(self.one(x)))


def test_equalising_helps_where_channels_have_unlike_ranges() -> None:
    model = Convolutions()
    spread(model.stem, model.depthwise, model.point)
    spread(model.one, model.two)
    data = [torch.randn(4, 3, 12, 12) for _ in range(3)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=False)
    code = graph.code
    with unchanged(model, graph, data[0]):
        changed = equalize(graph, layers_of(graph, model))
    assert changed == ["stem", "depthwise", "point", "grouped", "last", "one", "two"]
    assert graph.code == code
    after = simulated_sqnr(model, graph, data, per_channel=False)
    assert after > before + 15
    assert equalize(graph, layers_of(graph, model)) == []


def test_neighbouring_ranges_agree_afterwards() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 5, 1))
    spread(model[0], model[2])
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalize(graph, layers_of(graph, model)) == ["0", "2"]
    outputs = graph.get_parameter("0.weight").abs().amax((1, 2, 3))
    torch.testing.assert_close(outputs, graph.get_parameter("2.weight").abs().amax((0, 2, 3)), rtol=5e-3, atol=0)


class Two(nn.Module):
    """Two layers and what lies between them."""

    def __init__(self, one: nn.Module, two: nn.Module, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.between = one, two, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        return self.two(self.between(y))


class Residual(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one(x))
        return self.two(y) + y


@pytest.mark.parametrize(
    "model",
    [
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.relu6),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.hardtanh),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.gelu),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=2), nn.functional.relu),
        Two(nn.Conv2d(3, 8, 1), nn.Linear(6, 6), nn.functional.relu),
        Residual(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.relu),
    ],
    ids=["relu6", "hardtanh", "gelu", "groups", "linear", "residual"],
)
def test_what_is_no_pair_is_left_alone(model: Two) -> None:
    model.one.weight.data[0] *= 50
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalize(graph, layers_of(graph, model)) == []


def test_shared_layers_are_not_equalised() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(8, 8))
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    for net in (model, tied):
        net[0].weight.data[0] *= 50
        x = torch.randn(2, 8)
        graph = export(net, x)
        with unchanged(net, graph, x):
            assert equalize(graph, layers_of(graph, net)) == []


def test_a_shared_bias_is_split() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].bias = model[0].bias
    spread(model[0], model[2])
    x = torch.randn(2, 8)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert equalize(graph, layers_of(graph, model)) == ["0", "2"]


def test_dead_channels_with_a_bias_do_not_blow_up() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1))
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0, 1
        model[0].weight[1], model[0].bias[1] = 1e-12, 1
        model[0].weight[2], model[0].bias[2] = 1e-12, 0
        model[2].weight[:, 3] = 0
        model[2].weight[:, 4] = 1e-12
    data = [torch.randn(2, 3, 6, 6)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=False)
    with unchanged(model, graph, data[0]):
        equalize(graph, layers_of(graph, model))
    assert simulated_sqnr(model, graph, data, per_channel=False) > before - 1
    assert all(bool(value.isfinite().all()) for value in graph.state_dict().values())
