"""Maxima and minima over dims, of which integers are made: OpenVINO would compute them wrongly in its own kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr

pytest.importorskip("openvino")

POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "maximum": lambda x: x.amax(-1),
    "first maximum": lambda x: x.max(-1).values,
    "minimum, kept": lambda x: x.amin(-1, keepdim=True).squeeze(-1),
    "activation": lambda x: x.amax(-1).relu(),
    "doubled": lambda x: 2 * x.amin(-1),
    "shifted": lambda x: x.amax(-1, keepdim=True).add(0.3).squeeze(-1),
}


class Pooled(nn.Module):
    """A pool of each kind, and a layer behind each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.heads = nn.ModuleDict({name.replace(" ", "_"): nn.Linear(24, 5) for name in POOLS})

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.conv(x)
        # each pool has a convolution's result of its own: one that is shared is quantized once for all
        return [self.heads[name.replace(" ", "_")](pool(x * at)) for at, (name, pool) in enumerate(POOLS.items(), 1)]


@pytest.mark.parametrize("quantized", [True, False])
def test_extremes_are_computed_as_in_pytorch(quantized: bool) -> None:
    torch.manual_seed(0)
    net = Pooled().eval()
    samples = [torch.randn(batch, 8, length) for batch, length in [(2, 5), (3, 9), (1, 33)]]
    model = pb.compile_model(
        net,
        calibration_inputs=samples,
        deployment_settings=pb.OpenVinoDeployment(),
        quantization_settings=pb.QuantizationSettings() if quantized else None,
    )
    unseen = torch.randn(4, 8, 70)
    with torch.no_grad():
        for name, got, expected in zip(POOLS, model(unseen), net(unseen), strict=True):
            assert sqnr(expected, got) > 25, name
