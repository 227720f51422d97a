"""All that a call does is in its outcome: its result, the caller's tensors, the model's buffers."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import nn

from prepbench.inputs import Sample
from prepbench.objects.compare import difference
from prepbench.running.unchanged import outcome, run, without_output


class Writes(nn.Module):
    def __init__(self, result: float = 0, given: float = 0, buffer: float = 0) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(2))
        self.adds = result, given, buffer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result, given, buffer = self.adds
        y = x + result
        x.add_(given)
        self.steps.add_(buffer)
        return y


@pytest.mark.parametrize(
    "changed, path",
    [
        (Writes(), ""),
        (Writes(result=1), "output"),
        (Writes(given=2), "after the call, the caller's tensor [0]"),
        (Writes(buffer=3), "after the call, buffer ['steps']"),
    ],
)
def test_every_effect_of_a_call_is_compared(changed: Writes, path: str) -> None:
    sample = Sample((torch.ones(3),))
    found = difference(outcome(Writes(), sample, Writes()), outcome(changed, sample, changed))
    assert (found.path.removesuffix(" at (0,)"), found.equal) == (path, not path)
    assert sample.args[0].tolist() == [1, 1, 1]
    assert changed.steps.tolist() == [0, 0]


def test_a_result_that_is_a_buffer_keeps_its_value() -> None:
    class Steps(Writes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.steps.add_(1)

    model = Steps()
    assert run(model, Sample((torch.ones(2),)), model).tolist() == [1, 1]
    assert model.steps.tolist() == [0, 0]


def test_output_of_the_model_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with without_output():
        sys.stdout.write("out")
        sys.stderr.write("err")
        warnings.warn("noise", stacklevel=1)
    assert capfd.readouterr() == ("", "")
