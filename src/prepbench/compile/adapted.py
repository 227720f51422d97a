"""``compile_model`` with adapters: they learn on the calibration samples what quantization and pruning cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from prepbench.adapt.recover import recover
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import described
from prepbench.compile.arguments import with_extra_options
from prepbench.compile.prepare_training import prepare_training
from prepbench.compile.samples import read_samples
from prepbench.compile.task import CompileTask
from prepbench.compile.trained import task_of_trained
from prepbench.compile.training_arguments import TrainingArguments
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import ProgressCallback
from prepbench.running.random_numbers import numbers_kept
from prepbench.running.twin import Twin
from prepbench.settings import CompileOptions, OnnxRuntimeDeployment
from prepbench.settings.lora_layers import layers_with_adapters

STEPS = 200
_LEARNING_RATE = 3e-3


def adapted_task(
    model: Any,
    given: TrainingArguments,
    refused: Mapping[str, bool],
    extra: Mapping[str, Any],
    progress: ProgressCallback,
    *,
    dynamic: bool,
    is_dry_run: bool,
) -> CompileTask:
    """How to compile a model with adapters that have learned; in a dry run, that are to learn.

    Args:
        model: the user's.
        given: what was given to ``compile_model``, with adapters.
        refused: by the name of each argument that adapters do not go with, whether it was given.
        extra: fields of the target's settings or of the options.
        progress: as for ``compile_model``.
        dynamic: whether any dim is.
        is_dry_run: learn nothing.

    Raises:
        SettingsError: nothing would be learned, or an argument that adapters do not go with.
        InputError: what is compiled is no module.
    """
    _check(model, given, refused)
    settings, options = with_extra_options(
        given.deployment_settings or OnnxRuntimeDeployment(), given.compile_options or CompileOptions(), extra, ()
    )
    given = replace(given, deployment_settings=settings, compile_options=options)
    given.check(model)
    transform = given.data_transform_fn
    samples, calibration = read_samples(Twin(model).model, given.tracing_inputs, given.calibration_inputs, transform)
    axes = DynamicAxes.infer(samples, model) if given.dynamic_axes is None else given.dynamic_axes
    for axis in () if dynamic else axes.dynamic:
        axes = axes.set(axis.path, axis.dim, False)
    given = replace(
        given, tracing_inputs=samples, calibration_inputs=calibration, data_transform_fn=None, dynamic_axes=axes
    )
    # a compile may be asked for where gradients are off; adapters begin with random numbers
    with torch.inference_mode(False), torch.enable_grad(), numbers_kept(seed=0):
        prepared = prepare_training(model, replace(given, adapters_alone=True), progress)
        assert given.lora_settings is not None
        count = len(layers_with_adapters(model, given.lora_settings))
        about = f"adapters of rank {given.lora_settings.rank} beside {count} layers"
        if is_dry_run:
            remark = f"{about} would learn in at most {STEPS} steps on calibration samples"
        else:
            found = recover(prepared, calibration, steps=STEPS, learning_rate=_LEARNING_RATE, progress=progress)
            before, after = (found.scores[step] for step in (0, found.best_step))
            remark = f"{about} learned on calibration samples: outputs at {_decibels(before)} dB from float before, "
            remark += f"{_decibels(after)} dB with them"
    task = task_of_trained(prepared, None, {}, {})
    return replace(task, remarks=(remark,), data_transform_fn=transform)


def _decibels(noise: float) -> str:
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "inf"


def _check(model: Any, given: TrainingArguments, refused: Mapping[str, bool]) -> None:
    if names := [name for name, is_given in refused.items() if is_given]:
        raise SettingsError(
            f"lora_settings do not go with {', '.join(names)}: adapters learn in the whole model, in evaluation mode "
            "and as one graph. Leave one of them out."
        )
    if not isinstance(model, nn.Module):
        raise InputError(f"lora_settings need a torch.nn.Module, whose layers get adapters; got {described(model)}.")
    if given.quantization_settings is None and given.pruning_settings is None:
        raise SettingsError(
            "lora_settings would change nothing: in compile_model adapters learn what quantization or pruning costs, "
            "and neither is asked for. Add quantization_settings or pruning_settings; to train adapters on data of "
            "your own, give lora_settings to pb.trainable."
        )
    if given.calibration_inputs is None:
        raise SettingsError(
            "lora_settings need calibration_inputs: representative samples, on which adapters learn. Give "
            "calibration_inputs=[...]."
        )
    if not given.is_model_pretrained:
        raise SettingsError(
            "lora_settings do not go with is_model_pretrained=False: adapters learn what the float model gives, and "
            "that has learned nothing. Train it with pb.trainable first."
        )
