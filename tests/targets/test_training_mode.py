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


def test_dropout_in_training_drops() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)).train()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, skip_eval_set_mode=True)
    share = float((compiled(torch.randn(64, 4)) == 0).float().mean())
    assert 0.3 < share < 0.7
