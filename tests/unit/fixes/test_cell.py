"""Cells with changed classes and functions run as printed, whatever shape the model has."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.fixes.cell import cell_of
from prepbench.fixes.syntax import SourceText
from tests.compile.fixes import cell_models
from tests.compile.fixes.cell_models import SHAPES

X = torch.arange(3.0)
MORE = 1000


def changed(source: SourceText, number: int) -> SourceText:
    """The text with another number in the place of one."""
    assert f" {number}" in source.text
    return source.with_text(source.text.replace(f" {number}", f" {number + MORE}", 1))


def check(model: nn.Module, source: SourceText, scope: dict[str, Any], scale: float = 1) -> None:
    before = model(X)
    code = cell_of(model, [source])
    exec(compile(code, "<cell>", "exec"), scope | {"model": model} if scope.get("__name__") != "__main__" else scope)
    assert torch.equal(model(X), before + MORE * scale)


@pytest.fixture
def own_globals() -> Any:
    """The globals of the models' file are put back."""
    names = vars(cell_models)
    before = dict(names)
    yield names
    names.clear()
    names.update(before)


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_cell_changes_what_the_model_runs(name: str, own_globals: dict[str, Any]) -> None:
    make, number = SHAPES[name]
    source = SourceText.of(str(Path(cell_models.__file__)))
    check(make(), changed(source, number), {"__name__": "elsewhere"})


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_notebook_has_its_names_already(name: str) -> None:
    text = Path(cell_models.__file__).read_text()
    file = f"<ipython-input-{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), scope)
    make, number = SHAPES[name]
    model = scope["model"] = scope[make.__name__]()
    check(model, changed(SourceText.of(file), number), scope)


def test_each_class_that_a_function_makes_keeps_its_variables(own_globals: dict[str, Any]) -> None:
    model = nn.ModuleList([cell_models.local_class(2.0), cell_models.local_class(5.0)])
    source = changed(SourceText.of(str(Path(cell_models.__file__))), 103)
    exec(compile(cell_of(model, [source]), "<cell>", "exec"), {"model": model})
    assert torch.equal(model[0](X), 2 * X + 103 + MORE)
    assert torch.equal(model[1](X), 5 * X + 103 + MORE)


def test_a_default_that_is_changed_by_calls_stays_the_same(own_globals: dict[str, Any]) -> None:
    seen = cell_models.kept.__defaults__
    model = cell_models.WithKeptDefault()
    check(model, changed(SourceText.of(str(Path(cell_models.__file__))), 126), {"__name__": "elsewhere"})
    assert model.f.__defaults__ is seen


def test_two_files_with_one_name_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "import torch\nfrom torch import nn\n\nSHIFT = {n}\n\n\ndef moved(x):\n    return x + SHIFT + 0\n\n\n"
    text += "class Part(nn.Module):\n    def forward(self, x):\n        return moved(x) + 1\n"
    for number in (1, 2):
        (tmp_path / f"cell_part_{number}.py").write_text(text.format(n=number))
    import cell_part_1  # type: ignore[import-not-found]
    import cell_part_2  # type: ignore[import-not-found]

    model = nn.Sequential(cell_part_1.Part(), cell_part_2.Part())
    sources = [SourceText.of(module.__file__) for module in (cell_part_1, cell_part_2)]
    sources = [s.with_text(s.text.replace("SHIFT + 0", "SHIFT + 10").replace(" + 1\n", " + 100\n")) for s in sources]
    exec(compile(cell_of(model, sources), "<cell>", "exec"), {"model": model})
    assert torch.equal(model(X), X + 1 + 10 + 100 + 2 + 10 + 100)
