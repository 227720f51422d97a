"""Models, samples and helpers that several tests of compiling share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import prepbench as pb


class SmallNet(nn.Module):
    """Convolution, batch norm, residual addition, depthwise convolution, linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.ReLU6(), nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        y = torch.relu(self.body(y) + y)
        return self.head(y.amax((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    """A fixture of the folders whose ``conftest.py`` imports it."""
    torch.manual_seed(0)
    return SmallNet().eval()


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 1, 8, 8, generator=torch.Generator().manual_seed(batch))


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """The model is the same before and after, bit for bit."""
    values = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: id(value) for name, value in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    forwards = {name: "forward" in vars(module) for name, module in model.named_modules()}
    yield
    assert values.keys() == model.state_dict().keys()
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    assert identities == {name: id(value) for name, value in model.named_parameters()}
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert hooks == {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert forwards == {name: "forward" in vars(module) for name, module in model.named_modules()}


def int8(model: nn.Module, target: pb.DeploymentSettings | None = None, **keywords: object) -> pb.CompiledModel:
    """Quantized with the default settings."""
    return pb.compile_model(
        model,
        **{
            "tracing_inputs": [images(1), images(2)],
            "calibration_inputs": [images(8), images(16)],
            "deployment_settings": target or pb.OnnxRuntimeDeployment(),
            "quantization_settings": pb.QuantizationSettings(),
            **keywords,
        },
    )
