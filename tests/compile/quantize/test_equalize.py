"""Cross-layer equalisation: which layers are neighbours, that the function stays, and that it helps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import fx, nn

import prepbench as pb
from prepbench.quantize.algorithms import equalize, settings_of_scales
from tests.compile.quantize.transformed import (
    export,
    layers_of,
    samples_of,
    simulated_sqnr,
    unchanged,
)


def equalized(graph: fx.GraphModule, model: nn.Module, *data: torch.Tensor, **settings: object) -> list[str]:
    layers = layers_of(graph, model)
    given = pb.QuantizationSettings(cross_layer_equalization=True, **settings)  # type: ignore[arg-type]
    return equalize(graph, layers, {layer.fqn: given for layer in layers}, samples_of(*data))


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


@pytest.mark.parametrize("per_channel", [True, False])
def test_equalising_helps_where_channels_have_unlike_ranges(per_channel: bool) -> None:
    model = Convolutions()
    spread(model.stem, model.depthwise, model.point)
    spread(model.one, model.two)
    data = [torch.randn(4, 3, 12, 12) for _ in range(3)]
    graph = export(model, data[0])
    before = simulated_sqnr(model, graph, data, per_channel=per_channel)
    code = graph.code
    with unchanged(model, graph, data[0]):
        changed = equalized(graph, model, *data, per_channel=per_channel)
    assert {"stem", "depthwise", "point", "one", "two"} <= set(changed)
    assert graph.code == code
    assert simulated_sqnr(model, graph, data, per_channel=per_channel) > before + 10


def test_ranges_of_activations_agree_afterwards() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=8, bias=False))
    spread(model[0], model[2])
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalized(graph, model, x) == ["0", "2"]
    with torch.no_grad():  # a depthwise convolution with scales for each channel loses nothing by that
        ranges = torch.relu(nn.functional.conv2d(x, graph.get_parameter("0.weight"))).amax((0, 2, 3))
    torch.testing.assert_close(ranges, ranges[0].expand_as(ranges), rtol=1e-4, atol=0)


class Stream(nn.Module):
    """Two inverted residuals with ReLU6 around depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 16, 1), nn.ReLU6(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU6(), nn.Conv2d(16, 8, 1)
            )
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def test_a_residual_stream_is_scaled_as_a_whole() -> None:
    model = Stream()
    factor = 10 ** (torch.rand(8) * 3 - 1.5)
    with torch.no_grad():
        for layer in (model.stem, model.blocks[0][4], model.blocks[1][4]):
            layer.weight *= factor.view(-1, 1, 1, 1)
            layer.bias *= factor
        for layer in (model.blocks[0][0], model.blocks[1][0]):
            layer.weight /= factor.view(1, -1, 1, 1)
        model.head.weight /= factor
    x = torch.randn(4, 3, 6, 6)
    graph = export(model, x)
    before = simulated_sqnr(model, graph, [x], per_channel=True)
    with unchanged(model, graph, x):
        changed = equalized(graph, model, x)
    # not the depthwise convolutions, which ReLU6 surrounds
    assert changed == ["stem", "blocks.0.0", "blocks.0.4", "blocks.1.0", "blocks.1.4", "head"]
    assert simulated_sqnr(model, graph, [x], per_channel=True) > before + 6


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
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), lambda x: x + 1),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), lambda x: x + x.mean((2, 3), keepdim=True)),
        Two(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), lambda x: x.transpose(1, 2).reshape(x.shape)),
        Two(nn.Conv2d(3, 8, 1), nn.Linear(6, 6), nn.functional.relu),
        Residual(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.functional.relu),
    ],
    ids=["relu6", "hardtanh", "gelu", "constant", "spread", "mixed", "linear", "output"],
)
def test_what_is_no_pair_is_left_alone(model: Two) -> None:
    model.one.weight.data[0] *= 50
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    assert equalized(graph, model, x) == []


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
            assert equalized(graph, net, x) == []


def test_a_shared_bias_is_split() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].bias = model[0].bias
    spread(model[0], model[2])
    x = torch.randn(2, 8)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert equalized(graph, model, x) == ["0", "2"]


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
        equalized(graph, model, *data, per_channel=False)
    assert simulated_sqnr(model, graph, data, per_channel=False) > before - 1
    assert all(bool(value.isfinite().all()) for value in graph.state_dict().values())


