"""A target's bugs are found before its model is returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.compile.check_lowered import check_lowered
from prepbench.errors import TargetError
from prepbench.inputs import Sample

Run = Callable[[Sequence[Any]], list[Any]]


class Given:
    """A runtime that does what it is told."""

    def __init__(self, run: Run) -> None:
        self.run = run


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + y, x.argmax())


class AddsInPlace(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.add_(y),)


class Drops(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.dropout(x, 0.9, True) + y,)


def check(run: Run, model: nn.Module | None = None, indices: Sequence[int] = (3, 5)) -> None:
    samples = [Sample((torch.randn(4), torch.randn(4)), {}, index) for index in indices]
    program = torch.export.export(model or Adds(), samples[0].args)
    check_lowered(Given(run), program, "Abacus", samples)  # type: ignore[arg-type]


def test_rounding_passes() -> None:
    check(lambda leaves: [leaves[0] * 1.05 + leaves[1], leaves[0].argmin()])


def test_another_result_is_a_bug_of_the_target() -> None:
    with pytest.raises(TargetError, match=r"Abacus does not compute .* on tracing_inputs\[3\] output 0 has .* dB"):
        check(lambda leaves: [leaves[0] - leaves[1]])


def test_nan_where_the_program_has_a_number_is_a_bug_of_the_target() -> None:
    with pytest.raises(TargetError, match=r"output 0 has an SQNR of -inf dB"):
        check(lambda leaves: [leaves[0] + leaves[1] * float("nan")])


def test_another_shape_is_a_bug_of_the_target() -> None:
    with pytest.raises(TargetError, match=r"output 0 has the shape \(1, 4\), expected \(4,\)"):
        check(lambda leaves: [(leaves[0] + leaves[1])[None]])


def test_a_result_right_at_the_first_call_only_is_found() -> None:
    total = torch.zeros(4)

    def run(leaves: Sequence[Any]) -> list[Any]:
        total.add_(leaves[1])
        return [leaves[0] + total]

    with pytest.raises(TargetError, match=r"a second call with tracing_inputs\[3\] output 0"):
        check(run, indices=[3])


def test_changing_the_callers_tensor_is_a_bug() -> None:
    with pytest.raises(TargetError, match="Abacus changes input 1 of the graph"):
        check(lambda leaves: [leaves[1].add_(leaves[0])])


def test_changing_what_the_model_changes_is_right() -> None:
    check(lambda leaves: [leaves[0].add_(leaves[1])], AddsInPlace())


def test_random_results_are_not_compared() -> None:
    check(lambda leaves: [leaves[0]], Drops())
