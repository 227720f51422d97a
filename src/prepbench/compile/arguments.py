"""Check the arguments of ``compile_model``: which of them require each other, and options as further keywords."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from torch import nn

from prepbench.checks import check_type
from prepbench.errors import InputError, SettingsError
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerPruningSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
)
from prepbench.settings.pruned_layers import check_pruning_settings
from prepbench.settings.rules import check_layer_rules

_EXAMPLES: dict[type, type] = {DeploymentSettings: OnnxRuntimeDeployment}


def check_arguments(
    tracing: Any,
    calibration: Any,
    deployment: Any,
    quantization: Any,
    layers: Mapping[str, LayerQuantizationSettings] | None,
    options: Any,
) -> None:
    """Raise ``SettingsError`` for arguments of the wrong type, or without another one that they require."""
    for name, value, kind in (
        ("deployment_settings", deployment, DeploymentSettings),
        ("quantization_settings", quantization, QuantizationSettings),
        ("compile_options", options, CompileOptions),
    ):
        check_type(name, value, kind, f"Write {name}=pb.{_EXAMPLES.get(kind, kind).__name__}().", optional=True)
    check_layer_rules(layers)
    if quantization is not None and calibration is None:
        raise SettingsError(
            "quantization_settings needs calibration_inputs: a list of representative samples, from which the "
            "ranges of activations are learned. Give calibration_inputs=[...]."
        )
    if quantization is not None and deployment is None:
        raise SettingsError(
            "quantization_settings needs deployment_settings, because each target fuses int8 operators in its own way: "
            "deployment_settings=OnnxRuntimeDeployment() or InductorDeployment()."
        )
    if quantization is None and layers:
        raise SettingsError(
            f"layer_quantization_settings were given for {', '.join(map(repr, layers))} without "
            "quantization_settings, so nothing is quantized. "
            "Add quantization_settings=QuantizationSettings()."
        )
    if tracing is None and calibration is None:
        raise SettingsError(
            "Give tracing_inputs (or calibration_inputs): sample inputs whose sizes differ in the dims to make dynamic."
        )


def check_pruning(pruning: Any, layers: Any, calibration: Any) -> None:
    """Raise ``SettingsError`` for pruning settings of the wrong type, or without an argument that they require."""
    check_pruning_settings(pruning, layers)
    rules = [rule for rule in (layers or {}).values() if isinstance(rule, LayerPruningSettings)]
    if calibration is None and pruning is not None and any(each.needs_samples for each in (pruning, *rules)):
        raise SettingsError(
            'score="activations" and pruning_sensitivity_threshold need calibration_inputs: representative samples, on '
            "which layers are run. Give calibration_inputs=[...]."
        )


def check_weights(model: Any) -> None:
    """Raise ``InputError`` for a model without data, which allows a dry run only."""
    if isinstance(model, nn.Module) and any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "module_or_func has weights on meta, which have no data, so the compiled model could not run. Load the "
            "weights first (model.to_empty(device='cpu') makes room for them), or give is_dry_run=True for the plan."
        )


def with_extra_options(
    deployment: DeploymentSettings, options: CompileOptions, extra: Mapping[str, Any], arguments: Iterable[str]
) -> tuple[DeploymentSettings, CompileOptions]:
    """Return both settings with further keyword arguments, each a field of one of them; ``arguments`` are other known
    names.

    Raises:
        SettingsError: neither has such a field (with the nearest names), or the value is not allowed.
    """
    of_target = {field.name for field in fields(deployment)}
    of_compile = {field.name for field in fields(options)}
    for name in extra:
        if name not in of_target | of_compile:
            near = difflib.get_close_matches(
                name, sorted({*of_target, *of_compile, *arguments} - {"extra_options"}), n=1
            )
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise SettingsError(
                f"compile_model has no argument {name!r}. {hint}Extra options are fields of "
                f"{type(deployment).__name__} ({', '.join(sorted(of_target)) or 'none'}) or of CompileOptions "
                f"({', '.join(sorted(of_compile))})."
            )
    return (
        replace(deployment, **{name: value for name, value in extra.items() if name in of_target}),
        replace(options, **{name: value for name, value in extra.items() if name in of_compile}),
    )
