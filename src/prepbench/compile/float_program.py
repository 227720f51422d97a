"""A captured float model as plain values and a program, for simulation in this process or another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from prepbench._torch_compat import pytree
from prepbench.calls.call_spec import CallSpec
from prepbench.compile.captured import captured_task
from prepbench.compile.request import CompileRequest
from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.package.compiled import NothingCompiledError
from prepbench.running.tracing import tracing
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    layers_to_quantize,
    module_of_layer,
    tensors_of_layer,
)
from prepbench.settings.rules import layer_named


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
            layer = layer_named(model, module_of_layer(model, fqn))
            count = sum(tensor.numel() for tensor in tensors_of_layer(model, fqn))
            facts[fqn] = LayerFacts(type(layer).__name__, count, isinstance(layer, torch.nn.Embedding))
        samples = tuple(flat_samples(task.calibration, task.call_spec))
        out_spec = task.captured.program.call_spec.out_spec
        program = task.in_types_of_target().program
        return cls(program, task.call_spec, task.settings, task.options, samples, facts, task.name, out_spec)


def captured_in_float(request: CompileRequest, progress: ProgressCallback) -> FloatProgram:
    """Capture a model as ``compile_model`` does, or reuse a kept capture; errors as there."""
    request = request.read()
    progress(Progress("capture", 0, 1))
    stage = captured_task(request, progress)
    if isinstance(stage.task, Failure):
        text = f"No layer can be quantized, because the whole model is one leaf module. {stage.task.remedy}"
        raise NothingCompiledError(text, stage.task)
    with stage.checked(), tracing(progress):
        found = FloatProgram.of_task(stage.task)
    progress(Progress("capture", 1, 1))
    return found
