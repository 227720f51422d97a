"""A weight that is multiplied from the right has a scale for each of its columns."""

from __future__ import annotations

import torch
from torch import nn

import prepbench as pb


class Projection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16, 48)), nn.Parameter(torch.randn(48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_scales_count_output_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Projection(), nn.Tanh()).eval()
    with torch.no_grad():
        model[0].weight[:, 0] *= 100  # one scale for each row would lose the other columns
    samples = [torch.randn(4, 16), torch.randn(6, 16)]
    for target in (pb.EagerDeployment(), pb.OnnxRuntimeDeployment()):
        compiled = pb.compile_model(
            model,
            tracing_inputs=samples,
            calibration_inputs=samples,
            deployment_settings=target,
            quantization_settings=pb.QuantizationSettings(),
        )
        assert compiled.report.layers[0].sqnr is not None
        assert pb.metrics.sqnr(compiled(samples[0]), model(samples[0])) > 25
        low, high = compiled.report.layers[0].scale_range or (0.0, 0.0)
        assert high > 20 * low
