"""Dicts and sets that a model asks with a size: caches are computed in the graph, tables become conditions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, ConditionError

SHARED: dict[Any, Any] = {}


def made(size: int) -> torch.Tensor:
    return torch.arange(size).float().unsqueeze(1) + 1


def shared(size: int) -> torch.Tensor:
    if size not in SHARED:
        SHARED[size] = made(size)
    out: torch.Tensor = SHARED[size]
    return out


class Keeps(nn.Module):
    """Keeps something for each length, in one of the ways in which models are written."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.linear = way, nn.Linear(4, 4)
        self.kept: dict[Any, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x) * self.of_length(x)
        return out

    def of_length(self, x: torch.Tensor) -> Any:
        n = x.shape[1]
        if self.way == "in":
            if n not in self.kept:
                self.kept[n] = made(n)
            return self.kept[n]
        if self.way == "get":
            if (found := self.kept.get(n)) is None:
                found = self.kept[n] = made(n)
            return found
        if self.way == "setdefault":
            return self.kept.setdefault(n, made(n))
        if self.way == "try":
            try:
                return self.kept[n]
            except KeyError:
                self.kept[n] = made(n)
            return self.kept[n]
        if self.way == "with others":
            key = (n, x.device, x.dtype)
            if key not in self.kept:
                self.kept[key] = made(n)
            return self.kept[key]
        if self.way == "two sizes":
            key = (x.shape[0], n)
            if key not in self.kept:
                self.kept[key] = made(n).reshape(1, n, 1)
            return self.kept[key]
        if self.way == "with the others of a sum":
            if 2 * n not in self.kept:
                self.kept[2 * n] = made(2 * n)
            return self.kept[2 * n][:n]
        return shared(n)


WAYS = ["in", "get", "setdefault", "try", "with others", "with the others of a sum", "shared"]


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_for_each_size_is_computed_for_all(way: str, is_warm: bool) -> None:
    SHARED.clear()
    torch.manual_seed(0)
    model = Keeps(way).eval()
    if is_warm:
        model(torch.randn(2, 3, 4))
        model(torch.randn(2, 7, 4))
    before = [*model.kept, "shared", *SHARED]
    captured = pb.capture(model, [torch.randn(2, 3, 4), torch.randn(3, 5, 4)])
    assert [*model.kept, "shared", *SHARED] == before
    for size in (2, 3, 7, 9):
        x = torch.randn(3, size, 4)
        torch.testing.assert_close(captured.program.module()(x), model(x))


def test_what_is_kept_for_two_sizes_is_computed_where_nothing_is_kept_yet() -> None:
    SHARED.clear()
    torch.manual_seed(0)
    model = Keeps("two sizes").eval()
    captured = pb.capture(model, [torch.randn(2, 3, 4), torch.randn(3, 5, 4)])
    x = torch.randn(4, 7, 4)
    torch.testing.assert_close(captured.program.module()(x), model(x))


class Looks(nn.Module):
    """Looks something up that is not computed from the size."""

    def __init__(self, table: dict[Any, float], pairs: bool = False) -> None:
        super().__init__()
        self.table, self.linear, self.pairs = table, nn.Linear(4, 4), pairs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = (x.shape[0], x.shape[1]) if self.pairs else x.shape[1]
        out: torch.Tensor = self.linear(x) * self.table.get(key, 1.0)
        return out


class OfConstants(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] in {6, 7} else x


class Written(nn.Module):
    """Writes its table where it is asked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * {6: 2.0, 7: 1.0}.get(x.shape[1], 1.0)


class OfPairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * {(2, 6): 2.0}.get((x.shape[0], x.shape[1]), 1.0)


@pytest.mark.parametrize("model", [Looks({6: 2.0, 7: 1.0}), OfConstants(), Written()])
def test_an_entry_that_no_sample_has_is_refused(model: nn.Module) -> None:
    samples = [torch.randn(2, 3, 4), torch.randn(3, 5, 4)]
    compiled = pb.compile_model(model.eval(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    for size in (2, 8):
        x = torch.randn(2, size, 4)
        torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(ConditionError, match=r"x\.shape\[1\]\) must not be 6"):
        compiled(torch.randn(2, 6, 4))


@pytest.mark.parametrize(
    "model",
    [
        Looks({3: 2.0}),
        Looks({(2, 6): 2.0}, pairs=True),
        OfPairs(),
        Looks(dict.fromkeys(range(20, 100), 2.0)),
    ],
)
def test_a_table_of_a_sample_of_pairs_or_of_many_is_refused_with_its_line(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"\.get\([\s\S]*asked with a size"):
        pb.capture(model.eval(), [torch.randn(2, 3, 4), torch.randn(3, 5, 4)])
