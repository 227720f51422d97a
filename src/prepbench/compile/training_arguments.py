"""The arguments of ``trainable``, and their consistency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from prepbench.adapt.trainable_model import TrainableModel
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, check_axes
from prepbench.checks import check_function, check_switch, check_type, described
from prepbench.compile.arguments import check_arguments, check_pruning
from prepbench.compile.pruned_model import PrunedGraph
from prepbench.errors import InputError, SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerPruningSettings,
    LayerQuantizationSettings,
    LoraSettings,
    PruningSettings,
    QuantizationSettings,
)

_SAID_AGAIN = ("deployment_settings", "is_model_pretrained", "adapters_alone")


@dataclass(frozen=True, kw_only=True)
class TrainingArguments:
    """The arguments of :func:`prepbench.trainable`.

    Attributes:
        adapters_alone: in training mode all but the adapters computes as in evaluation: no dropout, no statistics of
            batches.
    """

    tracing_inputs: Iterable[Any] | None
    calibration_inputs: Iterable[Any] | None
    deployment_settings: DeploymentSettings | None
    data_transform_fn: Callable[[Any], Any] | None
    quantization_settings: QuantizationSettings | None
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None
    pruning_settings: PruningSettings | None
    layer_pruning_settings: Mapping[str, LayerPruningSettings] | None
    lora_settings: LoraSettings | None
    compile_options: CompileOptions | None
    dynamic_axes: DynamicAxes | None
    is_model_pretrained: bool
    adapters_alone: bool = False

    @property
    def calibration(self) -> Iterable[Any] | None:
        """The calibration inputs; a model without learned quantizers needs none."""
        learns = self.quantization_settings is not None and not self.is_model_pretrained
        return self.tracing_inputs if self.calibration_inputs is None and learns else self.calibration_inputs

    @property
    def settled(self) -> dict[str, Any]:
        """The arguments that are fixed once a model is prepared, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _SAID_AGAIN}

    def check(self, model: object) -> None:
        """Raise for arguments of the wrong type, or without a required one."""
        if isinstance(model, PrunedGraph):
            _check_pruned(self.pruning_settings, self.lora_settings)
        _check(model, self.data_transform_fn, self.dynamic_axes, self.lora_settings, self.is_model_pretrained)
        check_pruning(self.pruning_settings, self.layer_pruning_settings, self.calibration)
        check_arguments(
            self.tracing_inputs,
            self.calibration,
            self.deployment_settings,
            self.quantization_settings,
            self.layer_quantization_settings,
            self.compile_options,
        )


def _check(model: object, transform: object, axes: object, lora: object, pretrained: object) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, TrainableModel):
        raise InputError(
            f"model must be a torch.nn.Module whose weights are trained, got {described(model)}. Give the module, in "
            "float."
        )
    _check_precision(model)
    check_function("data_transform_fn", transform, "data_transform_fn(element)", optional=True)
    check_axes(axes)
    check_type("lora_settings", lora, LoraSettings, "Write lora_settings=pb.LoraSettings().", optional=True)
    check_switch("is_model_pretrained", pretrained)


def _check_pruned(pruning: object, lora: object) -> None:
    """Raise ``SettingsError`` for options that a pruned graph does not support."""
    for name, value in (("pruning_settings", pruning), ("lora_settings", lora)):
        if value is not None:
            raise SettingsError(
                f"{name} cannot be given with a graph of pb.prune: it was pruned already, and has no modules that an "
                f"adapter could stand in. Leave {name} out, or give the model itself, with the pruning_settings that "
                "pb.prune got."
            )


def _check_precision(model: nn.Module) -> None:
    """Raise ``InputError`` for low-precision weights, in which training steps are often rounded away."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype.itemsize < torch.float32.itemsize:
            raise InputError(
                f"{name} is {parameter.dtype}, and steps of training are smaller than what its numbers can tell "
                "apart. Give model.float() and samples in float32, train under torch.autocast if that is to be fast, "
                "and convert what comes out: prepared.float_model().to(dtype)."
            )
