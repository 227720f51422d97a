"""A dry run: what a compile would do, without doing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import fx

from prepbench.compile.report import CompileReport
from prepbench.compile.request import Request, Stages, float_bytes
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
    if request.explained:
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
        unsupported += _lacking(request.target.unsupported_nodes(request.program))
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


def _lacking(nodes: Sequence[fx.Node]) -> list[str]:
    """Operators with the modules that call them and how often."""
    places: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        places[str(node.target).removesuffix(".default"), str(stack[-1][0]) if stack else ""] += 1
    return [
        f"{fqn or 'the model'}: {operator}" + (f" ({count} times)" if count > 1 else "")
        for (operator, fqn), count in places.items()
    ]
