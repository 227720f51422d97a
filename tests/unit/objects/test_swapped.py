"""A changed function runs wherever it is called from, and the user's own functions stay as they are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from prepbench.objects.copy import swapped_twin

MODEL = """
import torch
from torch import nn
{imports}

def outer(x): return middle(x) + 1
{middle}
def counts(x, n): return x if n == 0 else counts(x + 1, n - 1)

class Calls(nn.Module):
    def forward(self, x): return outer(x)

class Recurs(nn.Module):
    def forward(self, x): return counts(x, 3)
"""


def times_thousand(x: torch.Tensor) -> torch.Tensor:
    return x * 1000


def counts_by_hundreds(x: torch.Tensor, n: int) -> torch.Tensor:
    return x if n == 0 else counts(x + 100, n - 1)  # type: ignore[name-defined] # noqa: F821


def module(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    return made


def test_a_caller_above_its_callee_runs_the_changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(tmp_path, "one_file", MODEL.format(imports="", middle="def middle(x): return x * 2"), monkeypatch)
    twin, _ = swapped_twin(made.Calls(), {made.middle.__code__: times_thousand.__code__})
    assert twin.model(torch.ones(1)).item() == 1001
    assert made.Calls()(torch.ones(1)).item() == 3


def test_code_of_another_file_is_changed_behind_a_caller_of_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def middle(x): return inner(x)\ndef inner(x): return x * 2\n"
    other = module(tmp_path, "other_file", text, monkeypatch)
    text = MODEL.format(imports="from other_file import middle", middle="")
    made = module(tmp_path, "importing_file", text, monkeypatch)
    twin, _ = swapped_twin(made.Calls(), {other.inner.__code__: times_thousand.__code__})
    assert twin.model(torch.ones(1)).item() == 1001
    assert made.Calls()(torch.ones(1)).item() == 3


def test_calls_of_a_function_to_itself_run_the_changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(tmp_path, "recursive_file", MODEL.format(imports="", middle=""), monkeypatch)
    twin, _ = swapped_twin(made.Recurs(), {made.counts.__code__: counts_by_hundreds.__code__})
    assert twin.model(torch.ones(1)).item() == 301
    assert made.Recurs()(torch.ones(1)).item() == 4


def test_functions_in_lists_defaults_and_methods_run_the_changed_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
from torch import nn

def middle(x): return x * 2

class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [middle, lambda x, then=middle: then(x)]
        self.part = nn.Identity()
        self.part.forward = self.last
    def last(self, x): return middle(x)
    def forward(self, x):
        for step in self.steps: x = step(x)
        return self.part(x)
"""
    made = module(tmp_path, "holding_file", text, monkeypatch)
    model = made.Holds()
    twin, changed = swapped_twin(model, {made.middle.__code__: times_thousand.__code__})
    assert twin.model(torch.ones(1)).item() == 1e9
    assert model(torch.ones(1)).item() == 8
    assert changed == {made.middle.__code__: [made.middle]}


def test_a_method_of_a_class_that_closes_over_a_module_is_one_function() -> None:
    layer = torch.nn.Identity()

    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.run = layer, self.last

        def last(self, x: torch.Tensor) -> torch.Tensor:
            return layer(x) + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.run(self.last(x))

    def changed(self: Holds, x: torch.Tensor) -> torch.Tensor:
        return layer(x) * 1000

    twin, found = swapped_twin(Holds(), {Holds.last.__code__: changed.__code__})
    assert twin.model(torch.ones(1)).item() == 1e6
    assert found == {Holds.last.__code__: [Holds.last]}
