"""Operators that are written for speed on ONNX Runtime give what PyTorch gives, also for NaN and infinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import prepbench as pb

EDGES = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 500.0, -500.0])


class Calls(nn.Module):
    """Calls one operator, which may be a module."""

    def __init__(self, operator: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x)


def _prelu() -> nn.Module:
    layer = nn.PReLU(8)
    layer.weight.data.uniform_(-0.5, 0.5)
    return layer


OPERATORS: dict[str, tuple[Callable[[], Callable[..., torch.Tensor]], str]] = {
    "prelu": (_prelu, "PRelu"),
    "mish": (nn.Mish, "Mish"),
    "softplus": (nn.Softplus, "Softplus"),
    "log of sigmoid": (nn.LogSigmoid, "Softplus"),
    "root": (lambda: lambda x: x**0.5, "Pow"),
    "reciprocal root": (lambda: lambda x: x**-0.5, "Pow"),
    "reciprocal": (lambda: lambda x: x.pow(-1), "Pow"),
    "reciprocal square": (lambda: lambda x: x.pow(-2), "Pow"),
    "fourth power": (lambda: lambda x: x**4, "Pow"),
    "softmax of channels": (lambda: nn.Softmax(1), "Softmax"),
    "logarithm of softmax of channels": (lambda: nn.LogSoftmax(1), "LogSoftmax"),
    "softmax of rows of unknown number": (lambda: nn.Softmax(2), ""),
}


def _compiled(model: nn.Module, samples: list[Any], folder: Path, **options: Any) -> tuple[Any, Counter[str]]:
    compiled = pb.compile_model(
        model.eval(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment(), **options
    )
    compiled.export(folder / "model.onnx")
    return compiled, Counter(node.op_type for node in onnx.load(str(folder / "model.onnx")).graph.node)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_result_is_that_of_pytorch(name: str, tmp_path: Path) -> None:
    make, slow = OPERATORS[name]
    model = Calls(make())
    compiled, found = _compiled(model, [torch.randn(2, 8, 16, 20), torch.randn(3, 8, 19, 21)], tmp_path)
    assert slow not in found
    for sizes in ((2, 8, 16, 20), (1, 8, 1, 1), (0, 8, 4, 5), (4, 8, 3, 40)):
        x = torch.randn(sizes) * 10
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)
    x = torch.randn(1, 8, 11, 11)
    x[:, :, :, 3] = EDGES if "softmax" not in name else 500.0
    torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


def test_few_numbers_keep_the_one_kernel(tmp_path: Path) -> None:
    _, found = _compiled(Calls(nn.PReLU(8)), [torch.randn(1, 8, 4, 4)], tmp_path)
    assert found == {"PRelu": 1}


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(7, 1, 3, 1), (5, 2, 0, 3), (31, 1, "same", 1)])
def test_long_depthwise_convolutions_are_those_of_two_dims(
    kernel: int, stride: int, padding: Any, dilation: int, tmp_path: Path
) -> None:
    model = nn.Conv1d(16, 16, kernel, stride, padding, dilation, groups=16)
    compiled, found = _compiled(model, [torch.randn(1, 16, 400), torch.randn(2, 16, 500)], tmp_path)
    assert found["Unsqueeze"]
    x = torch.randn(3, 16, 333)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("factor", [2.0, 0.4, 1.7])
def test_bicubic_resizing(factor: float, align_corners: bool, tmp_path: Path) -> None:
    def by_factor(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=factor, mode="bicubic", align_corners=align_corners)

    def by_size(x: torch.Tensor) -> torch.Tensor:
        size = (x.shape[2] + 5, x.shape[3] // 2 + 1)
        return functional.interpolate(x, size=size, mode="bicubic", align_corners=align_corners)

    for resize in (by_factor, by_size):
        model = Calls(resize)
        compiled, found = _compiled(model, [torch.randn(2, 3, 16, 20), torch.randn(1, 3, 19, 23)], tmp_path)
        assert "Resize" not in found
        for sizes in ((2, 3, 16, 20), (1, 3, 5, 41)):
            x = torch.randn(sizes)
            torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)


class PoolsFloats(nn.Module):
    """A pool between a convolution in float and one in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.max_pool2d(self.first(x).relu(), 3, 2))


@pytest.mark.parametrize("first", [True, False])
def test_pools_stay_in_float_where_no_integers_feed_them(first: bool, tmp_path: Path) -> None:
    samples = [torch.randn(2 + number, 3, 32, 32) for number in range(4)]
    settings: dict[str, Any] = {
        "calibration_inputs": samples,
        "quantization_settings": pb.QuantizationSettings(),
        "layer_quantization_settings": {} if first else {"first": pb.LayerQuantizationSettings(skip_quantization=True)},
    }
    model = PoolsFloats()
    compiled, found = _compiled(model, samples, tmp_path, **settings)
    assert found["Max"] == (0 if first else 1)
    x = torch.randn(7, 3, 32, 32)
    expected = model(x)
    assert (compiled(x) - expected).pow(2).mean() < 1e-3 * expected.pow(2).mean()
