"""What a model does in PyTorch and no graph does is said in the report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)
        self.count, self._count, self.seen, self.last = 0, 0, [1.0], torch.zeros(())


class Counts(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.line(x) * self.count


class CountsInPrivate(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._count += 1
        return self.line(x) * self._count


class Collects(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(2.0)
        return self.line(x) * sum(self.seen)


class Fails(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.count:
            raise ValueError("only once")
        self.count += 1
        return self.line(x)


class Remembers(Changing):
    """Nothing reads what it changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.last = x
        return self.line(x)


class Fills(Changing):
    """Makes once what all calls read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.seen) == 1:
            self.seen.append(3.0)
        return self.line(x) * self.seen[-1]


SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


def remarks(model: Any, about: str = "a second call gives another result") -> list[str]:
    compiled = pb.compile_model(model.eval(), tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())
    return [text for text in compiled.report.remarks if about in text]


@pytest.mark.parametrize(
    ("kind", "name"), [(Counts, "count"), (CountsInPrivate, "_count"), (Collects, "seen"), (Fails, "count")]
)
def test_what_the_next_call_reads_is_said(kind: type[Changing], name: str) -> None:
    model = kind()
    (text,) = remarks(model)
    assert f"changes the attribute {name}:" in text
    assert "test_remarks_of_eager.py:" in text
    assert (model.count, model._count, model.seen) == (0, 0, [1.0]), "the model is as it was"


@pytest.mark.parametrize("kind", [Remembers, Fills])
def test_what_changes_no_result_is_not(kind: type[Changing]) -> None:
    assert not remarks(kind())


class AsksForLayout(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_contiguous() else x + 1


class AsksForStrides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(1) != 1:
            raise ValueError("rows must lie behind one another")
        return x * 2


class MakesContiguous(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if x.is_contiguous() else x.contiguous()).view(-1) * 2


@pytest.mark.parametrize("kind", [AsksForLayout, AsksForStrides])
def test_a_result_that_hangs_on_the_layout_is_said(kind: type[nn.Module]) -> None:
    (text,) = remarks(kind(), "lies in memory")
    assert "test_remarks_of_eager.py:" in text


def test_a_layout_that_changes_no_result_is_not_said() -> None:
    assert not remarks(MakesContiguous(), "lies in memory")
