"""The parts of the site that are generated from code are complete, and their examples do what they say."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from docs.tools import error_examples, errors, failing, gallery, notebooks, reference
from docs.tools.build import glossary
from prepbench.capture.failures import describe
from prepbench.error_display import PAGE, sections_of
from prepbench.errors import page_of

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_in_one_group() -> None:
    names = [name for group in reference.GROUPS.values() for name in group.split()]
    assert sorted(names) == pb.__all__


def test_settings_tell_what_they_take() -> None:
    assert reference.allowed(pb.CompileOptions, "percentile") == "a number from 50 to 100"
    assert reference.allowed(pb.CompileOptions, "layer_sqnr_floor") == "``None``, or a number from -300 to 300"
    page = reference.page("QuantizationSettings")
    assert page.count("   * - ``") == len(pb.QuantizationSettings.__dataclass_fields__)


def test_every_kind_of_failure_is_explained() -> None:
    public = {name: value for name, value in vars(describe).items() if name.isupper() and not name.startswith("_")}
    kinds = {value for value in public.values() if isinstance(value, str) and not value.endswith(".")}
    assert set(errors.kinds()) == set(failing.KINDS) == kinds
    assert all(errors.kinds().values())


@pytest.mark.parametrize("kind", failing.KINDS)
def test_examples_of_failures_fail_in_this_way_and_the_others_do_not(kind: str) -> None:
    example = failing.KINDS[kind]
    found = example.found_by(example.failing())
    assert kind in {failure.kind for failure in found}
    if example.advised is not None:
        assert not any(failure.kind == kind for failure in example.found_by(example.advised()))


def test_every_error_class_is_explained() -> None:
    names = [error.__name__ for error in errors.classes()]
    assert sorted(names) == sorted([*error_examples.ERRORS, "PrepbenchError"])


@pytest.mark.parametrize("name", error_examples.ERRORS)
def test_examples_of_errors_raise_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "openvino", __import__("openvino"))  # an example takes it away
    code = error_examples.ERRORS[name][0].strip()
    values: dict[str, Any] = {"torch": torch, "nn": nn, "pb": pb, "__name__": "example"}
    values["model"] = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    values["samples"] = [torch.linspace(-1, 2, 8).view(2, 4), torch.linspace(-2, 1, 12).view(3, 4)]
    linecache.cache["<example>"] = (len(code), None, code.splitlines(keepends=True), "<example>")
    with pytest.raises(pb.PrepbenchError) as caught:
        exec(compile(code, "<example>", "exec"), values)  # the project's own
    assert type(caught.value).__name__ == name
    assert caught.value.__notes__


def test_a_traceback_ends_with_the_page_that_explains_it() -> None:
    with pytest.raises(pb.PrepbenchError) as caught:
        pb.QuantizationSettings(weights_num_bits=5)
    assert caught.value.__notes__ == ["Documentation: errors.html#settingserror"]
    assert "errors.html" not in str(caught.value)
    with pytest.raises(pb.PrepbenchError) as caught:
        pb.capture(failing.Branch(), failing.SAMPLES)
    assert caught.value.__notes__ == [f"Documentation: {page_of(describe.BRANCH)}"]


def test_every_word_of_the_glossary_has_a_place() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    page = glossary(text)
    for line in text.partition("## Glossary\n")[2].partition("\n## ")[0].splitlines()[3:]:
        if line.startswith("| "):
            assert f"   {line.split('|')[1].split(',')[0].strip()}\n" in page


def test_every_notebook_says_what_it_takes() -> None:
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = json.loads(path.read_text())
        assert notebooks.questions()[path.name]
        assert 1 < notebooks.seconds(notebook) < 1800
    assert "scikit-learn" in notebooks.needs(json.loads((ROOT / "notebooks" / "01_quickstart.ipynb").read_text()))


def test_the_gallery_is_what_its_command_writes() -> None:
    assert len(gallery.ENTRIES) == 12
    assert {path.name for path in gallery.FOLDER.iterdir()} == {f"{name}.graph.json" for name in gallery.ENTRIES}
    name = "resnet50"
    committed = json.loads((gallery.FOLDER / f"{name}.graph.json").read_text())
    assert gallery.unpacked(committed) == gallery.without_paths(gallery.document(name))


def test_the_page_of_errors_in_the_package_is_fresh_and_whole() -> None:
    assert errors.installed_page() == PAGE.read_text(encoding="utf-8"), "python -m docs.tools.errors --write"
    for name in (*(kind.__name__ for kind in errors.classes()), *errors.kinds()):
        [section] = sections_of((page_of(name).partition("#")[2],))
        assert name.split()[0] in section
