"""Rewrite a graph so that Inductor selects its integer kernels and avoids its known bugs."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, argument_names, schema_of
from prepbench.settings.numbers import FLOAT32, INT8, UINT8, NumberFormat
from prepbench.targets.decompose import decompose
from prepbench.targets.floors import FLOOR_DIVISIONS
from prepbench.targets.pooling import adaptive_average, adaptive_maximum, average_pool, is_mean, maximum_pool
from prepbench.targets.weights import QuantizedWeight, fit_weights, input_of, lowered_program, operator_name

aten = torch.ops.aten
Program = torch.export.ExportedProgram


def fit_to_inductor(program: Program) -> Program:
    """Run all passes on a program; its results stay the same.

    - Weights quantized in blocks are decomposed into operators that Inductor knows.
    - Weights without an integer kernel are stored in float, because they would be dequantized in each call.
    - 16-bit activations are rounded in float, which is exact: Inductor's patterns for 8 bits fail on them.
    - Quantized linear layers read a matrix where their input is transposed or may be, because of dynamic sizes.
      Inductor would compute a batch of products with a repeated weight, which its patterns do not match (torch 2.13).
    - The padding "valid" becomes a 0 for each dim, because packing weights reads one number for each (torch 2.13).
    - Quantized 1d convolutions become 2d convolutions over one row, because Inductor takes their results for longer
      than they are (torch 2.13).
    - Instead of adding an input, or something computed from constants alone, its negative is subtracted. The integer
      kernels add in place, and would change the caller's tensor, or the constant in each call (torch 2.13).
    - Adaptive pooling over sizes that change, and windows that ``ceil_mode`` leaves out, become other operators:
      Inductor asks how large the first are, and keeps the second (torch 2.13).
    - A table whose rows a lookup shortens (``nn.Embedding(max_norm=)``) is shortened for this lookup, because Inductor
      returns what is written into weights as a further result.
    - Floor division of floating-point numbers takes the remainder first, as torch does.
    - Average pooling over the whole image becomes a mean, because Inductor's loops are as long as the window.

    Returns:
        The rewritten program, or ``program`` itself where no pass applies.
    """
    from prepbench.quantize.rows import decompose_blocks

    program = decompose(decompose_blocks(program), {**_POOLING, **FLOOR_DIVISIONS})
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    passes = (
        _shorten_rows, _spell_padding, _round_in_float, _widen_conv1d, _flatten_linears, _subtract_negatives,
        _average_images,
    )  # fmt: skip
    applied = [fit_weights(module, _format), *(run(module) for run in passes)]
    if not any(applied):
        return program
    module.recompile()
    return lowered_program(module, program)


_POOLING: dict[Any, Any] = {
    aten.adaptive_avg_pool1d.default: adaptive_average(1),
    aten.adaptive_avg_pool2d.default: adaptive_average(2),
    aten.adaptive_avg_pool3d.default: adaptive_average(3),
    aten.adaptive_max_pool1d.default: adaptive_maximum(1),
    aten.adaptive_max_pool2d.default: adaptive_maximum(2),
    aten.adaptive_max_pool3d.default: adaptive_maximum(3),
    aten.avg_pool1d.default: average_pool(1),
    aten.avg_pool2d.default: average_pool(2),
    aten.avg_pool3d.default: average_pool(3),
    aten.max_pool1d.default: maximum_pool(1),
    aten.max_pool2d.default: maximum_pool(2),
    aten.max_pool3d.default: maximum_pool(3),
}


def _shorten_rows(module: fx.GraphModule) -> bool:
    """Let lookups read a shortened copy of their table. It has the rows that the table itself would have."""
    found = False
    for node in list(module.graph.nodes):
        if node.target is not aten.embedding_renorm_.default:
            continue
        found, table = True, node.args[0]
        while table.target is aten.detach.default:
            table = table.args[0]
        with module.graph.inserting_before(node):
            copy = module.graph.call_function(aten.embedding_renorm.default, (table, *node.args[1:]))
        copy.meta = dict(table.meta)
        before = set(itertools.takewhile(functools.partial(operator.is_not, copy), module.graph.nodes)) | {copy}
        for each in [each for each in before if _is_same_weight(each, table)]:
            for user in [user for user in each.users if user not in before]:
                user.replace_input_with(each, copy)
        node.replace_all_uses_with(copy)
        module.graph.erase_node(node)
    return found


def _is_same_weight(node: fx.Node, table: fx.Node) -> bool:
    return node is table or (node.op == table.op == "get_attr" and node.target == table.target)


def _format(node: fx.Node, weight: QuantizedWeight) -> NumberFormat:
    source = input_of(node)
    has_kernel = weight.is_symmetric and weight.integers.ndim <= 4 and operator_name(source) == _DEQUANTIZE
    return INT8 if has_kernel and source.args[5] in (UINT8.dtype, INT8.dtype) else FLOAT32


_QUANTIZE = "quantized_decomposed.quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"


def _round_in_float(module: fx.GraphModule) -> bool:
    """Replace 16-bit quantizers by arithmetic on float numbers, in place."""
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
        replace_node(node, value)
        found = True
    return found


def _widen_conv1d(module: fx.GraphModule) -> bool:
    """Replace quantized 1d convolutions by 2d convolutions over one row, in place."""
    found = False
    for node in list(module.graph.nodes):
        if node.target not in _CONV2D or not all(_is_dequantized(operand) for operand in node.args[:2]):
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
            image = module.graph.call_function(_CONV2D[node.target], (), given)
            row = module.graph.call_function(aten.squeeze.dim, (image, 2))
        replace_node(node, row)
        found = True
    return found


_CONV2D = {aten.conv1d.default: aten.conv2d.default, aten.conv1d.padding: aten.conv2d.padding}


def _is_dequantized(node: Any) -> bool:
    return operator_name(node).startswith("quantized_decomposed.dequantize")


def _flatten_linears(module: fx.GraphModule) -> bool:
    """Make quantized linear layers read a matrix where their input may be transposed, in place."""
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


def _subtract_negatives(module: fx.GraphModule) -> bool:
    """Replace additions of long-lived tensors in a quantized graph by subtractions of their negatives, in place."""
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
    """Return the nodes whose memory outlives a call: inputs, views of them, and nodes that depend on no input."""
    varying, lasting = set[fx.Node](), set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        if node.op == "placeholder" or node not in varying or _viewed(node) in lasting:
            lasting.add(node)
    return lasting


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return the node that this one may be a view of."""
    if node.target is operator.getitem:  # one of the tensors that an operator splits another into
        return node.all_input_nodes[0]
    if not isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return None
    is_view = node.target in _MAY_SHARE or any(value.alias_info for value in schema_of(node.target).returns)
    return node.all_input_nodes[0] if is_view else None


_MAY_SHARE = (aten.reshape.default, aten.flatten.using_ints, aten.contiguous.default)


def _average_images(module: fx.GraphModule) -> bool:
    """Replace average pooling over the whole image by a mean, in place."""
    found = False
    for node in list(module.graph.find_nodes(op="call_function", target=aten.avg_pool2d.default)):
        source = input_of(node)
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or not is_mean(value.shape[-2:], *node.args[1:], **node.kwargs):
            continue
        with module.graph.inserting_before(node):
            mean = module.graph.call_function(aten.mean.dim, (source, [-2, -1], True))
        replace_node(node, mean)
        found = True
    return found


def _spell_padding(module: fx.GraphModule) -> bool:
    """Replace the padding "valid" of convolutions by zeros, in place."""
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


# Changes of single nodes in a target's graphs.


def replace_node(node: fx.Node, by: fx.Node) -> None:
    """Replace ``node`` by another node, which adopts its metadata."""
    by.meta = dict(node.meta)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
