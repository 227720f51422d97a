"""The list of targets: names, extras, and that listing them loads no runtime."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, SettingsError
from prepbench.quantize import Constraint, Placement
from prepbench.targets import TARGETS, registry, target_for, target_named
from prepbench.targets.eager import EagerTarget
from prepbench.targets.onnx.target import OnnxTarget


def test_names_and_settings_tell_targets_apart() -> None:
    for kind in ("name", "display_name", "settings_type"):
        assert len({getattr(target, kind) for target in TARGETS}) == len(TARGETS), kind
    for target in TARGETS:
        assert target_for(target.settings_type()) is target
        assert target_named(target.name) is target
        assert getattr(pb, target.settings_type.__name__) is target.settings_type


def test_an_extra_installs_what_its_target_needs() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
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
    assert {t.name for t in TARGETS if isinstance(t, OnnxTarget)} >= {"onnxruntime", "openvino", "tensorrt"}
    for target in TARGETS:
        assert not isinstance(target, OnnxTarget) or set(OnnxTarget.packages) <= set(target.packages)


@dataclass(frozen=True)
class NpuDeployment(pb.EagerDeployment):
    """Settings of a target that prepbench does not have."""


class NpuTarget(EagerTarget):
    """An accelerator whose integer kernels are limited: what it lacks stands here and nowhere else."""

    name, display_name, settings_type = "npu", "NPU", NpuDeployment
    placement = Placement(
        constraints=(
            Constraint(
                lambda call: call.layer.is_convolution and call.layer.weight.meta["val"].shape[-1] > 7,
                "its convolutions have no windows above 7",
            ),
            Constraint(
                lambda call: not call.layer.is_convolution and not call.feeds_integers,
                "it computes the last layer in float",
                of_activations=True,
            ),
        )
    )


def test_a_new_target_says_by_itself_what_it_cannot_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TARGETS", (NpuTarget(), *TARGETS))
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 9, padding=4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(144, 8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(8, 4)).eval()
    x = torch.randn(4, 3, 8, 8)
    given = {"calibration_inputs": [x], "quantization_settings": pb.QuantizationSettings()}
    report = pb.compile_model(model, deployment_settings=NpuDeployment(), **given).report
    assert {row.fqn: (row.summary, row.reason) for row in report.layers} == {
        "0": ("float: its convolutions have no windows above 7", "its convolutions have no windows above 7"),
        "2": ("int8", ""),
        "4": ("int8", ""),
        "6": ("int8 weights", "weights only: it computes the last layer in float"),
    }
    report = pb.compile_model(model, deployment_settings=pb.EagerDeployment(), **given).report
    assert [row.summary for row in report.layers] == ["int8"] * 4
