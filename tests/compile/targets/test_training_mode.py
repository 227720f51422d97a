"""A model that is compiled in training mode behaves as in training, or the target says that it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError
from prepbench.targets.programs import is_repeatable, written_buffers

SAMPLES = [torch.randn(3, 4), torch.randn(5, 4)]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.TensorRtDeployment()])
def test_batch_norm_in_training_is_refused_where_no_state_is_kept(target: pb.DeploymentSettings) -> None:
    with pytest.raises(TargetError, match=r"1 is a batch norm in training mode: .* \(leave out skip_eval_set_mode\)"):
        pb.compile_model(normalised(), tracing_inputs=SAMPLES, deployment_settings=target, skip_eval_set_mode=True)


def test_batch_norm_in_training_is_state() -> None:
    program = pb.capture(normalised(), SAMPLES).program
    assert not is_repeatable(program)
    assert len(written_buffers(program)) == 3
    assert is_repeatable(pb.capture(normalised().eval(), SAMPLES).program)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)


DROPPING = {
    "at the end": nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)),
    "before a layer": nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 64)),
    "in attention": nn.Sequential(nn.Linear(4, 64), Attention()),
    "channels": nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Dropout1d(0.5), nn.Flatten(), nn.Linear(4, 64)),
}
TARGETS = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_in_training_draws_anew_in_each_call(name: str, target: pb.DeploymentSettings) -> None:
    model = DROPPING[name].train()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target, skip_eval_set_mode=True)
    x = torch.randn(64, 4)
    assert not torch.allclose(compiled(x), compiled(x))
    runs = torch.stack([compiled(x) for _ in range(300)])
    with torch.no_grad():
        expected = torch.stack([model(x) for _ in range(300)])
    error = (runs.mean(0) - expected.mean(0)).norm() / (expected.std(0).norm() * (2 / 300) ** 0.5)
    assert error < 2
    torch.testing.assert_close(runs.std(0).mean(), expected.std(0).mean(), rtol=0.05, atol=0)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_dropout_in_training_drops(target: pb.DeploymentSettings) -> None:
    for share in (0.25, 1.0):
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(share), nn.ReLU6()).train()
        compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target, skip_eval_set_mode=True)
        found = compiled(torch.full((64, 4), 3.0)) != 0
        kept = (model[0](torch.full((64, 4), 3.0)) > 0).float().mean()
        torch.testing.assert_close(found.float().mean(), kept * (1 - share), atol=0.05, rtol=0)
