"""What is made of a model shares its weights and buffers, as the docstrings say; compiled models have their own."""

from __future__ import annotations

import torch
from torch import nn

import prepbench as pb

SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.layer(x) + self.calls


def test_captured_and_prepared_models_count_in_the_users_buffer() -> None:
    model = Counts().eval()
    captured, prepared = pb.capture(model, SAMPLES).program.module(), pb.prepare_model(model, inputs=SAMPLES)
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())
    assert float(model.calls) == 0
    for count, made in enumerate((captured, prepared), start=1):
        made(SAMPLES[0])
        assert float(model.calls) == count
        assert model.layer.weight.data_ptr() in {parameter.data_ptr() for parameter in made.parameters()}
    compiled(SAMPLES[0])
    assert float(model.calls) == 2
