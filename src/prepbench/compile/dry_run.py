"""A dry run: what a compile would do, without doing it."""

from __future__ import annotations

from prepbench.compile.report import CompileReport
from prepbench.compile.request import Request, Stages, float_bytes
from prepbench.compile.stages import operator_places
from prepbench.errors import SettingsError
from prepbench.quantize import LayerReport, insert_observers


def planned(request: Request, stages: Stages) -> CompileReport:
    """The plan as a report: what becomes of each layer, the operators that the target lacks, the estimated size.

    Layers with candidates are shown with the smallest one; calibration decides. A layer that measuring would give up is
    shown as quantized.
    """
    captured = request.captured
    layers: tuple[LayerReport, ...] = ()
    problem = ""
    if request.explained is not None:
        leaves = {leaf.fqn: leaf.kind for leaf in captured.leaves}
        with stages("plan"):
            try:
                layers = insert_observers(
                    request.program, captured.model, request.explained, request.target.placement, leaves
                ).layers
            except SettingsError as error:
                problem = str(error)
    unsupported = [f"{leaf.fqn or 'the model'}: {leaf.kind}" for leaf in captured.leaves]
    with stages("check operators"):
        unsupported += operator_places(request.target.unsupported_nodes(request.program))
    total = float_bytes(captured.model)
    return CompileReport(
        request.target.name,
        dict(stages.seconds),
        layers,
        total,
        None,
        tuple(leaf.fqn for leaf in captured.leaves),
        name=request.name,
        dry_run=True,
        estimated_bytes=total - sum(map(_saved, layers)),
        unsupported=tuple(unsupported),
        problem=problem,
    )


def _saved(row: LayerReport) -> int:
    """Bytes that quantizing a layer saves, without its scales."""
    return row.parameters * (32 - row.weights_bits) // 8 if row.quantized else 0
