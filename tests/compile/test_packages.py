"""Packages that are not here, and packages that are and do not import, are told apart."""

from __future__ import annotations

import itertools
import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench import packages
from prepbench.errors import MissingPackageError
from prepbench.internal_errors import internal_error
from prepbench.packages import TESTED, imported, installed, is_absent, not_tested

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a package of this name and text in front of the installed ones."""

    def make(name: str, text: str) -> None:
        folder = tmp_path / "site-packages" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder.parent))
        for known in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            monkeypatch.delitem(sys.modules, known)

    return make


def test_an_absent_package_is_told_with_its_command() -> None:
    assert is_absent("no_such_package")
    with pytest.raises(MissingPackageError, match=r"needs no_such_package, which is not installed: pip install x"):
        imported("no_such_package.part", "Drawing", "x")


def test_a_package_that_raises_is_named_with_its_version_and_error(fake: Fake) -> None:
    fake("peft", "raise RuntimeError('built for another torch')")
    with pytest.raises(MissingPackageError) as caught:
        imported("peft", "LoraSettings", "'prepbench[peft]'")
    text = str(caught.value)
    assert f"peft {version('peft')} is installed and does not import: RuntimeError: built for another torch." in text
    assert "not installed" not in text
    assert "pip install --force-reinstall 'prepbench[peft]'" in text
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_a_package_lacks_is_what_to_install(fake: Fake) -> None:
    fake("peft", "import no_such_dependency.part")
    with pytest.raises(MissingPackageError, match=r"ModuleNotFoundError.* pip install no_such_dependency\."):
        imported("peft", "LoraSettings", "'prepbench[peft]'")


def _compiled_for_openvino() -> None:
    pb.compile_model(
        nn.Linear(2, 2).eval(), tracing_inputs=[torch.ones(1, 2)], deployment_settings=pb.OpenVinoDeployment()
    )


def _trained_with_adapters() -> None:
    pb.trainable(
        nn.Sequential(nn.Linear(2, 2)).eval(), tracing_inputs=[torch.ones(1, 2)], lora_settings=pb.LoraSettings()
    )


@pytest.mark.parametrize(("name", "call"), [("openvino", _compiled_for_openvino), ("peft", _trained_with_adapters)])
def test_public_functions_tell_of_a_broken_package(name: str, call: Callable[[], None], fake: Fake) -> None:
    fake(name, "raise ImportError('libmissing.so.2: cannot open shared object file')")
    with pytest.raises(MissingPackageError, match=rf"{name} \S+ is installed and does not import: .*libmissing\.so\.2"):
        call()


def test_a_package_that_every_installation_has_is_told_the_same_way(fake: Fake) -> None:
    fake("plotly", "import re\nre.no_such_name")
    figures = Path(packages.__file__).parent / "made_figures.py"
    names: dict[str, Callable[[], None]] = {}
    exec(compile("def f():\n    import plotly", str(figures), "exec"), names)
    with pytest.raises(AttributeError) as caught:
        names["f"]()
    told = internal_error(caught.value)
    assert isinstance(told, MissingPackageError)
    assert str(told).startswith(f"plotly {version('plotly')} is installed and does not import: AttributeError")


def test_what_every_installation_needs_and_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    names: dict[str, Callable[[], None]] = {}
    text = "def f():\n    import plotly"
    exec(compile(text, str(Path(packages.__file__).parent / "made_figures.py"), "exec"), names)
    with pytest.raises(ModuleNotFoundError) as caught:
        names["f"]()
    assert str(internal_error(caught.value)) == "prepbench needs plotly, which is not installed: pip install plotly."


# -- versions


def test_versions_are_compared_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "torch", ("2.9", "2.11"))
    for found, expected in {"2.11.7+cpu": "", "2.12.0": "newer", "2.8.1": "older", "2.9": "", "2.10.0rc1": ""}.items():
        monkeypatch.setattr(packages, "version", lambda name, found=found: found)
        assert not_tested("torch") == expected
    assert packages.tested_range("torch") == "2.9 to 2.11"
    assert packages.tested_range("of nothing") == not_tested("of nothing") == ""


def test_what_is_not_installed_has_no_version() -> None:
    assert installed("no-such-package") == ""
    assert installed("Python").startswith("3.")


def test_pyproject_asks_for_the_oldest_versions_that_are_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    bounds = {"Python": project["requires-python"].removeprefix(">=")}
    for requirement in itertools.chain(project["dependencies"], *project["optional-dependencies"].values()):
        found = re.match(r"([\w-]+)>=([\d.]+)", requirement)
        if found and found[1] in TESTED:
            bounds[found[1]] = found[2]
    assert set(bounds) == set(TESTED)
    for name, bound in bounds.items():
        oldest = TESTED[name][0]
        assert _padded(bound) == _padded(oldest), f"{name}: pyproject asks for {bound}, tested is {oldest}"


def _padded(text: str) -> list[int]:
    numbers = list(map(int, text.split(".")))
    return numbers + [0] * (4 - len(numbers))
