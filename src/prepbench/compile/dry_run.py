"""A dry run: the plan of a compile."""

from __future__ import annotations

from dataclasses import replace

import torch

from prepbench.adapt.adapters import short_name
from prepbench.capture.aten.computed_in_float32 import HALF_TYPES
from prepbench.compile.joined_variants import joined_report
from prepbench.compile.lowering import operator_places
from prepbench.compile.memory import memory_needed
from prepbench.compile.quantize_program import accounted
from prepbench.compile.report import CompileReport, names_of
from prepbench.compile.stage_timer import StageTimer
from prepbench.compile.task import CompileTask
from prepbench.compile.variants import variant_text
from prepbench.errors import SettingsError
from prepbench.quantize import LayerReport, insert_observers
from prepbench.running.module_state import state_bytes
from prepbench.running.tracing import tracing


def planned(task: CompileTask, timer: StageTimer) -> CompileReport:
    """Return the plan as a report: how each layer is quantized, unsupported operators, estimated size.

    Where a layer has several candidates, the plan says so and counts the smallest one, because only calibration can
    choose. A layer that falls below the floor when it is measured is still shown as quantized.
    """
    if task.variants:
        plans = [planned(one, timer) for one in task.of_variants()]
        size = sum(plan.estimated_bytes or 0 for plan in plans)
        texts = [variant_text([s.index for s in v.captured.samples], v.captured.conditions) for v in task.variants]
        problems = [plan.problem for plan in plans]
        return joined_report(plans, texts, estimated_bytes=size, problem=problems[0] if all(problems) else "")
    captured, as_captured, needed = task.captured, _bytes(task.program), memory_needed(task)
    task = task.in_types_of_target()
    layers: tuple[LayerReport, ...] = ()
    problem = ""
    tensors = accounted(task, None)
    if task.layer_settings is not None:
        with timer("plan"), tracing(timer.progress):
            try:
                observed = insert_observers(
                    task.program, captured.model, task.layer_settings, task.target.placement, captured.leaves
                )
                tensors = accounted(task, observed)
                layers = tuple(_with_candidates(row, task) for row in observed.layers)
                layers = tuple(replace(row, fqn=short_name(row.fqn)) for row in layers)
            except SettingsError as error:
                problem = str(error)
    unsupported = [f"{leaf.part}: {leaf.kind}" for leaf in captured.leaves]
    with timer("check operators"), tracing(timer.progress):
        unsupported += operator_places(task.target.unsupported_nodes(task.program))
    present, computed = state_bytes(captured.model), _bytes(task.program, in_float32=task.layer_settings is not None)
    return CompileReport(
        task.target.name,
        dict(timer.seconds),
        layers,
        task.float_bytes,
        None,
        names_of(captured.leaves),
        name=task.name,
        dry_run=True,
        estimated_bytes=present + computed - as_captured - sum(map(_saved, layers)),
        unsupported=tuple(unsupported),
        problem=problem,
        remarks=(*task.remarks, f"compiling takes at least {needed / 1e6:.2f} MB of memory beyond the model"),
        pruned=task.pruned,
        tensors=tensors,
    )


def _with_candidates(row: LayerReport, task: CompileTask) -> LayerReport:
    """Return the row with the candidate bits among which measurement would decide."""
    settings = next(layer.settings for layer in task.layer_settings or () if layer.fqn == row.fqn)
    if settings is None or not row.quantized or not task.is_pretrained:
        return row
    numbers = (candidate.weights_num_bits for candidate in settings.candidates())
    bits = {number for number in numbers if isinstance(number, int)}
    return replace(row, bits_to_measure=tuple(sorted(bits))) if len(bits) > 1 else row


def _bytes(program: torch.export.ExportedProgram, *, in_float32: bool = False) -> int:
    """Return the bytes of the program's tensors, those in half precision as they are or as float32."""
    tensors = {id(tensor): tensor for tensor in program.state_dict.values()}
    return sum(
        tensor.numel() * (4 if in_float32 and tensor.dtype in HALF_TYPES else tensor.element_size())
        for tensor in tensors.values()
    )


def _saved(row: LayerReport) -> int:
    """Return the bytes saved by quantizing a float32 layer, without its scales."""
    return row.parameters * (32 - row.weights_bits) // 8 if row.quantized else 0
