"""Classifiers trained here on handwritten digits keep their accuracy in few bits: a convolutional one, a transformer.

Accuracy is counted on samples that neither training nor calibration saw. With 500 of them, half a point is 2.5 samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from tests.turns import one_pair_each

TRAINED = 1200


@dataclass(frozen=True)
class Digits:
    """A trained model and data in the form that it takes."""

    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor

    def accuracy(self, model: nn.Module) -> float:
        """Percent of the samples after the first :data:`TRAINED`."""
        with torch.no_grad():
            return 100 * float((model(self.x[TRAINED:]).argmax(1) == self.y[TRAINED:]).float().mean())


class Rows(nn.Module):
    """A transformer that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.place = nn.Parameter(torch.randn(8, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(x.squeeze(1)) + self.place).mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


MODELS = {"convolutional": convolutional, "transformer": Rows}


@pytest.fixture(scope="module")
def digits(request: pytest.FixtureRequest) -> Digits:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    torch.manual_seed(0)
    net = request.param()
    epochs, rate = (6, 0.01) if request.param is convolutional else (25, 0.003)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(epochs):
        for batch in range(0, TRAINED, 100):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch : batch + 100]), y[batch : batch + 100]).backward()
            optimizer.step()
    return Digits(net.eval(), x, y)


def compile_(digits: Digits, target: pb.DeploymentSettings, settings: pb.QuantizationSettings) -> pb.CompiledModel:
    compiled: pb.CompiledModel = pb.compile_model(
        digits.model,
        tracing_inputs=[digits.x[:2], digits.x[:3]],
        calibration_inputs=digits.x[:200].split(50),
        deployment_settings=target,
        quantization_settings=settings,
    )
    return compiled


TARGETS = {
    "InductorDeployment": pb.InductorDeployment(),
    "OnnxRuntimeDeployment": pb.OnnxRuntimeDeployment(),
    "OpenVinoDeployment": pb.OpenVinoDeployment(),
}


@pytest.mark.parametrize(("target", "digits"), one_pair_each(TARGETS, MODELS, 2), indirect=["digits"])
def test_8_bits_lose_less_than_half_a_point(digits: Digits, target: pb.DeploymentSettings) -> None:
    full = digits.accuracy(digits.model)
    assert full > 93
    compiled = compile_(digits, target, pb.QuantizationSettings())
    assert all(row.quantized or "one input channel" in row.reason for row in compiled.report.layers)
    assert digits.accuracy(compiled) >= full - 0.5


FEW_BITS = {
    "4 bits": pb.QuantizationSettings(weights_num_bits=4),
    "4 bits, weights only": pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True),
    "8 or 4 bits": pb.QuantizationSettings(weights_num_bits=[8, 4]),
}


@pytest.mark.parametrize(("settings", "digits"), one_pair_each(FEW_BITS, MODELS, 2), indirect=["digits"])
def test_4_bit_weights_lose_less_than_two_points(digits: Digits, settings: pb.QuantizationSettings) -> None:
    compiled = compile_(digits, pb.OnnxRuntimeDeployment(), settings)
    assert sum(row.weights_bits == 4 for row in compiled.report.layers) > len(compiled.report.layers) / 4
    assert digits.accuracy(compiled) >= digits.accuracy(digits.model) - 2
