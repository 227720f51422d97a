"""Graphs whose results OpenVINO would compute wrongly if they were written as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from prepbench.targets import openvino
from tests.system.targets.test_openvino import kernels

pytest.importorskip("openvino")


class Shared(nn.Module):
    """Returns a convolution, and what a second one computes from it."""

    def __init__(self, between: Any, *, bias: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1, bias=bias, groups=groups)
        self.last = nn.LazyConv2d(4, 1)
        self.between = between
        self(torch.zeros(1, 4, 8, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.first(x)
        return self.last(self.between(first, x)), first


BETWEEN = {
    "nothing": lambda first, x: first,
    "concat": lambda first, x: torch.cat([first, x, first * 0.1], 1),
    "pooling": lambda first, x: nn.functional.max_pool2d(first, 2),
    "activation": lambda first, x: torch.relu(first),
}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", BETWEEN)
def test_a_convolution_without_a_bias_has_several_readers(name: str, groups: int) -> None:
    torch.manual_seed(0)
    net = Shared(BETWEEN[name], groups=groups).eval()
    samples = [torch.randn(2, 4, 12, 12), torch.randn(5, 4, 12, 12)]
    model = pb.compile_model(
        net,
        calibration_inputs=samples,
        deployment_settings=pb.OpenVinoDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    assert all(row.quantized for row in model.report.layers)
    assert sum(count for kind, count in kernels(model).items() if kind[0] == "Convolution" and "8" in kind[1]) == 2
    with torch.no_grad():
        for got, expected in zip(model(samples[1]), net(samples[1]), strict=True):
            assert sqnr(expected, got) > 30


@pytest.mark.parametrize("per_channel", [True, False])
def test_linear_layers_of_a_vector_return_vectors(per_channel: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)).eval()
    samples = [torch.randn(8) for _ in range(6)]
    model = pb.compile_model(
        net,
        calibration_inputs=samples,
        deployment_settings=pb.OpenVinoDeployment(),
        quantization_settings=pb.QuantizationSettings(per_channel=per_channel),
    )
    counts = kernels(model)
    assert counts["FullyConnected", "i8"] + counts["FullyConnected", "u8"] == 2
    with torch.no_grad():
        got, expected = (torch.stack([run(x) for x in samples]) for run in (model, net))
    assert got.shape == (6, 3)
    assert sqnr(expected, got) > 25


def test_what_openvino_says_ends_as_a_sentence() -> None:
    for said in ("The memory desc is undefined", "word " * 400):
        told = str(openvino._refused(RuntimeError(said)))
        assert re.search(r"(undefined|word \.\.)\. Rewrite the operator", told)
