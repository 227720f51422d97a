"""What a model does in PyTorch and no graph does is said in the report."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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


def remarks(
    model: Any, about: str = "a second call gives another result", samples: Sequence[torch.Tensor] = SAMPLES
) -> list[str]:
    compiled = pb.compile_model(model.eval(), tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    return [text for text in (*compiled.report.remarks, *compiled.report.conditions) if about in text]


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


class CountsInGlobal(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        COUNTS["calls"] += 1
        return self.line(x) * COUNTS["calls"]


class CountsInClass(Changing):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return self.line(x) * self.calls


class Mean:
    def __init__(self) -> None:
        self.value = torch.zeros(4)

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        self.value = self.value / 2 + x.mean(0)
        return self.value


class CountsInHelper(Changing):
    def __init__(self) -> None:
        super().__init__()
        self.mean = Mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x - self.mean.moved(x))


class CountsInDefault(Changing):
    def forward(self, x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return self.line(x) * len(seen)


class FillsGlobal(Changing):
    """Makes once, outside of itself, what all calls read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x) * TABLE.setdefault(x.shape[1], 2.0)


COUNTS = {"calls": 0}
TABLE: dict[int, float] = {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (CountsInGlobal, "the global COUNTS:"),
        (CountsInClass, "the class attribute CountsInClass.calls:"),
        (CountsInHelper, "the attribute mean.value:"),
        (CountsInDefault, "a default argument of CountsInDefault.forward:"),
    ],
)
def test_state_outside_of_modules_is_said(kind: type[Changing], text: str) -> None:
    (remark,) = remarks(kind())
    (finding,) = pb.capture(kind().eval(), SAMPLES).findings
    assert f"forward changes {text}" in remark
    assert f"forward changes {text}" in finding.message
    assert (COUNTS["calls"], CountsInClass.calls) == (0, 0)


def test_a_table_outside_that_is_filled_once_is_not_said() -> None:
    assert not remarks(FillsGlobal(), "forward changes")
    assert pb.capture(FillsGlobal().eval(), SAMPLES).findings == ()
    assert not TABLE


class Warms(Changing):
    """The second call gives the same, the third does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.line(x) if self.count < 3 else x


class Draws(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x) * random.random()


class Catches(Changing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(x.T @ x + torch.eye(4))
        except RuntimeError:
            return x.T @ x


@pytest.mark.parametrize("kind", [Warms, Draws, Catches])
def test_what_a_capture_finds_stands_in_the_report(kind: type[Changing]) -> None:
    (finding,) = pb.capture(kind().eval(), SAMPLES).findings
    (text,) = remarks(kind(), finding.message.rstrip("."))
    assert "test_remarks_of_eager.py:" in text


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
    (text,) = remarks(kind(), "contiguous in memory")
    assert "test_remarks_of_eager.py:" in text


class SumsAndAsks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) if x.stride(0) else x


@pytest.mark.parametrize("kind", [MakesContiguous, SumsAndAsks])
def test_a_layout_that_changes_no_result_is_not_said(kind: type[nn.Module]) -> None:
    assert not remarks(kind(), "contiguous in memory", [torch.randn(3, 4099), torch.randn(4, 4099)])


def test_sums_of_strided_tensors_round_in_another_way() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4099)
    assert not torch.equal(x.sum(-1), torch.stack([x, x], -1)[..., 0].sum(-1)), "or the test above cannot fail"


class Strided(nn.Module):
    """Has a number called stride, as convolutions do."""

    def __init__(self) -> None:
        super().__init__()
        self.stride, self.step = 2, 2
        self.weight = nn.Parameter(torch.randn(2, 1, 3))


class NamedStride(Strided):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(RUNS)
        return F.conv1d(x[:, None], self.weight, stride=self.stride)


class NamedStep(Strided):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(RUNS)
        return F.conv1d(x[:, None], self.weight, stride=self.step)


RUNS = itertools.count()
"""What a list would hold is put back after each run."""


def test_a_number_called_stride_costs_no_runs() -> None:
    runs = []
    for kind in (NamedStep, NamedStride):
        before = next(RUNS)
        remarks(kind())
        runs.append(next(RUNS) - before)
    assert runs[0] == runs[1] > 1
