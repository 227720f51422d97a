"""Fixes and drafts on the bench: all proven ones in one step, and a draft as a cell that runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import SettingsError

SOURCE = """import torch
from torch import nn


def above(x):
    return x.sum() > 0


class Gate(nn.Module):
    def forward(self, x):
        if above(x):
            return x * 2
        return -x


class Never(nn.Module):
    def forward(self, x):
        if x.sum() > 0 and x.sum() < 0:
            return x + 1
        return x


class Other(nn.Module):
    def forward(self, x):
        if x.mean() > 0.5:
            return x + 3
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Gate(), Gate()
        self.other, self.never = Other(), Never()

    def forward(self, x):
        return self.never(self.other(self.second(self.first(x))))
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "drafted_model.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("drafted_model", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["drafted_model"] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def bench(module: ModuleType) -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.rand(2, 4), -torch.rand(3, 4), torch.rand(4, 4) + 1]
    return pb.Bench(module.Net(), tracing_inputs=samples)


def test_all_proven_fixes_are_one_step(bench: pb.Bench) -> None:
    before = bench.state
    bench.apply_fixes()
    assert set(bench.state.fixes) == {"first", "other"}
    cards = {fqn: card for card in bench.summary().failures for fqn in card.fqns}
    assert set(cards) == {"first", "second", "other", "never"}
    assert [cards[fqn].fixed for fqn in ("first", "second", "other", "never")] == [True, True, True, False]
    assert bench.code().count(".model_with('first', 'other')") == 1
    assert len(bench.collection.failures) == 1
    with pytest.raises(SettingsError, match="no proven fix"):
        bench.apply_fixes()
    bench.undo()
    assert bench.state == before
    bench.apply_fix("second")
    bench.apply_fixes()
    assert bench.state.fixes == ("second", "other"), "the first one is the same change"


def test_a_draft_is_a_cell_that_runs(bench: pb.Bench) -> None:
    bench.find_fixes()
    (card,) = [card for card in bench.summary().failures if card.has_draft]
    assert card.fqn == "never"
    net: Any = bench.model
    cell = bench.draft_code("never", {"net": net})
    assert "no sample takes the side" in cell.splitlines()[0]
    assert "model = net" in cell
    bench.apply_fixes()
    assert [failure.fqn for failure in bench.collection.failures] == ["never"]
    bench.undo()
    exec(compile(cell, "<cell>", "exec"), {"net": net})
    assert type(net.never).__name__ == "FixedNever"
    assert type(net.first).__name__ == "Gate"
    x = torch.randn(2, 4)
    assert torch.equal(net.never(x), x)
    bench.set_leaf_wrap(True)
    bench.capture()
    bench.apply_fixes()
    assert not bench.collection.failures, "what was captured before the cell ran is not used again"


def test_drafts_that_cannot_be_shown_say_why(bench: pb.Bench, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no draft for 'first'\. Give one of: 'never'"):
        bench.draft_code("first")
    path = tmp_path / "drafted_model.py"
    path.write_text(SOURCE.replace("x + 1", "x + 100"))
    with pytest.raises(SettingsError, match="does not fit"):
        bench.draft_code("never")
