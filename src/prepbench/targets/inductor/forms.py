"""Quantized graphs in the forms for which Inductor has integer kernels; the rest as float."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.targets.weights import QuantizedWeight, export_again, fit_weights, input_of, operator_name

aten = torch.ops.aten
Program = torch.export.ExportedProgram


def fit_to_inductor(program: Program) -> Program:
    """A program that computes the same; the one given where nothing is to be changed.

    - Blocks of weights are taken apart into operators that Inductor knows.
    - Weights for which there is no integer kernel are stored in float; they would be dequantized at each call.
    - Activations of 16 bits are rounded in float, exactly: patterns for 8 bits stumble over them.
    """
    from prepbench.quantize.blocks import decompose_blocks

    program = decompose_blocks(program)
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    found = fit_weights(module, _bits)
    return export_again(module, program) if _round_in_float(module) or found else program


def _bits(node: fx.Node, weight: QuantizedWeight) -> int:
    source = input_of(node)
    has_kernel = weight.is_symmetric and weight.integers.ndim <= 4 and operator_name(source) == _DEQUANTIZE
    return 8 if has_kernel and source.args[5] in (torch.uint8, torch.int8) else 0


_QUANTIZE = "quantized_decomposed.quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"


def _round_in_float(module: fx.GraphModule) -> bool:
    """Replace what quantizes to 16 bits and back, in place; the integers are float numbers in between."""
    found = False
    for node in list(module.graph.nodes):
        if operator_name(node) not in (_QUANTIZE, _DEQUANTIZE) or node.args[5] is not torch.int16:
            continue
        value, scale, zero_point, lowest, highest = tuple[Any, ...](node.args[:5])
        steps: list[tuple[torch._ops.OpOverload, tuple[Any, ...]]]
        if operator_name(node) == _QUANTIZE:
            steps = [
                (aten.mul.Tensor, (1 / scale,)),
                (aten.round.default, ()),
                (aten.add.Tensor, (zero_point,)),
                (aten.clamp.default, (lowest, highest)),
            ]
        else:
            steps = [(aten.sub.Tensor, (zero_point,)), (aten.mul.Tensor, (scale,))]
        with module.graph.inserting_before(node):
            for operator, arguments in steps:
                value = module.graph.call_function(operator, (value, *arguments))
                value.meta = dict(node.meta)
        node.replace_all_uses_with(value)
        module.graph.erase_node(node)
        found = True
    if found:
        module.recompile()
    return found
