"""The list of targets: names, extras, and that listing them loads no runtime."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import prepbench as pb
from prepbench.errors import ArtifactError, SettingsError
from prepbench.targets import TARGETS, target_for, target_named
from prepbench.targets.onnx.target import OnnxTarget


def test_names_and_settings_tell_targets_apart() -> None:
    for kind in ("name", "display_name", "settings_type"):
        assert len({getattr(target, kind) for target in TARGETS}) == len(TARGETS), kind
    for target in TARGETS:
        assert target_for(target.settings_type()) is target
        assert target_named(target.name) is target
        assert getattr(pb, target.settings_type.__name__) is target.settings_type


def test_an_extra_installs_what_its_target_needs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = " ".join(project["dependencies"])
    for target in TARGETS:
        extra = " ".join(project["optional-dependencies"][target.extra]) if target.extra else ""
        assert [name for name in target.packages if name not in f"{required} {extra}"] == []


def test_listing_targets_loads_no_runtime() -> None:
    code = (
        "import sys, prepbench.targets as targets; print([t.display_name for t in targets.TARGETS]);"
        "print(sorted({'openvino', 'onnxruntime', 'onnx', 'onnxscript', 'executorch', 'tensorrt',"
        " 'torch._inductor.compile_fx'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[1] == "[]"


def test_what_is_unknown_is_named_with_what_there_is() -> None:
    with pytest.raises(ArtifactError, match=r"'coreml', which this version does not have.*openvino"):
        target_named("coreml")
    with pytest.raises(SettingsError, match=r"OpenVinoDeployment.*got DeploymentSettings"):
        target_for(pb.DeploymentSettings())


def test_targets_that_read_onnx_need_its_packages() -> None:
    assert {t.name for t in TARGETS if isinstance(t, OnnxTarget)} == {"onnxruntime", "openvino", "tensorrt"}
    for target in TARGETS:
        assert not isinstance(target, OnnxTarget) or set(OnnxTarget.packages) <= set(target.packages)