@pytest.mark.parametrize(
    "two",
    [nn.Conv2d(8, 16, 3, groups=4), nn.ConvTranspose2d(8, 5, 3), nn.Conv2d(8, 16, 3, groups=8)],
    ids=["groups", "transposed", "depthwise"],
)
def test_every_form_of_weight_is_scaled_exactly(two: nn.Module) -> None:
    model = Two(nn.ConvTranspose2d(3, 8, 3), two, nn.LeakyReLU())
    with torch.no_grad():
        model.one.weight *= torch.logspace(-2, 2, 8).view(1, -1, 1, 1)
    x = torch.randn(2, 3, 6, 6)
    graph = export(model, x)
    with unchanged(model, graph, x):
        assert equalized(graph, model, x) == ["one", "two"]


@pytest.mark.parametrize("of_weights", [True, False])
def test_values_that_are_not_finite_change_nothing(of_weights: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(4, 8)
    (model[2].weight.data if of_weights else x)[0, 0] = float("nan")
    graph = export(model, x)
    assert equalized(graph, model, x) == []


def test_without_samples_or_with_cancelling_the_graph_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    spread(model[0], model[2])
    x = torch.randn(4, 8)
    graph = export(model, x)
    layers, code = layers_of(graph, model), graph.code
    assert equalized(graph, model) == []

    def cancel(progress: pb.Progress) -> None:
        raise pb.Cancelled

    settings = {layer.fqn: pb.QuantizationSettings(cross_layer_equalization=True) for layer in layers}
    with unchanged(model, graph, x), pytest.raises(pb.Cancelled):
        equalize(graph, layers, settings, samples_of(x), cancel)
    assert graph.code == code


def test_what_samples_hold_is_measured_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    spread(model[0], model[2], model[4])
    x = torch.randn(16, 8)
    known: dict[Any, Any] = {}

    def scaled(settings: Any, *samples: torch.Tensor) -> dict[str, torch.Tensor]:
        graph = export(model, x)
        equalize(graph, layers_of(graph, model), settings, samples_of(*samples), known=known)
        return {name: value.clone() for name, value in graph.state_dict().items()}

    given = pb.QuantizationSettings(cross_layer_equalization=True)
    everywhere = settings_of_scales({"0": given}, ["0", "2", "4"])
    first = scaled(everywhere, x)
    again = scaled(everywhere)  # there are no samples that could be run
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, again[name]) for name, value in export(model, x).state_dict().items())
    fewer = scaled({"2": given, "4": given})
    known.clear()
    assert all(torch.equal(value, fewer[name]) for name, value in scaled({"2": given, "4": given}, x).items())


def test_channels_are_scaled_where_all_who_make_or_read_them_want_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    spread(model[0], model[2], model[4])
    x = torch.randn(16, 8)
    plain, scaled = pb.QuantizationSettings(), pb.QuantizationSettings(cross_layer_equalization=True)
    for given, expected in (
        ({"0": plain, "2": scaled, "4": scaled}, ["2", "4"]),
        ({"2": scaled}, ["0", "2", "4"]),  # layers in float compute the same with scales
        ({"0": plain, "2": plain}, []),
    ):
        graph = export(model, x)
        settings = settings_of_scales(given, ["0", "2", "4"])
        assert equalize(graph, layers_of(graph, model), settings, samples_of(x)) == expected
    assert settings_of_scales({"0": plain}, ["0", "2"], everywhere=True) == {"0": scaled, "2": scaled}


def test_weights_in_half_precision_are_scaled_in_float32() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    spread(model[0], model[2], decades=0.7)
    model, x = model.to(torch.bfloat16).eval(), torch.randn(64, 64)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    quality = {}
    for scaled in (False, True):
        compiled = pb.compile_model(
            model,
            calibration_inputs=[x.bfloat16(), x[:3].bfloat16()],
            deployment_settings=pb.EagerDeployment(),
            quantization_settings=pb.QuantizationSettings(cross_layer_equalization=scaled),
            compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False, smooth_quant=False),
        )
        quality[scaled] = compiled.report.model_sqnr
        assert ("channels equalised" in compiled.report.layers[0].note) is scaled
    assert quality[True] > quality[False] + 2
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
