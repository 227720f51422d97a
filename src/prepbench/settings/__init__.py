"""All settings: frozen dataclasses that check themselves, go to JSON and back, and are resolved to layers."""

from prepbench.settings.deployment import DeploymentSettings as DeploymentSettings
from prepbench.settings.deployment import EagerDeployment as EagerDeployment
from prepbench.settings.deployment import ExecuTorchDeployment as ExecuTorchDeployment
from prepbench.settings.deployment import InductorDeployment as InductorDeployment
from prepbench.settings.deployment import OnnxRuntimeDeployment as OnnxRuntimeDeployment
from prepbench.settings.deployment import OpenVinoDeployment as OpenVinoDeployment
from prepbench.settings.deployment import TensorRtDeployment as TensorRtDeployment
from prepbench.settings.explain import ExplainedLayer as ExplainedLayer
from prepbench.settings.explain import PrunableLayer as PrunableLayer
from prepbench.settings.explain import explain_settings as explain_settings
from prepbench.settings.explain import prunable_layers as prunable_layers
from prepbench.settings.lora import LoraSettings as LoraSettings
from prepbench.settings.pruning import LayerPruningSettings as LayerPruningSettings
from prepbench.settings.pruning import PruningSettings as PruningSettings
from prepbench.settings.quantization import CompileOptions as CompileOptions
from prepbench.settings.quantization import LayerQuantizationSettings as LayerQuantizationSettings
from prepbench.settings.quantization import QuantizationSettings as QuantizationSettings
from prepbench.settings.quantization import activation_format as activation_format
from prepbench.settings.quantization import weight_formats as weight_formats
from prepbench.settings.rules import LayerRules as LayerRules
from prepbench.settings.rules import is_within as is_within
from prepbench.settings.rules import layers_to_quantize as layers_to_quantize
from prepbench.settings.rules import module_of_layer as module_of_layer
from prepbench.settings.rules import quantizable_layers as quantizable_layers
from prepbench.settings.rules import tensors_of_layer as tensors_of_layer

__all__ = [
    "CompileOptions",
    "DeploymentSettings",
    "EagerDeployment",
    "ExecuTorchDeployment",
    "ExplainedLayer",
    "InductorDeployment",
    "LayerPruningSettings",
    "LayerQuantizationSettings",
    "LayerRules",
    "LoraSettings",
    "OnnxRuntimeDeployment",
    "OpenVinoDeployment",
    "PrunableLayer",
    "PruningSettings",
    "QuantizationSettings",
    "TensorRtDeployment",
    "activation_format",
    "explain_settings",
    "is_within",
    "layers_to_quantize",
    "prunable_layers",
    "module_of_layer",
    "quantizable_layers",
    "tensors_of_layer",
    "weight_formats",
]
