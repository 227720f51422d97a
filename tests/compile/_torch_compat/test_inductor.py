"""Inductor: options, packages and passes."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch._inductor import config, cpp_builder

from prepbench._torch_compat import inductor
from prepbench.errors import TorchVersionError


def test_options_hold_inside_the_block() -> None:
    before = config.freezing
    with inductor.inductor_options(freezing=not before):
        assert config.freezing is not before
    assert config.freezing is before


def test_an_option_that_this_torch_does_not_have() -> None:
    with pytest.raises(TorchVersionError, match=r"Inductor's options.*no_such_option"):
        inductor.inductor_options(no_such_option=1)


def test_the_compiler_is_a_program() -> None:
    assert shutil.which(inductor.find_cpp_compiler())


def test_a_package_is_compiled_and_run(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(3),))
    inductor.compile_package(program, tmp_path / "model.pt2", {})
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        archive.extractall(tmp_path)
    (library,) = tmp_path.rglob("*.so")
    x = torch.randn(3)
    (result,) = inductor.load_library(library).run([x])
    assert torch.equal(result, torch.relu(x))


@pytest.mark.parametrize(
    ("owner", "name", "call", "purpose"),
    [
        (cpp_builder, "get_cpp_compiler", inductor.find_cpp_compiler, "a C\\+\\+ compiler"),
        (torch._C._aoti, "AOTIModelContainerRunnerCpu", lambda: inductor.load_library(Path("x")), "running what"),
    ],
)
def test_a_torch_without_it(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: object, purpose: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(TorchVersionError, match=f"{purpose}.*{name}"):
        call()  # type: ignore[operator]
