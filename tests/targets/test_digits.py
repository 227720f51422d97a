"""A trained classifier of handwritten digits keeps its accuracy within one point in int8."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(6):
        for batch in range(0, 1200, 100):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch : batch + 100]), y[batch : batch + 100]).backward()
            optimizer.step()
    return net.eval(), x[:200], x[1200:], y[1200:]


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.InductorDeployment()], ids=["ort", "inductor"])
def test_int8_loses_less_than_a_point(digits: tuple, target: pb.DeploymentSettings) -> None:
    net, calibration, x, y = digits
    compiled = pb.compile_model(
        net,
        tracing_inputs=[x[:2], x[:3]],
        calibration_inputs=calibration.split(50),
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(),
    )
    full = float((net(x).argmax(1) == y).float().mean())
    assert full > 0.95
    assert float((compiled(x).argmax(1) == y).float().mean()) > full - 0.01
