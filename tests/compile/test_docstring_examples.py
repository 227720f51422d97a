"""Examples in docstrings of public names run, and every public name has one."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from tests.docstrings import problems, public_homes, public_names

ROOT = Path(__file__).parents[2]
SHOWN_ELSEWHERE = {
    'compiled.export("llama-int4", style="transformers")': ("docs/generation.md", 'style="transformers"'),
    "with compiled.attached(model):": ("docs/generation.md", "with compiled.attached(model):"),
    ".generated(tokenizer.decode)": ("docs/generation.md", ".generated("),
    "bench.use_candidate(": ("notebooks/06_workbench.ipynb", "Bench("),
    "bench.measure_layers()": ("notebooks/06_workbench.ipynb", "Bench("),
    "diagram.overlay(": ("docs/tour.md", "diagram.overlay("),
}
"""Lines that need a language model, a live diagram or minutes, with the page or notebook where tests run their like."""


class Partly(nn.Module):
    """A model of which one part runs in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        if x.sum() > 1000:
            x = x + 1
        return torch.relu(x)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def _compiled() -> pb.CompiledModel:
    return pb.compile_model(
        given("model"),
        calibration_inputs=given("samples"),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )


def _pairs() -> list[Any]:
    return [(x, torch.randint(0, 2, (8,))) for x in given("images")]


MAKERS: dict[str, Callable[[], Any]] = {
    "model": _model,
    "net": lambda: given("model"),
    "partly": lambda: Partly().eval(),
    "x": lambda: torch.ones(3, 4),
    "samples": lambda: [torch.randn(2, 4), torch.randn(3, 4)],
    "images": lambda: [torch.randn(8, 4) for _ in range(2)],
    "pairs": _pairs,
    "batches": _pairs,
    "compiled": _compiled,
    "result": lambda: _run("search")[0]["result"],
    "swept": lambda: _run("SweepResult")[0]["swept"],
}
"""What examples use without saying where it comes from, made when the first of them needs it."""


@functools.cache
def given(name: str) -> Any:
    torch.manual_seed(1)
    return MAKERS[name]()


@functools.cache
def _leafy_folder() -> None:
    pb.compile_model(given("partly"), tracing_inputs=given("samples"), fullgraph=False).save("model-partly")


FILES: dict[str, Callable[[], Any]] = {
    '"results.sqlite"': lambda: _run("sweep"),
    '"model-int8"': lambda: given("compiled").save("model-int8"),
    '"model-partly"': _leafy_folder,
}
"""Files that examples read."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


class AnyValue(doctest.OutputChecker):
    """An example that shows no result may have one: its readers are told how to get it, not what it is."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def _examples() -> dict[str, tuple[list[doctest.Example], Any]]:
    found = {}
    for name, value in public_names().items():
        # a package that is called like its function leads to it, too
        value = value.fget if isinstance(value, property) else inspect.unwrap(value)
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
        if examples:
            found[name] = examples, value
    return found


EXAMPLES = _examples()


SOURCE = ROOT / "src" / "prepbench"
WITH_EXAMPLES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]
PUBLIC = public_homes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    report = _run(name)[1]
    assert report == [], "".join(report)


def _lines_to_run(name: str) -> list[doctest.Example]:
    return [one for one in EXAMPLES[name][0] if not any(line in one.source for line in SHOWN_ELSEWHERE)]


@functools.cache
def _run(name: str) -> tuple[dict[str, Any], list[str]]:
    """Run the example of a name: its variables afterwards, for others to go on with, and what failed."""
    examples, value = _lines_to_run(name), EXAMPLES[name][1]
    source = "".join(one.source for one in examples)
    for file, make in FILES.items():
        # of two that name the file, the one that writes it
        if file in source and name != "sweep":
            make()
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    used = {node.id for node in names} - made
    home = vars(inspect.getmodule(value))
    named = {"pb": pb, "torch": torch, "nn": nn} | {one: getattr(pb, one) for one in pb.__all__}
    values = named | home | {one: given(one) for one in MAKERS if one in used}
    test = doctest.DocTest(examples, values, name, None, None, None)
    report: list[str] = []
    torch.manual_seed(0)
    runner = doctest.DocTestRunner(AnyValue(), optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    return test.globs, report


def test_every_public_name_has_an_example() -> None:
    """One that runs: of the name, of one of its methods, or of a function in it."""
    run = {name for name in EXAMPLES if _lines_to_run(name)}
    run |= {name.partition(".")[0] for name in run}
    assert [name for name in pb.__all__ if name not in run] == []


@pytest.mark.parametrize("line", SHOWN_ELSEWHERE)
def test_what_is_not_run_here_is_run_on_a_page(line: str) -> None:
    page, text = SHOWN_ELSEWHERE[line]
    assert any(line in one.source for examples, _ in EXAMPLES.values() for one in examples)
    assert text.replace('"', '\\"') in (content := (ROOT / page).read_text()) or text in content


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_of_what_is_not_public_run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who read the code; torch, nn and pb are there, and what the module itself names."""
    monkeypatch.chdir(folder)
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)
    module = sys.modules[name]
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name, globs={}):
        if (path, test.name.removeprefix(f"{name}.")) in PUBLIC:
            continue
        test.globs = {"pb": pb, "torch": torch, "nn": nn} | vars(module)
        report: list[str] = []
        torch.manual_seed(0)
        doctest.DocTestRunner(AnyValue(), optionflags=doctest.ELLIPSIS).run(test, out=report.append)
        assert report == [], "".join(report)


def test_the_check_finds_what_is_missing(tmp_path: Path) -> None:
    """pydoclint is asked in a way that shows a missing argument, result and error, and nothing private."""
    source = ROOT / "tests" / "documented.py"
    names = ("lacks_all", "lacks_nothing", "says_it_in_a_sentence", "lacks_sections")
    found = problems({(source, name) for name in names})
    assert {line.split(": ")[1] for line in found if "`lacks_all`" in line} == {
        "DOC101",
        "DOC103",
        "DOC201",
        "DOC501",
        "DOC503",
    }
    assert {line.split(": ")[1] for line in found if "`lacks_sections`" in line} == {
        "DOC101",
        "DOC103",
        "DOC501",
        "DOC503",
    }
    assert all("`lacks_" in line and "`lacks_nothing`" not in line for line in found)
