"""Activations with fewer bits than their integer type, whose whole range QuantizeLinear would use."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench._torch_compat.programs import with_graph
from prepbench.targets.onnx.weights import add_initializer, constant_of

Program = torch.export.ExportedProgram
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"


def has_narrow_ranges(program: Program) -> bool:
    """Return whether a quantizer has fewer bits than its type."""
    return any(_limits(node) is not None for node in program.graph.nodes)


def clamp_narrow_ranges(program: Program) -> Program:
    """Clamp the integers of quantizers with fewer bits than their type, because ONNX clamps to the type's limits only.

    The program itself is returned where there are none.
    """
    if not has_narrow_ranges(program):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    module = fx.GraphModule(program.graph_module, graph)
    for node in list(graph.nodes):
        limits = _limits(node)
        if limits is None:
            continue
        readers = list(node.users)
        with graph.inserting_after(node):
            clamped = graph.call_function(torch.ops.aten.clamp.default, (node, *limits))
        clamped.meta = dict(node.meta)
        for reader in readers:
            reader.replace_input_with(node, clamped)
    module.recompile()
    return with_graph(program, module)


def _limits(node: fx.Node) -> tuple[int, int] | None:
    """Return the smallest and the largest integer of a quantizer, if they differ from those of its type."""
    if str(node.target) != _QUANTIZE:
        return None
    low, high, dtype = node.args[3:6]
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(dtype, torch.dtype)
    kind = torch.iinfo(dtype)
    return (low, high) if (low, high) != (kind.min, kind.max) else None


def clip_before_quantizers(model: Any) -> None:
    """Clip values in front of quantizers instead of their integers, in place; the integers stay the same.

    OpenVINO selects its integer kernels only if a quantizer and its dequantizer are adjacent.

    Args:
        model: an ``onnx_ir.Model``.
    """
    import onnx_ir

    for clip in [node for node in model.graph if node.op_type == "Clip"]:
        quantize = clip.inputs[0].producer()
        if quantize is None or quantize.op_type != "QuantizeLinear" or len(quantize.outputs[0].uses()) > 1:
            continue
        limits, (scale, zero_point) = clip.inputs[1:3], (constant_of(value) for value in quantize.inputs[1:3])
        values = [constant_of(value) for value in limits]
        if scale is None or zero_point is None or any(value is None for value in values):
            continue
        names = (f"{clip.name}_{kind}" for kind in ("least", "most"))
        floats = [
            add_initializer(model, name, np.array((float(value) - float(zero_point)) * float(scale), np.float32))
            for name, value in zip(names, values, strict=True)
        ]
        clipped = onnx_ir.node("Clip", [quantize.inputs[0], *floats])
        clipped.outputs[0].shape, clipped.outputs[0].dtype = quantize.inputs[0].shape, quantize.inputs[0].dtype
        model.graph.insert_before(quantize, clipped)
        quantize.replace_input_with(0, clipped.outputs[0])
        onnx_ir.convenience.replace_all_uses_with(clip.outputs[0], quantize.outputs[0])
        model.graph.remove(clip, safe=True)
