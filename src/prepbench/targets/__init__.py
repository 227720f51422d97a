"""Deployment targets, one folder each behind one interface; found by the type of their settings or by name."""

from __future__ import annotations

from prepbench.errors import ArtifactError, SettingsError
from prepbench.settings import DeploymentSettings
from prepbench.targets.base import Lowering as Lowering
from prepbench.targets.base import Runtime as Runtime
from prepbench.targets.base import Target as Target
from prepbench.targets.eager import EagerTarget
from prepbench.targets.executorch import ExecuTorchTarget
from prepbench.targets.inductor import InductorTarget
from prepbench.targets.onnxruntime import OnnxRuntimeTarget
from prepbench.targets.openvino import OpenVinoTarget
from prepbench.targets.tensorrt import TensorRtTarget

_TARGETS: tuple[Target, ...] = (
    OnnxRuntimeTarget(),
    OpenVinoTarget(),
    InductorTarget(),
    TensorRtTarget(),
    ExecuTorchTarget(),
    EagerTarget(),
)


def target_for(settings: DeploymentSettings) -> Target:
    """The target that takes these settings; ``SettingsError`` if none does."""
    for target in _TARGETS:
        if isinstance(settings, target.settings_type):
            return target
    known = ", ".join(target.settings_type.__name__ for target in _TARGETS)
    raise SettingsError(f"deployment_settings must be one of {known}, got {type(settings).__name__}.")


def target_named(name: str) -> Target:
    """The target called ``name`` in a saved model; ``ArtifactError`` if there is none."""
    for target in _TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in _TARGETS)
    raise ArtifactError(f"The saved model is for the target {name!r}, which this version does not have ({known}).")


__all__ = ["Lowering", "Runtime", "Target", "target_for", "target_named"]
