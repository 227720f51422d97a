"""What the workbench's switches stand at: one frozen value, so that undo is keeping the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.settings import (
    DeploymentSettings,
    EagerDeployment,
    ExecuTorchDeployment,
    InductorDeployment,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    OpenVinoDeployment,
    QuantizationSettings,
    TensorRtDeployment,
)

Precision = Literal["int8", "int8 weights", "float32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

TARGETS: dict[str, type[DeploymentSettings]] = {
    "ONNX Runtime": OnnxRuntimeDeployment,
    "OpenVINO": OpenVinoDeployment,
    "Inductor": InductorDeployment,
    "TensorRT": TensorRtDeployment,
    "ExecuTorch": ExecuTorchDeployment,
    "PyTorch eager": EagerDeployment,
}


@dataclass(frozen=True)
class BenchState:
    """The choices made on the bench.

    Attributes:
        axes: which input dims are dynamic.
        precisions: the precision of every quantizable layer, by FQN.
        target: a key of :data:`TARGETS`.
        leaf_wrap: whether modules that cannot be captured are wrapped as opaque operators instead of stopping the
            compile.
    """

    axes: DynamicAxes
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    target: str = "ONNX Runtime"
    leaf_wrap: bool = False

    @property
    def default_precision(self) -> Precision | None:
        """The commonest quantized precision, int8 first when tied; None when every layer stays in float."""
        quantized: list[Precision] = [p for p in self.precisions.values() if p != "float32"]
        if not quantized:
            return None
        commonest: Precision = max(PRECISIONS, key=quantized.count)
        return commonest

    def quantization_settings(self) -> QuantizationSettings | None:
        """The global settings, or None when nothing is quantized."""
        if self.default_precision is None:
            return None
        return QuantizationSettings(prefer_weights_only_quantization=self.default_precision == "int8 weights")

    def layer_settings(self) -> dict[str, LayerQuantizationSettings]:
        """Settings of the layers that differ from the global ones, by FQN."""
        default = self.default_precision
        if default is None:
            return {}
        return {fqn: _layer_settings(p) for fqn, p in self.precisions.items() if p != default}

    def deployment(self) -> DeploymentSettings:
        """The settings object of the chosen target."""
        return TARGETS[self.target]()

    @property
    def label(self) -> str:
        """A short name for a result compiled with these choices, e.g. ``"int8 ONNX Runtime"``."""
        kinds = set(self.precisions.values())
        precision = "float32" if self.default_precision is None else self.default_precision
        return f"{'mixed ' if len(kinds) > 1 else ''}{precision} {self.target}"


def _layer_settings(precision: Precision) -> LayerQuantizationSettings:
    if precision == "float32":
        return LayerQuantizationSettings(skip_quantization=True)
    return LayerQuantizationSettings(prefer_weights_only_quantization=precision == "int8 weights")
