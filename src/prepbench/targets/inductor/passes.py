"""Quantized graphs in the forms for which Inductor has integer kernels; the rest as float."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, argument_names, schema_of
from prepbench.targets.pooling import is_mean
from prepbench.targets.weights import QuantizedWeight, fit_weights, input_of, lowered_program, operator_name

aten = torch.ops.aten
Program = torch.export.ExportedProgram


def fit_to_inductor(program: Program) -> Program:
    """A program that computes the same; the one given where nothing is to be changed.

    - Blocks of weights are taken apart into operators that Inductor knows.
    - Weights for which there is no integer kernel are stored in float; they would be dequantized at each call.
    - Activations of 16 bits are rounded in float, exactly: patterns for 8 bits stumble over them.
    - Quantized linear layers that read transposed activations, or some of dynamic sizes, which Inductor may transpose,
      get them as matrices: their other form, batches of products with a weight that is repeated, stops Inductor's
      patterns (torch 2.13).
    - Convolutions without padding have a 0 for each dim: packing weights for a size reads as many (torch 2.13).
    - Quantized convolutions over a line become those over an image of one row: Inductor mistakes the size of their
      results, and computes what follows for it (torch 2.13).
    - Inputs that are added, and what is computed from constants, are negated and subtracted instead: the integer
      kernels would add in place, and change the caller's tensor, or the constant from call to call (torch 2.13).
    - Pooling windows larger than the image become means: the loops of Inductor's kernel are as long as the window.
    """
    from prepbench.quantize.blocks import decompose_blocks

    program = decompose_blocks(program)
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    rewrites = (_spell_padding, _round_in_float, _widen_lines, _flatten_linears, _spare_lasting, _average_images)
    changes = [fit_weights(module, _bits), *(rewrite(module) for rewrite in rewrites)]
    if not any(changes):
        return program
    module.recompile()
    return lowered_program(module, program)


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
        steps: list[tuple[OpOverload, tuple[Any, ...]]]
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
    return found


def _widen_lines(module: fx.GraphModule) -> bool:
    """Compute quantized convolutions over a line as those over an image of one row, in place."""
    found = False
    for node in list(module.graph.nodes):
        if node.target not in _OF_IMAGES or not all(_is_dequantized(operand) for operand in node.args[:2]):
            continue
        source, weight = node.args[:2]
        names = argument_names(node.target)
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        with module.graph.inserting_before(node):
            for name, operand in (("input", source), ("weight", weight)):
                rows = module.graph.call_function(aten.unsqueeze.default, (operand.args[0], 2))
                given[name] = module.graph.call_function(operand.target, (rows, *operand.args[1:]), operand.kwargs)
            for name, of_rows in (("stride", 1), ("padding", 0), ("dilation", 1)):
                if isinstance(given.get(name), list):
                    given[name] = [of_rows, *given[name]]
            image = module.graph.call_function(_OF_IMAGES[node.target], (), given)
            line = module.graph.call_function(aten.squeeze.dim, (image, 2))
        line.meta = dict(node.meta)
        node.replace_all_uses_with(line)
        module.graph.erase_node(node)
        found = True
    return found


_OF_IMAGES = {aten.conv1d.default: aten.conv2d.default, aten.conv1d.padding: aten.conv2d.padding}


def _is_dequantized(node: Any) -> bool:
    return operator_name(node).startswith("quantized_decomposed.dequantize")


def _flatten_linears(module: fx.GraphModule) -> bool:
    """Let quantized linear layers read matrices where their input may be transposed, in place."""
    found = False
    for node in list(module.graph.nodes):
        if node.target is not aten.linear.default or operator_name(node.args[0]) != _DEQUANTIZE:
            continue
        source = node.args[0]
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.ndim < 3:
            continue
        if value.is_contiguous() and all(isinstance(size, int) for size in value.shape):
            continue
        with module.graph.inserting_before(node):
            sizes = [
                size if isinstance(size, int) else module.graph.call_function(aten.sym_size.int, (source, dim))
                for dim, size in enumerate(value.shape[:-1])
            ]
            matrix = module.graph.call_function(aten.reshape.default, (source, [-1, value.shape[-1]]))
        with module.graph.inserting_after(node):
            result = module.graph.call_function(aten.reshape.default, (node, [*sizes, node.meta["val"].shape[-1]]))
        for created in (matrix, result, *(size for size in sizes if isinstance(size, fx.Node))):
            created.meta = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}
        node.replace_all_uses_with(result, delete_user_cb=lambda user, kept=result: user is not kept)
        node.update_arg(0, matrix)
        found = True
    return found


def _spare_lasting(module: fx.GraphModule) -> bool:
    """Rewrite additions to what outlives a call of a quantized graph as subtractions, in place."""
    if not any(operator_name(node) == _DEQUANTIZE for node in module.graph.nodes):
        return False
    lasting = _lasting(module.graph)
    found = False
    for node in list(module.graph.nodes):
        if node.target not in _SUBTRACTIONS or node.kwargs or len(node.args) != 2:
            continue
        first, second = node.args
        if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
            continue
        if node.target is aten.add.Tensor and first in lasting:
            first, second = second, first
        if second not in lasting or not second.meta["val"].is_floating_point():
            continue
        with module.graph.inserting_before(node):
            negative = module.graph.call_function(aten.neg.default, (second,))
        negative.meta = dict(second.meta)
        node.target, node.args = _SUBTRACTIONS[node.target], (first, negative)
        found = True
    return found


_SUBTRACTIONS = {aten.add.Tensor: aten.sub.Tensor, aten.add_.Tensor: aten.sub_.Tensor}


def _lasting(graph: fx.Graph) -> set[fx.Node]:
    """What has its memory before and after a call: inputs, views of them, and what depends on no input."""
    varying, lasting = set[fx.Node](), set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        if node.op == "placeholder" or node not in varying or _viewed(node) in lasting:
            lasting.add(node)
    return lasting


def _viewed(node: fx.Node) -> fx.Node | None:
    """The node whose memory a node may return."""
    if node.target is operator.getitem:  # of the parts that an operator splits a tensor into
        return node.all_input_nodes[0]
    if not isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return None
    is_view = node.target in _MAY_SHARE or any(value.alias_info for value in schema_of(node.target).returns)
    return node.all_input_nodes[0] if is_view else None


_MAY_SHARE = (aten.reshape.default, aten.flatten.using_ints, aten.contiguous.default)


def _average_images(module: fx.GraphModule) -> bool:
    """Replace average pooling whose one window holds the whole image by a mean, in place."""
    found = False
    for node in list(module.graph.find_nodes(op="call_function", target=aten.avg_pool2d.default)):
        source = input_of(node)
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or not is_mean(value.shape[-2:], *node.args[1:], **node.kwargs):
            continue
        with module.graph.inserting_before(node):
            mean = module.graph.call_function(aten.mean.dim, (source, [-2, -1], True))
        mean.meta = dict(node.meta)
        node.replace_all_uses_with(mean)
        module.graph.erase_node(node)
        found = True
    return found


def _spell_padding(module: fx.GraphModule) -> bool:
    """Give convolutions with the padding "valid" zeros instead, in place."""
    found = False
    for target in (aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding):
        for node in module.graph.find_nodes(op="call_function", target=target):
            names = argument_names(target)
            given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            if given.get("padding", "valid") == "valid":
                node.target = getattr(aten, target.overloadpacket.__name__).default
                node.args = (given.pop("input"), given.pop("weight"))
                node.kwargs = {**given, "padding": [0] * (node.meta["val"].ndim - 2)}
                found = True
    return found
