"""Where quantizers stand in the graph: one at the end of each fused group, none where a rule forbids it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from prepbench.objects.compare import sqnr
from prepbench.quantize import Placement
from prepbench.settings import LayerQuantizationSettings, QuantizationSettings

SKIP = LayerQuantizationSettings(skip_quantization=True)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.right(self.left(x)) + x)


class InPlace(Residual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.left(x)
        y += x
        return y.relu_()


class AddsIntegers(Residual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(3).view(1, 3, 1, 1) * (x > 0).sum(1, keepdim=True)
        return self.left(x) + positions


class ScaledBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 4, 1), nn.GroupNorm(1, 4), nn.GroupNorm(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return self.two(x + 0.1 * self.one(x))


def image(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(batch))


def test_conv_batch_norm_and_relu_end_in_one_quantizer(quantize: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    quantized = quantize(net, [image(8)])
    assert quantized.operators() == ["q", "dq", "conv2d", "relu", "q", "dq"]
    assert sqnr(net(image(3)), quantized(image(3))) > 30


def test_a_chain_of_groups_quantizes_each_activation_once(quantize: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.Hardtanh(), nn.Conv2d(4, 2, 1))
    operators = quantize(net, [image()]).operators()
    assert operators.count("q") == 4
    assert operators == [
        "q",
        "dq",
        "conv2d",
        "hardtanh",
        "q",
        "dq",
        "conv2d",
        "hardtanh",
        "q",
        "dq",
        "conv2d",
        "q",
        "dq",
    ]


def test_a_residual_addition_is_quantized_with_its_relu(quantize: Any) -> None:
    quantized = quantize(Residual(), [image()])
    operators = quantized.operators()
    end = operators.index("add")
    assert operators[end:] == ["add", "relu", "q", "dq"]
    assert operators.count("q") == 4  # input, each convolution, the end of the block


def test_a_residual_addition_in_place_is_quantized_too(quantize: Any) -> None:
    net = InPlace()
    quantized = quantize(net, [image(8)])
    assert sqnr(net(image(3)), quantized(image(3))) > 25


def test_an_addition_to_what_others_read_stays_in_float(quantize: Any) -> None:
    """No convolution's kernel can compute it, and normalisation reads the sum."""
    operators = quantize(ScaledBranch(), [image()]).operators()
    assert operators == ["q", "dq", "conv2d", "q", "dq", "group_norm", "mul", "add", "group_norm"]


def test_an_addition_of_integers_stays_as_it_is(quantize: Any) -> None:
    net = AddsIntegers()
    quantized = quantize(net, [image(8)])
    assert quantized.operators()[-1] == "add"
    assert sqnr(net(image(3)), quantized(image(3))) > 25


def test_the_target_decides_about_outputs_and_additions(quantize: Any) -> None:
    operators = quantize(Residual(), [image()], placement=Placement()).operators()
    assert operators == ["q", "dq", "conv2d", "q", "dq", "conv2d", "add", "relu"]


def test_linear_layers_give_float(quantize: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    assert quantize(net, [torch.randn(3, 4)]).operators() == ["q", "dq", "linear", "gelu", "q", "dq", "linear"]


def test_weights_only_leaves_activations_in_float(quantize: Any) -> None:
    settings = QuantizationSettings(prefer_weights_only_quantization=True)
    quantized = quantize(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), [image()], settings)
    assert quantized.operators() == ["conv2d", "relu"]
    row = quantized.layers["0"]
    assert (row.weights_bits, row.activations_bits, row.summary) == (8, 32, "int8 weights")


def test_a_layer_skipped_by_name_or_glob_stays_float_in_report_and_graph(quantize: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for key in ("1", "[1]"):
        quantized = quantize(net, [torch.randn(3, 4)], rules={key: SKIP})
        assert quantized.operators() == ["q", "dq", "linear", "linear"]
        assert quantized.layers["0"].summary == "int8"
        assert quantized.layers["1"].summary == f"float: skipped by rule {key!r}"


def test_settings_of_one_layer_change_only_its_weight(quantize: Any) -> None:
    rules = {"1": LayerQuantizationSettings(per_channel=False)}
    quantized = quantize(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [torch.randn(3, 4)], rules=rules)
    kinds = [str(n.target).split(".")[1] for n in quantized.graph.graph.nodes if "dequantize" in str(n.target)]
    assert sorted(kinds) == ["dequantize_per_channel", *["dequantize_per_tensor"] * 3]


def test_the_converted_graph_holds_no_float_weights_and_no_gradients(quantize: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 2))
    graph = quantize(net, [image()]).graph
    floats = [tuple(t.shape) for t in graph.state_dict().values() if t.is_floating_point()]
    assert all(len(shape) == 1 for shape in floats)
    assert not any(p.requires_grad for p in graph.parameters())


def test_the_batch_stays_dynamic(quantize: Any) -> None:
    quantized = quantize(Residual(), [image(2)])
    for batch in (1, 7):
        assert quantized(image(batch)).shape[0] == batch
