"""A captured float model as plain values and a program, for simulation in this process or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.compile.call_spec import CallSpec
from prepbench.compile.capture_stage import Wanted, captured_or_reused
from prepbench.compile.kept_stages import KeptStages
from prepbench.compile.samples import flat_samples, read_samples, with_static_sizes_of_first
from prepbench.compile.task import CompileTask
from prepbench.compile.uncompiled import NothingCompiledError
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.objects.digest import state_digest
from prepbench.quantize import check_calibration
from prepbench.running.callable_module import as_module, with_forward_fn
from prepbench.running.tracing import tracing
from prepbench.running.twin import Twin
from prepbench.settings import CompileOptions, DeploymentSettings, layers_to_quantize, tensors_of_layer
from prepbench.settings.quantizable import layer_named
from prepbench.targets import target_for


@dataclass(frozen=True)
class LayerFacts:
    """The facts on a layer that a simulation needs.

    Attributes:
        type: its class name.
        parameters: how many numbers it learns.
        is_table: whether it looks rows up, so that its weights alone can be quantized.
    """

    type: str
    parameters: int
    is_table: bool = False


@dataclass(frozen=True)
class FloatProgram:
    """A captured model in float, for one target.

    Attributes:
        program: the flat program, in types that the target computes in.
        call_spec: the specification of the model's calls.
        settings: of the target.
        options: algorithms.
        samples: the calibration inputs, as calls of the program.
        layers: those that settings could be for, by FQN.
        name: of the graph.
        out_spec: the model's own structure of results; None where it is rebuilt from ``call_spec``.
        scored: calls of the program that scores are measured on; a few calibration inputs where there are none.
    """

    program: torch.export.ExportedProgram
    call_spec: CallSpec
    settings: DeploymentSettings
    options: CompileOptions
    samples: tuple[Sample, ...]
    layers: Mapping[str, LayerFacts]
    name: str
    out_spec: pytree.TreeSpec | None = None
    scored: tuple[Sample, ...] = ()

    @classmethod
    def of_task(cls, task: CompileTask) -> FloatProgram:
        """Return the program of a captured model, which shares the model's weights."""
        task = replace(task, layer_settings=())  # quantization computes in float32
        model = task.captured.model
        facts = {}
        for fqn in layers_to_quantize(model):
            layer = layer_named(model, fqn)
            count = sum(tensor.numel() for tensor in tensors_of_layer(model, fqn))
            facts[fqn] = LayerFacts(type(layer).__name__, count, isinstance(layer, torch.nn.Embedding))
        samples = tuple(flat_samples(task.calibration, task.call_spec))
        out_spec = task.captured.program.call_spec.out_spec
        program = task.in_types_of_target().program
        return cls(program, task.call_spec, task.settings, task.options, samples, facts, task.name, out_spec)


def captured_in_float(
    model: Callable[..., Any],
    calibration_inputs: Any,
    *,
    deployment_settings: DeploymentSettings,
    compile_options: CompileOptions,
    tracing_inputs: Any = None,
    dynamic_axes: DynamicAxes | None = None,
    forward_fn: Callable[..., Any] | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    fullgraph: bool = True,
    reuse: KeptStages | None = None,
    progress: ProgressCallback = report_nothing,
) -> FloatProgram:
    """Capture a model as ``compile_model`` does, or reuse a kept capture; arguments and errors as there."""
    called = model if forward_fn is None else with_forward_fn(model, forward_fn)
    state = None if reuse is None else state_digest(model, forward_fn)
    twin = Twin(called)  # on a twin, because other threads see the model's mode
    function = twin.model
    samples, calibration = read_samples(function, tracing_inputs, calibration_inputs, data_transform_fn)
    check_calibration(function, calibration)
    with suppress(NotImplementedError):  # the mode of an exported program is part of its graph
        as_module(function).eval()
    progress(Progress("capture", 0, 1))
    with tracing(progress):
        axes = DynamicAxes.infer(samples, function) if dynamic_axes is None else dynamic_axes
        wanted = Wanted(
            called=(model, forward_fn),
            state=state,
            twin=twin,
            samples=with_static_sizes_of_first(samples, axes, function),
            axes=axes,
            leaves=(),
            fullgraph=fullgraph,
            is_plan=False,
            own_weights=False,
            keeps_mode=False,
        )
        name = type(as_module(model)).__name__
        target = target_for(deployment_settings)
        first_task = partial(CompileTask.of, target, deployment_settings, compile_options, name)
        stage = captured_or_reused(wanted, None if reuse is None else reuse.table, first_task)
        if isinstance(stage.task, Failure):
            text = f"No layer can be quantized, because the whole model is one leaf module. {stage.task.remedy}"
            raise NothingCompiledError(text, stage.task)
        task = replace(
            stage.task,
            target=target,
            settings=deployment_settings,
            options=compile_options,
            name=name,
            calibration=tuple(calibration),
            fullgraph=fullgraph,
        )
        with stage.checked([*wanted.samples, *calibration]):
            found = FloatProgram.of_task(task)
    progress(Progress("capture", 1, 1))
    return found
