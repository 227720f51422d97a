"""Channels that are moved into weights without being asked: a simulation does it as a compile does."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation
from tests.compile.compile.test_simulation import AS_THEY_ARE, INT8, WEIGHTS, rules_of

# kernels of other targets leave a bit of the weights unused on some CPUs
EAGER = pb.EagerDeployment()


class Gated(nn.Module):
    """A product of two layers with a channel that stands out, and a layer that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(32, 32, bias=False) for _ in range(3))
        with torch.no_grad():
            self.up.weight[5] *= 100
            self.down.weight[:, 5] /= 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        return result


@pytest.mark.parametrize("in_float", [(), ("up",), ("down",)])
def test_channels_that_are_moved_unasked_are_those_of_a_compile(in_float: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    gated, rows = Gated().eval(), [torch.randn(64, 32), torch.randn(32, 32)]
    simulation = Simulation.of(gated, rows, deployment_settings=EAGER)
    simulation.learn({"int8": INT8, "weights": WEIGHTS})
    mixture = {fqn: None if fqn in in_float else INT8 for fqn in simulation.layers}
    compiled = pb.compile_model(
        gated,
        calibration_inputs=rows,
        deployment_settings=EAGER,
        quantization_settings=INT8,
        layer_quantization_settings=rules_of(mixture),
        compile_options=AS_THEY_ARE,
    )
    assert simulation.score(mixture).sqnr == pytest.approx(compiled.report.simulated_sqnr, abs=1e-3)
    options = dataclasses.replace(AS_THEY_ARE, smooth_quant=False)
    plain = Simulation.of(gated, rows, deployment_settings=EAGER, compile_options=options)
    gain = simulation.score(mixture).sqnr - plain.score(mixture).sqnr
    assert gain > 3 if "down" not in in_float else abs(gain) < 3
    weights = dict.fromkeys(simulation.layers, WEIGHTS)
    assert simulation.score(weights).sqnr == pytest.approx(plain.score(weights).sqnr)
