"""Every deployment target. A new one is a folder beside this file and one entry here."""

from __future__ import annotations

from prepbench.checks import described
from prepbench.errors import ArtifactError, SettingsError
from prepbench.settings import DeploymentSettings
from prepbench.targets.base import Target
from prepbench.targets.eager import EagerTarget
from prepbench.targets.executorch import ExecuTorchTarget
from prepbench.targets.inductor import InductorTarget
from prepbench.targets.onnxruntime import OnnxRuntimeTarget
from prepbench.targets.openvino import OpenVinoTarget
from prepbench.targets.tensorrt import TensorRtTarget

# in the order in which they are shown
TARGETS: tuple[Target, ...] = (
    OnnxRuntimeTarget(),
    OpenVinoTarget(),
    InductorTarget(),
    TensorRtTarget(),
    ExecuTorchTarget(),
    EagerTarget(),
)


def target_for(settings: DeploymentSettings, argument: str = "deployment_settings") -> Target:
    """Return the target that takes these settings; ``argument`` is the name under which they were given.

    Raises:
        SettingsError: no target takes settings of this type.
    """
    for target in TARGETS:
        if isinstance(settings, target.settings_type):
            return target
    known = ", ".join(target.settings_type.__name__ for target in TARGETS)
    raise SettingsError(
        f"{argument} must be one of {known}, got {described(settings)}. Write {argument}=pb.OnnxRuntimeDeployment()."
    )


def target_named(name: str) -> Target:
    """Return the target called ``name`` in a saved model.

    Raises:
        ArtifactError: this version has no such target.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise ArtifactError(f"The saved model is for the target {name!r}, which this version does not have ({known}).")
