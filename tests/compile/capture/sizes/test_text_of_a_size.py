"""Code that makes a text of a size may compare it with any text, which no guard of tracing tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.failures.describe import TABLE_REMEDY
from prepbench.errors import ConditionError

SAMPLES = [torch.randn(2, 3, 4), torch.randn(3, 5, 4)]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales, self.heads = {"7": 3.0}, nn.ModuleDict({"7": nn.Linear(4, 4)})


class InTable(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales.get(str(x.shape[1]), 1.0)


class InModules(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name = f"{x.shape[1]}"
        return self.heads[name](x) if name in self.heads else x


class OfShape(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if str(tuple(x.shape[1:])) == "(7, 4)" else x


class Said(Scaled):
    """Decides nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.said = f"7 of {x.shape}"
        return x * 2


@pytest.mark.parametrize("kind", [InTable, InModules, OfShape])
def test_the_size_that_a_text_tells_apart_is_refused(kind: Any) -> None:
    model = kind()
    compiled = pb.compile_model(
        model, tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment(), discard_input_model=False
    )
    for length in (4, 9):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(ConditionError, match=r"x\.shape\[1\]\) must not be 7"):
        compiled(torch.randn(2, 7, 4))


def test_a_text_that_decides_nothing_is_no_condition() -> None:
    captured = pb.capture(Said(), SAMPLES)
    assert captured.holds_where.conditions() == ()


class ByName(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * {"3": 1.0, "5": 2.0, "7": 3.0}[str(x.shape[1])]


class Read(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * int(str(x.shape[1]))


@pytest.mark.parametrize("kind", [ByName, Read])
def test_a_table_of_sizes_is_named_as_such(kind: Any) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(kind(), SAMPLES)
    (failure,) = caught.value.failures
    assert failure.kind == "shape specialisation"
    assert failure.remedy == TABLE_REMEDY
