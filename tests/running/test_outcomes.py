"""Two calls are compared by all that they do: results, the caller's tensors, the model's buffers."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.inputs import Sample
from prepbench.running.outcomes import difference, outcome, outcomes_differ, run, without_output


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
    "changed, text",
    [
        (Writes(), ""),
        (Writes(result=1), "output differs by 1"),
        (Writes(given=2), "after the call, the caller's tensor [0] differs by 2"),
        (Writes(buffer=3), "after the call, buffer ['steps'] differs by 3"),
    ],
)
def test_every_effect_of_a_call_is_compared(changed: Writes, text: str) -> None:
    sample = Sample((torch.ones(3),))
    made = outcomes_differ(outcome(Writes(), sample, Writes()), outcome(changed, sample, changed))
    assert (made.text, made.equal) == (text, not text)
    assert sample.args[0].tolist() == [1, 1, 1]
    assert changed.steps.tolist() == [0, 0]


def test_a_result_that_is_a_buffer_keeps_its_value() -> None:
    class Steps(Writes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.steps.add_(1)

    model = Steps()
    assert run(model, Sample((torch.ones(2),)), model).tolist() == [1, 1]
    assert model.steps.tolist() == [0, 0]


NAN, BIG = float("nan"), 1e6


@pytest.mark.parametrize(
    "expected, actual, equal",
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0]), False),
        (torch.tensor([BIG, 1.0]), torch.tensor([BIG + 1, 1.0]), True),
        (torch.tensor([math.inf]), torch.tensor([math.inf]), True),
        (torch.tensor([math.inf]), torch.tensor([1.0]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1.0]), torch.tensor([1]), False),
        (torch.ones(2), torch.ones(2, 1), False),
        ([torch.ones(1), 1], [torch.ones(1)], True),
        ([torch.ones(1)], [torch.ones(1)] * 2, False),
        (torch.ones(1, dtype=torch.complex64), torch.ones(1, dtype=torch.complex64) * 1j, False),
    ],
)
def test_floats_may_differ_by_rounding_and_nothing_else_may(expected: Any, actual: Any, equal: bool) -> None:
    assert difference(expected, actual).equal == equal


def test_the_first_difference_is_named() -> None:
    found = difference({"a": torch.ones(2), "b": [torch.ones(2)]}, {"a": torch.ones(2), "b": [torch.zeros(2)]})
    assert found.text == "output['b'][0] differs by 1"
    assert found.largest == 1


def test_output_of_the_model_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with without_output():
        sys.stdout.write("out")
        sys.stderr.write("err")
        warnings.warn("noise", stacklevel=1)
    assert capfd.readouterr() == ("", "")
