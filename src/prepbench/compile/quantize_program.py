"""From the program in float to the quantized program."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prepbench.capture.aten.export_again import dynamic_sizes, export_again
from prepbench.compile.samples import flat_samples
from prepbench.compile.stage_timer import StageTimer
from prepbench.compile.task import CompileTask
from prepbench.errors import CaptureError
from prepbench.quantize import LayerReport, calibrate, choose_weight_schemes, convert, insert_observers
from prepbench.running.tracing import tracing


@dataclass(frozen=True)
class Quantized:
    """A quantized program.

    Attributes:
        program: the program.
        layers: what was done to each layer.
        model_sqnr: SQNR of the outputs on calibration samples in dB; None when not measured.
    """

    program: torch.export.ExportedProgram
    layers: tuple[LayerReport, ...]
    model_sqnr: float | None


def quantize(task: CompileTask, timer: StageTimer) -> Quantized:
    """Insert observers, calibrate, choose weight schemes, convert, and export again with the same dynamic sizes."""
    program, captured, progress = task.program, task.captured, timer.progress
    assert task.layer_settings is not None
    assert program.example_inputs is not None
    samples = flat_samples(task.calibration, task.call_spec)
    with timer("insert observers"), tracing(progress):
        observed = insert_observers(
            program,
            captured.model,
            task.layer_settings,
            task.target.placement,
            {leaf.fqn: leaf.kind for leaf in captured.leaves},
            options=task.options,
            samples=samples,
            progress=progress,
        )
    with timer("calibrate", reports_progress=True):
        observed = calibrate(observed, samples, progress)
    if task.is_pretrained:
        with timer("measure", reports_progress=True):
            observed = choose_weight_schemes(observed, samples, progress)
    with timer("convert"), tracing(progress):
        inputs, dynamic = program.example_inputs[0], dynamic_sizes(program)
        converted = export_again(convert(observed), inputs, dynamic, _not_dynamic)
    return Quantized(converted, observed.layers, observed.model_sqnr)


def _not_dynamic(name: str) -> CaptureError:
    return CaptureError(
        f"Quantizing fixed the dynamic sizes of the input {name!r}. Make these axes static (DynamicAxes.set), or "
        "compile in float."
    )
