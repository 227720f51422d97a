"""The choices made on the bench: one frozen value, so that undo only has to keep the old one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.settings import DeploymentSettings, LayerQuantizationSettings, QuantizationSettings
from prepbench.targets import TARGETS as ALL_TARGETS

Precision = Literal["int8", "int8 weights", "float32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
LABELS: dict[Precision, str] = {"int8": "int8", "int8 weights": "weights", "float32": "float"}
"""Short names, for buttons."""
EXPLANATIONS: dict[Precision, str] = {
    "int8": "weights and activations in 8 bits",
    "int8 weights": "weights in 8 bits, activations in float",
    "float32": "left in float",
}

TARGETS: dict[str, type[DeploymentSettings]] = {target.display_name: target.settings_type for target in ALL_TARGETS}
"""The settings of every target, by its display name."""

DISPLAY_NAMES: dict[str, str] = {target.name: target.display_name for target in ALL_TARGETS}
"""The display name of every target, by the name that ``compiled.target`` has."""


@dataclass(frozen=True)
class BenchState:
    """The choices made on the bench.

    Attributes:
        axes: which input dims are dynamic.
        precisions: the precision of every quantizable layer, by FQN.
        target: a key of :data:`TARGETS`.
        leaf_wrap: whether modules that cannot be captured become leaf modules instead of stopping the compile.
    """

    axes: DynamicAxes
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    target: str = ALL_TARGETS[0].display_name
    leaf_wrap: bool = False

    @cached_property
    def default_precision(self) -> Precision | None:
        """The most common quantized precision, int8 first when tied; None when every layer stays in float."""
        quantized: Counter[Precision] = Counter(p for p in self.precisions.values() if p != "float32")
        if not quantized:
            return None
        most_common: Precision = max(PRECISIONS, key=quantized.__getitem__)
        return most_common

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

    def differences(self, other: BenchState) -> tuple[str, ...]:
        """In what other choices differ from these, in words."""
        layers = sum(self.precisions[fqn] != precision for fqn, precision in other.precisions.items())
        axes = [
            f"{old.path} dim {old.dim} was {'dynamic' if old.dynamic else 'static'}"
            for new, old in zip(self.axes.axes, other.axes.axes, strict=True)
            if new.dynamic != old.dynamic
        ]
        said = [f"{layers} layer{'s' * (layers != 1)} had another precision"] if layers else []
        said += [f"the target was {other.target}"] if other.target != self.target else []
        said += axes[:3] + ([f"and {len(axes) - 3} more dims"] if len(axes) > 3 else [])
        said += (
            ["leaf modules were " + ("on" if other.leaf_wrap else "off")] if other.leaf_wrap != self.leaf_wrap else []
        )
        return tuple(said)

    def deployment(self) -> DeploymentSettings:
        """The settings object of the chosen target."""
        return TARGETS[self.target]()

    @cached_property
    def label(self) -> str:
        """A short name for a result compiled with these choices, e.g. ``"int8 ONNX Runtime"``."""
        kinds = set(self.precisions.values())
        precision = "float32" if self.default_precision is None else self.default_precision
        return f"{'mixed ' if len(kinds) > 1 else ''}{precision} {self.target}"


def _layer_settings(precision: Precision) -> LayerQuantizationSettings:
    if precision == "float32":
        return LayerQuantizationSettings(skip_quantization=True)
    return LayerQuantizationSettings(prefer_weights_only_quantization=precision == "int8 weights")
