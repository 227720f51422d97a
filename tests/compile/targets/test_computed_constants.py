"""Operators that targets lack, but that parameters alone reach, are computed while the model is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.constants import with_computed
from prepbench.errors import TargetError

SAMPLES = [torch.randn(2, 3, 8), torch.randn(3, 4, 8)]
TARGETS = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.ExecuTorchDeployment()]


class Flow(nn.Module):
    """One step of a flow: an orthogonal layer, an invertible one and its determinant, which is one of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
        self.mix = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        spread = torch.linalg.cholesky(self.mix @ self.mix.T + torch.eye(8))
        determinant = torch.linalg.slogdet(self.mix)[1]
        y = self.turn(x) @ torch.linalg.inv(self.mix)
        return y * torch.linalg.eigvalsh(spread @ spread.T), determinant * x.shape[1], determinant


@pytest.mark.parametrize("deployment", TARGETS, ids=lambda each: type(each).__name__)
def test_what_follows_from_parameters_is_stored(deployment: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Flow().eval()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=deployment)
    assert not compiled.report.fallbacks
    compiled.save(tmp_path / "flow")
    x = torch.randn(1, 6, 8)
    for run in (compiled, pb.load_compiled(tmp_path / "flow")):
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


def test_an_orthogonal_weight_is_quantized() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), nn.ReLU()).eval()
    compiled = pb.compile_model(
        model,
        calibration_inputs=SAMPLES,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    layer = next(row for row in compiled.report.layers if row.fqn == "0")
    assert layer.quantized
    assert (compiled(SAMPLES[0]) - model(SAMPLES[0])).abs().max() < 0.1


class Moves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mix", torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mix.mul_(1.1)
        return x @ torch.linalg.matrix_exp(self.mix)


class OfInputs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(x.transpose(1, 2) @ x + torch.eye(8))


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.linalg.matrix_exp(self.mix + torch.rand_like(self.mix))


@pytest.mark.parametrize("kind", [Moves, OfInputs, Draws])
def test_what_changes_from_call_to_call_is_not(kind: type[nn.Module]) -> None:
    program = pb.capture(kind().eval(), SAMPLES).program
    lacking = [node for node in program.graph.nodes if "matrix_exp" in str(node.target)]
    assert lacking
    assert with_computed(program, lacking) is None
    if kind is OfInputs:
        with pytest.raises(TargetError, match="matrix_exp"):
            pb.compile_model(kind().eval(), tracing_inputs=SAMPLES, deployment_settings=pb.OnnxRuntimeDeployment())
