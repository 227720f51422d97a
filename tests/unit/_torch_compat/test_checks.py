"""What a version of torch without a private part looks like to users."""

from __future__ import annotations

import importlib
from importlib.metadata import version

import pytest
import torch

from prepbench._torch_compat import checks
from prepbench._torch_compat.checks import needed_for
from prepbench.errors import PackageVersionError, PrepbenchError, TorchVersionError
from prepbench.packages import TESTED


def test_a_missing_module_names_the_version_the_purpose_and_the_remedy() -> None:
    with pytest.raises(TorchVersionError) as caught:
        with needed_for("drawing circles"):
            from torch._no_such_module import thing  # type: ignore[import-not-found]  # noqa: F401
    message = str(caught.value)
    assert f"torch {torch.__version__} lacks" in message
    assert "drawing circles" in message
    assert "_no_such_module" in message
    assert f"pip install '{checks.tested_requirement('torch')}'" in message
    assert isinstance(caught.value, PrepbenchError)
    assert isinstance(caught.value, ImportError)


def test_a_missing_name_is_told_the_same_way() -> None:
    with pytest.raises(TorchVersionError, match="'_no_such_name'"):
        with needed_for("anything"):
            torch._C._no_such_name  # noqa: B018


def test_an_inner_error_keeps_its_purpose() -> None:
    with pytest.raises(TorchVersionError, match="needs for the inner part"):
        with needed_for("the outer part"), needed_for("the inner part"):
            torch._no_such_name  # noqa: B018


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="mine"):
        with needed_for("anything"):
            raise ValueError("mine")


def test_other_packages_are_named_with_their_version() -> None:
    with pytest.raises(PackageVersionError, match=rf"^torchao {version('torchao')} lacks.*'torchao>=") as caught:
        with needed_for("drawing squares", "torchao"):
            importlib.import_module("torchao._no_such_module")
    assert not isinstance(caught.value, TorchVersionError)


def test_a_newest_version_of_two_numbers_takes_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "torch", ("1.0", "2.3"))
    assert checks.tested_requirement("torch") == "torch>=1.0,<2.4"
    monkeypatch.setitem(TESTED, "torch", ("1.0", "2.3.1"))
    assert checks.tested_requirement("torch") == "torch>=1.0,<=2.3.1"
