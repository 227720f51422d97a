"""Layers that careless int8 destroys: outliers, tiny weights, folded batch norms, squeeze and excitation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prepbench.objects.compare import sqnr
from prepbench.settings import QuantizationSettings


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_per_channel_survives_an_outlier_channel_that_destroys_per_tensor(quantize: Any) -> None:
    net = nn.Conv2d(3, 8, 3, bias=False)
    net.weight.data[3] *= 100
    x = noise(8, 3, 8, 8)
    others = [0, 1, 2, 4, 5, 6, 7]

    def quality(per_channel: bool) -> float:
        from prepbench.quantize import Placement

        settings = QuantizationSettings(per_channel=per_channel)
        quantized = quantize(net, [x], settings, placement=Placement())
        return sqnr(net(x)[:, others], quantized(x)[:, others])

    assert quality(True) > 35
    assert quality(False) < 15


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_the_size_of_weights_does_not_matter(quantize: Any, scale: float) -> None:
    net = nn.Linear(32, 32, bias=False)
    net.weight.data *= scale
    assert sqnr(net(noise(16, 32)), quantize(net, [noise(16, 32)])(noise(16, 32))) > 35


@pytest.mark.parametrize("scale", [1e-5, 1e4])
def test_the_size_of_activations_does_not_matter(quantize: Any, scale: float) -> None:
    net = nn.Linear(32, 32, bias=False)
    x = noise(16, 32) * scale
    assert sqnr(net(x), quantize(net, [x])(x)) > 35


def test_a_channel_of_tiny_weights_leaves_room_for_its_bias_in_int32(quantize: Any) -> None:
    net = nn.Conv2d(3, 4, 1)
    net.weight.data[1] *= 1e-12
    net.weight.data[2] = 0
    net.bias.data.fill_(5)
    x = noise(4, 3, 8, 8)
    quantized = quantize(net, [x])
    nodes = [n for n in quantized.graph.graph.nodes if n.op == "call_function"]
    input_scale = next(n.args[1] for n in nodes if "quantize_per_tensor" in str(n.target))
    scales = getattr(quantized.graph, next(str(n.args[1].target) for n in nodes if "per_channel" in str(n.target)))
    assert float((net.bias.detach() / (scales * input_scale)).abs().max()) < 2**31
    assert sqnr(net(x), quantized(x)) > 35


def test_activations_that_are_always_zero(quantize: Any) -> None:
    quantized = quantize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), [torch.zeros(2, 4)])
    assert bool(quantized(torch.ones(3, 4)).isfinite().all())


class SqueezeExcite(nn.Module):
    """A depthwise block with SiLU and squeeze and excitation, as in EfficientNet."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.squeeze, self.excite = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.project = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.bn(self.depthwise(x)))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y * gate)


def test_depthwise_blocks_with_squeeze_and_excitation(quantize: Any) -> None:
    net = nn.Sequential(*[SqueezeExcite() for _ in range(3)]).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # as after training: very different channels
            module.running_var.copy_(torch.logspace(-1, 1, 16))
            module.weight.data.uniform_(0.1, 2)
    calibration = [noise(4, 16, 8, 8), noise(5, 16, 8, 8)]
    x = noise(6, 16, 8, 8)
    assert sqnr(net(x), quantize(net, calibration)(x)) > 25


def test_transformer_layers(quantize: Any) -> None:
    net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = noise(4, 5, 16)
    assert sqnr(net.eval()(x), quantize(net, [noise(2, 5, 16), noise(3, 5, 16)])(x)) > 30
