"""All settings: frozen dataclasses that check themselves, go to JSON and back, and are resolved to layers."""

from prepbench.settings.compile_options import CompileOptions as CompileOptions
from prepbench.settings.deployment import DeploymentSettings as DeploymentSettings
from prepbench.settings.deployment import EagerDeployment as EagerDeployment
from prepbench.settings.deployment import ExecuTorchDeployment as ExecuTorchDeployment
from prepbench.settings.deployment import InductorDeployment as InductorDeployment
from prepbench.settings.deployment import OnnxRuntimeDeployment as OnnxRuntimeDeployment
from prepbench.settings.deployment import OpenVinoDeployment as OpenVinoDeployment
from prepbench.settings.deployment import TensorRtDeployment as TensorRtDeployment
from prepbench.settings.quantization import LayerQuantizationSettings as LayerQuantizationSettings
from prepbench.settings.quantization import QuantizationSettings as QuantizationSettings
from prepbench.settings.resolve import ExplainedLayer as ExplainedLayer
from prepbench.settings.resolve import LayerRules as LayerRules
from prepbench.settings.resolve import explain_settings as explain_settings
from prepbench.settings.resolve import quantizable_layers as quantizable_layers

__all__ = [
    "CompileOptions",
    "DeploymentSettings",
    "EagerDeployment",
    "ExecuTorchDeployment",
    "ExplainedLayer",
    "InductorDeployment",
    "LayerQuantizationSettings",
    "LayerRules",
    "OnnxRuntimeDeployment",
    "OpenVinoDeployment",
    "QuantizationSettings",
    "TensorRtDeployment",
    "explain_settings",
    "quantizable_layers",
]
