"""Quantize a program: from float to integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from prepbench.adapt.trainable_model import TrainableModel, short_name, teach
from prepbench.capture.aten.export_program import dynamic_sizes, export_again
from prepbench.compile.compile_log import StageTimer
from prepbench.compile.kept_stages import KeptCapture
from prepbench.compile.samples import flat_samples
from prepbench.compile.task import CompileTask
from prepbench.errors import CaptureError
from prepbench.freed_memory import give_back
from prepbench.inputs import Sample
from prepbench.quantize import (
    Account,
    LayerReport,
    Observed,
    Score,
    TensorReport,
    calibrate,
    choose_weight_schemes,
    convert,
    insert_observers,
)
from prepbench.quantize.calibration import read_weights
from prepbench.quantize.conversion import Stored, name_weights
from prepbench.quantize.decide import Decisions
from prepbench.quantize.floors import InFloat
from prepbench.quantize.layer_reports import decided_report
from prepbench.quantize.observed import fit_biases
from prepbench.quantize.report import QUANTIZED
from prepbench.running.tracing import tracing
from prepbench.targets.kept_programs import tensors_of
from prepbench.targets.programs import is_repeatable


@dataclass(frozen=True)
class Quantized:
    """A quantized program.

    Attributes:
        program: the program.
        layers: the outcome for each layer.
        score: the distance of the outputs from float on calibration samples, simulated; None when not measured.
        tensors: the outcome for each parameter, buffer and constant.
        stored: the constants of the program that hold the integers of weights, by name.
        in_float: the outputs in float on the samples of ``score``; None where others are judged.
    """

    program: torch.export.ExportedProgram
    layers: tuple[LayerReport, ...]
    score: Score | None
    tensors: tuple[TensorReport, ...]
    stored: Mapping[str, Stored] = field(default_factory=dict)
    in_float: InFloat | None = None


def quantize(task: CompileTask, timer: StageTimer, kept: KeptCapture | None = None) -> Quantized:
    """Insert observers, calibrate, choose weight schemes, convert, and re-export with the same dynamic sizes.

    Args:
        task: the program in float, in the types of the target.
        timer: of the stages.
        kept: the statistics of earlier compiles of the same capture; new ones are added.
    """
    known: Quantized | None = None if kept is None else kept.quantized(task)
    if known is not None:
        for stage in ("insert observers", "calibrate", *(("measure",) if task.is_pretrained else ()), "convert"):
            with timer(stage):
                timer.reuse(stage)
        return known
    samples = flat_samples(task.calibration, task.call_spec)
    observed = _measured(task, samples, timer, kept)
    give_back(task.float_bytes)
    tensors = accounted(task, observed)
    with timer("convert"), tracing(timer.progress):
        program, stored = _converted(task, observed, timer, kept)
    give_back(task.float_bytes)
    tensors = tuple(_with_copy(row, program) for row in tensors)
    quantized = Quantized(program, observed.layers, observed.score, tensors, stored, observed.in_float)
    if kept is not None and is_repeatable(program):
        kept.keep_quantized(task, quantized)
    return quantized


def accounted(task: CompileTask, observed: Observed | None) -> tuple[TensorReport, ...]:
    """Return the outcome for each parameter, buffer and constant; ``observed`` is None where nothing is quantized."""
    captured = task.captured
    account = Account(task.program, captured.model, captured.leaves, task.layer_settings)
    if observed is not None:
        account = replace(account, layers=observed.layers, plan=observed.plan)
    return account.rows()


def _with_copy(row: TensorReport, program: torch.export.ExportedProgram) -> TensorReport:
    """Return the row of a tensor, with a note if it is stored in float beside its integers."""
    given = {**program.state_dict, **program.constants}
    names = [name for one in (row.fqn, *row.names) for name in (one, f"{one}_in_float32".replace(".", "_"))]
    if row.outcome != QUANTIZED or not any(name in given for name in names):
        return row
    reasons = (row.reason, "stored in float, too, because something else reads it so")
    return replace(row, reason="; ".join(filter(None, reasons)))


def _measured(task: CompileTask, samples: Sequence[Sample], timer: StageTimer, kept: KeptCapture | None) -> Observed:
    """Return the observed, calibrated and, where weights are trained, measured graph."""
    captured, progress = task.captured, timer.progress
    assert task.layer_settings is not None
    with timer("insert observers"), tracing(progress):
        observed = insert_observers(
            task.program,
            captured.model,
            task.layer_settings,
            task.target.placement,
            captured.leaves,
            options=task.options,
            samples=samples,
            progress=progress,
            statistics=None if kept is None else kept.statistics_in_float(task),
            plain_weights=task.trained is None,
        )
    if task.trained is not None:
        return taught(observed, task.trained)
    statistics = None if kept is None else kept.statistics(task, observed.scaled)
    with timer("calibrate", reports_progress=True):
        observed = calibrate(observed, samples, progress, statistics)
    if task.is_pretrained and task.trained is None:
        with timer("measure", reports_progress=True):
            observed = choose_weight_schemes(observed, samples, progress, statistics)
    timer.reuse(*observed.reused)
    return observed


def taught(observed: Observed, trained: TrainableModel) -> Observed:
    """Return observers with the learned parameters of a trained model's quantizers."""
    read_weights(observed.graph)
    teach(trained, observed.graph)
    fit_biases(observed.graph)
    decisions = Decisions(schemes=dict(trained.parts.schemes))
    layers = (decided_report(row, observed, decisions) for row in observed.layers)
    return replace(observed, layers=tuple(replace(row, fqn=short_name(row.fqn)) for row in layers))


def _converted(
    task: CompileTask, observed: Observed, timer: StageTimer, kept: KeptCapture | None
) -> tuple[torch.export.ExportedProgram, Mapping[str, Stored]]:
    program, module = task.program, convert(observed)
    stored = name_weights(module, observed.plan)
    assert program.example_inputs is not None
    inputs, dynamic = program.example_inputs[0], dynamic_sizes(program)

    def exported() -> torch.export.ExportedProgram:
        return export_again(module, inputs, dynamic, _not_dynamic)

    if kept is None:
        return exported(), stored
    derived, is_known = kept.programs.derive("exported again", module, tensors_of(module), exported)
    timer.reuse(*(["convert: graph"] if is_known else []))
    return derived, stored


def _not_dynamic(name: str) -> CaptureError:
    return CaptureError(
        f"Quantizing fixed the dynamic sizes of the input {name!r}. Make these axes static (DynamicAxes.set), or "
        "compile in float."
    )
