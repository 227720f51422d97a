"""What tracing assumes about sizes, reported while it does."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from prepbench._torch_compat import sizes
from prepbench.errors import TorchVersionError

DYNAMIC = ({0: torch.export.Dim.AUTO},)


class Asks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 else x - 1


class Fixes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4)


def test_a_size_that_becomes_a_number_is_reported_by_name() -> None:
    seen = []
    with sizes.watched_specialisation(lambda name, value: seen.append((name, value))):
        torch.export.export(Fixes(), (torch.ones(4),), dynamic_shapes=DYNAMIC)
    assert ("x.shape[0]", 4) in seen


def test_an_assumption_is_reported_with_the_names_of_its_sizes() -> None:
    guards: list[Any] = []
    questions: list[Any] = []
    with sizes.watched_sizes(lambda *given: guards.append(given), lambda *given: questions.append(given)):
        torch.export.export(Asks(), (torch.ones(8),), dynamic_shapes=DYNAMIC)
    assert any("x.shape[0]" in names.values() for _, names in guards)
    assert any("x.shape[0]" in names.values() for _, names in questions)


def test_what_a_watcher_raises_stops_the_export() -> None:
    def refuse(*given: Any) -> None:
        raise ValueError("asked")

    original = ShapeEnv.evaluate_expr
    with pytest.raises(Exception, match="asked"), sizes.watched_sizes(lambda *given: None, refuse):
        torch.export.export(Asks(), (torch.ones(8),), dynamic_shapes=DYNAMIC)
    assert ShapeEnv.evaluate_expr is original


def test_sizes_0_and_1_are_like_others() -> None:
    assert not _config.backed_size_oblivious
    with sizes.exact_zero_one():
        assert _config.backed_size_oblivious


def test_unknown_sizes_of_an_abandoned_computation_are_forgotten() -> None:
    mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    mode.shape_env.create_unbacked_symint()
    assert mode.shape_env.pending_fresh_unbacked_symbols
    sizes.forget_pending_sizes([mode.from_tensor(torch.ones(1))])
    assert not mode.shape_env.pending_fresh_unbacked_symbols
    sizes.forget_pending_sizes([torch.ones(1)])


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ShapeEnv, "_set_replacement")
    with pytest.raises(TorchVersionError, match=r"assumes about sizes.*_set_replacement"):
        importlib.reload(sizes)
