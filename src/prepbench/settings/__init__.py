"""All settings: frozen dataclasses that check themselves, go to JSON and back, and are resolved to layers."""

from prepbench.settings.deployment import DeploymentSettings as DeploymentSettings
from prepbench.settings.deployment import EagerDeployment as EagerDeployment
from prepbench.settings.deployment import InductorDeployment as InductorDeployment
from prepbench.settings.deployment import OnnxRuntimeDeployment as OnnxRuntimeDeployment
from prepbench.settings.quantization import LayerQuantizationSettings as LayerQuantizationSettings
from prepbench.settings.quantization import QuantizationSettings as QuantizationSettings
from prepbench.settings.resolve import ExplainedLayer as ExplainedLayer
from prepbench.settings.resolve import LayerRules as LayerRules
from prepbench.settings.resolve import explain_settings as explain_settings
from prepbench.settings.resolve import quantizable_layers as quantizable_layers

__all__ = [
    "DeploymentSettings",
    "EagerDeployment",
    "ExplainedLayer",
    "InductorDeployment",
    "LayerQuantizationSettings",
    "LayerRules",
    "OnnxRuntimeDeployment",
    "QuantizationSettings",
    "explain_settings",
    "quantizable_layers",
]
