"""Arithmetic on integers of the call, on targets that compute it in floating-point numbers."""

from __future__ import annotations

from pathlib import PurePath

import torch
from torch import fx

from prepbench.running.source_lines import place_in_stack_trace
from prepbench.targets import Target

# results that grow, or whose low digits matter; sums and comparisons of ids and positions stay far below the limit
_GROWING = frozenset(
    {"mul", "mul_", "pow", "pow_", "prod", "matmul", "mm", "bmm", "dot", "cumprod", "remainder", "remainder_", "fmod",
     "floor_divide", "bitwise_left_shift", "__lshift__"}
)  # fmt: skip


def integer_remarks(target: Target, program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return a remark where a target rounds integers that a model computes from those of the call."""
    if not target.largest_integer:
        return ()
    inputs = set(program.graph_signature.user_inputs)
    known: set[fx.Node] = set()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
            continue
        if value.dtype is torch.bool:
            continue
        if node.name in inputs or known.intersection(node.all_input_nodes):
            known.add(node)
            name = str(node.target).removeprefix("aten.").partition(".")[0]
            if node.op == "call_function" and name in _GROWING:
                place = place_in_stack_trace(node.meta.get("stack_trace"))
                where = f" ({PurePath(place[0]).name}:{place[1]})" if place else ""
                return (
                    f"{target.display_name} computes integers as float32: {name}{where} is exact up to "
                    f"{target.largest_integer:,} only. Choose ONNX Runtime for larger ones, such as hashes",
                )
    return ()
