"""What a model counts while it runs is not counted by calibration and measuring."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from tests.fingerprint import left_as_it_was

SAMPLES = [torch.randn(4, 4), torch.randn(3, 4)]


class Counts(nn.Module):
    """A counter, and a batch norm that may be in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        return self.layer(self.norm(x)), self.calls.clone()


@pytest.mark.parametrize("training", [False, True])
def test_calibration_leaves_buffers_that_a_forward_writes_to(training: bool) -> None:
    torch.manual_seed(0)
    model = Counts().train(training)
    model(SAMPLES[0])
    with left_as_it_was(model):
        compiled = pb.compile_model(
            model,
            tracing_inputs=SAMPLES,
            calibration_inputs=SAMPLES * 2,
            quantization_settings=pb.QuantizationSettings(),
            deployment_settings=pb.EagerDeployment(),
            skip_eval_set_mode=training,
        )
    assert [int(compiled(SAMPLES[0])[1]) for _ in range(2)] == [2, 3]
    assert int(model.calls) == 1
