"""What a model changes in Python and reads in its next call is said in the report: no graph does that."""

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


def remarks(model: Any) -> list[str]:
    compiled = pb.compile_model(model.eval(), tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())
    return [text for text in compiled.report.remarks if "a second call gives another result" in text]


@pytest.mark.parametrize(
    ("kind", "name"), [(Counts, "count"), (CountsInPrivate, "_count"), (Collects, "seen"), (Fails, "count")]
)
def test_what_the_next_call_reads_is_said(kind: type[Changing], name: str) -> None:
    model = kind()
    (text,) = remarks(model)
    assert f"changes the attribute {name}:" in text
    assert "test_second_calls.py:" in text
    assert (model.count, model._count, model.seen) == (0, 0, [1.0]), "the model is as it was"


@pytest.mark.parametrize("kind", [Remembers, Fills])
def test_what_changes_no_result_is_not(kind: type[Changing]) -> None:
    assert not remarks(kind())
