"""A dry run: the plan of a compile, and the memory that it would need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from prepbench.adapt.trainable_model import short_name
from prepbench.capture.aten.computed_in_float32 import HALF_TYPES
from prepbench.compile.compile_log import StageTimer
from prepbench.compile.lowering import operator_places
from prepbench.compile.quantize_program import accounted
from prepbench.compile.simulation import stored_bytes
from prepbench.compile.task import CompileTask
from prepbench.errors import SettingsError
from prepbench.objects.restore import state_bytes
from prepbench.package.report import CompileReport, megabytes, names_of
from prepbench.package.variants import joined_report, variant_text
from prepbench.quantize import (
    NEEDS_MOMENTS,
    LayerReport,
    Observed,
    Placement,
    WeightScheme,
    insert_observers,
    products_bytes,
)
from prepbench.quantize.input_hessians import fitting_schemes
from prepbench.running.tracing import tracing
from prepbench.settings.numbers import FLOAT32
from prepbench.settings.quantization import weight_formats


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
    problem, saved = "", 0
    tensors = accounted(task, None)
    if task.layer_settings is not None:
        with timer("plan"), tracing(timer.progress):
            try:
                observed = insert_observers(
                    task.program, captured.model, task.layer_settings, task.target.placement, captured.leaves
                )
                tensors = accounted(task, observed)
                saved = _saved(observed, task.target.placement)
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
        estimated_bytes=present + computed - as_captured - saved,
        unsupported=tuple(unsupported),
        problem=problem,
        remarks=(*task.remarks, f"compiling takes at least {megabytes(needed)} of memory beyond the model"),
        pruned=task.pruned,
        tensors=tensors,
    )


def _with_candidates(row: LayerReport, task: CompileTask) -> LayerReport:
    """Return the row with the candidate bits among which measurement would decide."""
    settings = next(layer.settings for layer in task.layer_settings or () if layer.fqn == row.fqn)
    if settings is None or not row.quantized or not task.is_pretrained:
        return row
    bits = {one.bits for one in weight_formats(settings)}
    return replace(row, bits_to_measure=tuple(sorted(bits))) if len(bits) > 1 else row


def _bytes(program: torch.export.ExportedProgram, *, in_float32: bool = False) -> int:
    """Return the bytes of the program's tensors, those in half precision as they are or as float32."""
    tensors = {id(tensor): tensor for tensor in program.state_dict.values()}
    return sum(
        tensor.numel() * (4 if in_float32 and tensor.dtype in HALF_TYPES else tensor.element_size())
        for tensor in tensors.values()
    )


def _saved(observed: Observed, placement: Placement) -> int:
    """Return the bytes saved by storing integers, scales and zero points in place of weights in float32."""
    saved: dict[str, int] = {}
    for row in observed.layers:
        if not row.quantized or row.fqn not in observed.plan.nodes:
            continue
        scheme = fitting_schemes(observed.plan, row.fqn)[0][0]
        bits = placement.stored_bits(row.weights_bits, weights_only=row.activations_bits == FLOAT32.bits)
        for layer in observed.plan.nodes[row.fqn]:
            for weight in layer.weights:
                value = weight.meta["val"]
                saved[weight.name] = 4 * int(value.numel()) - stored_bytes(value, layer.axis, scheme, bits)
    return sum(saved.values())


# Estimate the memory of a compile before any weight is touched.


_GROUP = Path("/sys/fs/cgroup")
# bytes of a scale in float32
_SCALE = 4


def memory_needed(task: CompileTask) -> int:
    """Return a lower bound on the bytes that a compile holds at a time, beyond the model and loaded libraries.

    Activations and the memory of the target's own compiler come on top.
    """
    schemes = _schemes(task)
    names: dict[int, list[str]] = {}
    for name, tensor in task.program.state_dict.items():
        names.setdefault(id(tensor), []).append(name)
    weights = [task.program.state_dict[same[0]] for same in names.values()]
    found = [next((schemes[name] for name in same if name in schemes), None) for same in names.values()]
    parameters = task.program.graph_signature.inputs_to_parameters
    cast_later = {parameters[name] for name in task.weights_cast_later}
    types = task.target.types_to_replace(task.program) if task.layer_settings is None else HALF_TYPES
    converted = left = integers = packed = 0
    for weight, scheme, same in zip(weights, found, names.values(), strict=True):
        is_later = cast_later.issuperset(same)
        if weight.dtype in types and not is_later:
            converted += 4 * weight.numel()
        if scheme is not None and weight.ndim > 1:
            scales = weight.numel() // (scheme.block_size or weight.shape[1]) * _SCALE
            integers += weight.numel() + scales
            packed += weight.numel() * scheme.bits // 8 + scales
        elif is_later:
            left += 4 * weight.numel()
    largest = 4 * max((weight.numel() for weight in weights), default=0)
    products = products_bytes(weight for weight, scheme in zip(weights, found, strict=True) if _looks(scheme))
    measuring = packed + max(products, 2 * largest) if integers else 0
    # the program with its integers, while the target's file is written
    return converted + max(measuring, packed + integers + left)


def check_memory(task: CompileTask) -> None:
    """Raise for a compile that cannot fit.

    Raises:
        SettingsError: it holds more at the same time than there is; says how much, and what would fit.
    """
    needed, free = memory_needed(task), available_memory()
    if needed <= free:
        return
    remedies = [f"{text} takes {_gb(less)}" for text, less in _other_ways(task).items() if less <= free]
    remedies += [f"a model of this kind with {100 * free // needed} % of the weights would fit"]
    raise SettingsError(
        f"Compiling {task.name} for {task.target.display_name} takes at least {_gb(needed)} of memory beyond the "
        f"model, and {_gb(free)} are available: {'; '.join(remedies)}. Or end other programs."
    )


def _other_ways(task: CompileTask) -> Mapping[str, int]:
    """Return changes of the arguments that take less memory, with their need."""
    if task.layer_settings is None:
        return {}
    options = replace(task.options, smooth_quant=False, cross_layer_equalization=False)
    rows = [
        row if row.settings is None else replace(row, settings=replace(row.settings, weights_algorithm="nearest"))
        for row in task.layer_settings
    ]
    plain = replace(task, options=options)
    return {
        "without smooth_quant and cross_layer_equalization it": memory_needed(plain),
        'with weights_algorithm="nearest" too it': memory_needed(replace(plain, layer_settings=tuple(rows))),
    }


def available_memory() -> int:
    """Return the bytes available to this process, in the machine and in its container."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        lines = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        told = {name: int(count) for name, count in lines}
        # the page cache is reclaimable
        kept = int(used) - (told["file"] - told["shmem"])
        return free if limit == "max" else min(free, int(limit) - kept)
    except (OSError, ValueError, KeyError):
        return free


def _schemes(task: CompileTask) -> dict[str, WeightScheme]:
    """Return the first scheme of each quantized layer, by the name of its weight."""
    rows = [row for row in task.layer_settings or () if row.settings is not None]
    return {
        f"{row.fqn}.weight": WeightScheme.of(next(row.settings.candidates()))
        for row in rows
        if row.settings is not None
    }


def _looks(scheme: WeightScheme | None) -> bool:
    return scheme is not None and scheme.algorithm in NEEDS_MOMENTS


def _gb(size: int) -> str:
    return f"{size / 1e9:.2g} GB"
