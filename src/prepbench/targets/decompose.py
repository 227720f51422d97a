"""Replace operators of a program by equivalent ones."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from prepbench._torch_compat.operators import OpOverload
from prepbench._torch_compat.programs import with_graph
from prepbench._torch_compat.sizes import exact_zero_one, sizes_from_values
from prepbench.patching import warnings_ignored_here

Program = torch.export.ExportedProgram


def decompose(program: Program, decompositions: Mapping[OpOverload, Callable[..., Any]]) -> Program:
    """Replace some operators by equivalent ones; ``run_decompositions`` would retrace the whole program.

    Args:
        program: it is not changed.
        decompositions: for an operator a function of its arguments that runs the others. It returns
            ``NotImplemented`` for arguments that it does not take; the operator then stays. So it does where one of
            several results is None, and read.

    Returns:
        The changed program, or ``program`` itself where it has none of the operators.
    """
    if not any(node.target in decompositions for node in program.graph.nodes):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    module = fx.GraphModule(program.graph_module, graph)
    traced: dict[Hashable, fx.GraphModule | None] = {}  # the blocks of a network have the same operators
    for node in list(graph.nodes):
        if node.target in decompositions:
            steps = _traced(node, decompositions[node.target], traced)
            if steps is not None and _gives_what_is_read(node, steps.graph):
                _replace(node, steps.graph)
    for view in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        # the replaced node may have had another memory layout
        view.target = torch.ops.aten.reshape.default
    choose_known(module)
    module.recompile()
    return with_graph(program, module)


def _traced(
    node: fx.Node, decomposition: Callable[..., Any], traced: dict[Hashable, fx.GraphModule | None]
) -> fx.GraphModule | None:
    """Return a decomposition's operators for a node's arguments, shared by ``traced``; None if unsupported."""
    form = _form(node)
    if form not in traced:
        traced[form] = steps = _newly_traced(node, decomposition)
        if steps is not None and _has_new_sizes(node, steps.graph):
            del traced[form]
            return steps
    return traced[form]


def _form(node: fx.Node) -> Hashable:
    """Return what two nodes have in common whose decompositions are equal but for their operands."""
    operands = node.all_input_nodes
    places = {operand: f"operand {index}" for index, operand in enumerate(operands)}
    call = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: places[operand])
    return node.target, repr(call), tuple(_layout(operand.meta["val"]) for operand in operands)


def _layout(value: Any) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, str(value)
    # a view and a tensor that takes gradients may be decomposed in another way
    is_view, strides = value._is_view(), str(value.stride()) if value.layout == torch.strided else ""
    return value.dtype, str(value.shape), strides, value.layout, value.device, value.requires_grad, is_view


def _has_new_sizes(node: fx.Node, steps: fx.Graph) -> bool:
    """Return whether a decomposition makes sizes that are known only when it runs: each node needs its own."""
    given = sizes_from_values([operand.meta["val"] for operand in node.all_input_nodes])
    return not sizes_from_values([step.meta.get("val") for step in steps.nodes]) <= given


def _newly_traced(node: fx.Node, decomposition: Callable[..., Any]) -> fx.GraphModule | None:
    operands = node.all_input_nodes
    is_taken = True

    def run(*given: torch.Tensor) -> Any:
        nonlocal is_taken
        by_node = dict(zip(operands, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: by_node[operand])
        result = decomposition(*args, **kwargs)
        is_taken = result is not NotImplemented
        return result if is_taken else given[0]

    # torch warns about its own internals, and would narrow the program's sizes where one computed from them is 1
    with warnings_ignored_here(), torch.no_grad(), exact_zero_one():
        values = [operand.meta["val"] for operand in operands]
        steps = make_fx(run, tracing_mode="symbolic", pre_dispatch=True)(*values)
    return steps if is_taken else None


def _replace(node: fx.Node, steps: fx.Graph) -> None:
    """Copy operators in front of a node, connect its operands, and erase it."""
    copies = dict(zip(steps.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
    origin = {key: node.meta[key] for key in _ORIGIN if key in node.meta}
    with node.graph.inserting_before(node):
        for step in steps.nodes:
            if step.op == "output":
                _read_instead(node, fx.node.map_arg(step.args[0], lambda result: copies[result]))
            elif step.op != "placeholder":
                copies[step] = node.graph.node_copy(step, lambda source: copies[source])
                copies[step].meta = {**origin, "val": step.meta["val"]}
    node.graph.erase_node(node)


def _gives_what_is_read(node: fx.Node, steps: fx.Graph) -> bool:
    """Return whether a decomposition, which may omit some of several results, returns those that are read."""
    result: Any = steps.output_node().args[0]
    return isinstance(result, fx.Node) or all(
        isinstance(result[user.args[1]], fx.Node)
        for user in node.users
        if user.target is operator.getitem and user.users
    )


def _read_instead(node: fx.Node, result: Any) -> None:
    """Make the users of a node read another one, or its parts other ones."""
    if isinstance(result, fx.Node):
        node.replace_all_uses_with(result)
        return
    for user in list(node.users):
        assert user.target is operator.getitem
        if user.users:
            user.replace_all_uses_with(result[user.args[1]])
        user.graph.erase_node(user)


# metadata on the module and line that an operator comes from
_ORIGIN = ("nn_module_stack", "stack_trace", "from_node")


def sized_transposed() -> dict[OpOverload, Callable[..., Any]]:
    """Return the forms of transposed convolutions whose ``output_padding`` is computed from sizes.

    Targets take numbers there. It only adds values at the end, so the longest result is computed and cut.
    """
    aten = torch.ops.aten
    operators = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
    return {each: functools.partial(_cut, each) for each in operators}


def _cut(
    convolution: OpOverload,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[Any] = (0,),
    output_padding: Sequence[Any] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Any:
    if not any(isinstance(each, torch.SymInt) for each in output_padding):
        return NotImplemented
    count = len(output_padding)
    most = [max(stride[place % len(stride)], dilation[place % len(dilation)]) - 1 for place in range(count)]
    longest = convolution(x, weight, bias, stride, padding, most, groups, dilation)
    for dim, (given, taken) in enumerate(zip(output_padding, most, strict=True), start=-count):
        longest = longest.narrow(dim, 0, longest.shape[dim] - taken + given)
    return longest


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute ``aten.scaled_dot_product_attention`` as two products with a softmax between them."""
    if enable_gqa:
        key, value = (_repeat_heads(tensor, query.shape[-3]) for tensor in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if is_causal:
        rows, columns = (torch.arange(tensor.shape[-2], device=query.device) for tensor in (query, key))
        attn_mask = rows.unsqueeze(-1) >= columns
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    weights = _attention_weights(scores, attn_mask)
    return torch.matmul(torch.dropout(weights, dropout_p, True) if dropout_p else weights, value)


def _attention_weights(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of the unmasked scores; 0 in fully masked rows, as in PyTorch."""
    if mask is None:
        return torch.softmax(scores, -1)
    if mask.dtype == torch.bool:
        weights = torch.softmax(torch.where(mask, scores, torch.finfo(scores.dtype).min), -1)
        return torch.where(mask, weights, 0.0)
    return torch.where(mask == -math.inf, 0.0, torch.softmax(scores + mask, -1))


def _repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the heads of keys or values, each repeated for the queries that share it."""
    groups = heads // tensor.shape[-3]
    shape = (*tensor.shape[:-2], groups, *tensor.shape[-2:])
    return tensor.unsqueeze(-3).expand(shape).flatten(-4, -3)


# Attention masks without effect.


aten = torch.ops.aten

# operators that only rearrange, copy or convert the elements of their first argument
_MOVES = frozenset(
    [
        *(aten.expand.default, aten.unsqueeze.default, aten.view.default, aten.reshape.default, aten.slice.Tensor),
        *(aten.clone.default, aten.contiguous.default, aten.permute.default, aten.transpose.int, aten.alias.default),
        *(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten._to_copy.default, aten.detach.default),
    ]
)
_AND = frozenset([aten.bitwise_and.Tensor, aten.logical_and.default, aten.__and__.Tensor])
_ONES = frozenset([aten.ones.default, aten.ones_like.default, aten.new_ones.default])
_FULL = frozenset([aten.full.default, aten.full_like.default, aten.new_full.default])
_WIDE = (torch.int32, torch.int64)
_CHOICES = frozenset([aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf])


def choose_known(graph: fx.GraphModule) -> None:
    """Replace ``where`` by one of its values, in place, if its condition is the same for all inputs.

    While a model is exported, libraries make masks that mask nothing, because they cannot read whether one is needed.
    """
    for node in graph.graph.nodes:
        known = _known(node.args[0]) if node.target in _CHOICES else None
        chosen = node.args[1 if known else 2] if known is not None else None
        if isinstance(chosen, fx.Node) and _type(chosen) == _type(node):
            node.replace_all_uses_with(chosen)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _type(node: fx.Node) -> object:
    value = node.meta["val"]
    return value.dtype, [str(size) for size in value.shape]


def _known(mask: Any) -> bool | None:
    """Return the value of all elements of a boolean tensor, if it is the same for all inputs."""
    if not isinstance(mask, fx.Node):
        return None
    if mask.target in _AND:
        parts = [_known(part) for part in mask.args[:2]]
        return False if False in parts else True if parts == [True, True] else None
    if mask.target == aten.ge.Scalar:
        return True if _is_at_least(mask.args[0], mask.args[1]) else None
    if mask.target in _ONES:
        return True
    if mask.target in _FULL:
        return mask.args[1] if isinstance(mask.args[1], bool) else None
    return _known(mask.args[0]) if mask.target in _MOVES else None


def _is_at_least(value: Any, bound: Any) -> bool:
    """Return whether no element of an integer tensor is below a number."""
    if not isinstance(value, fx.Node) or not isinstance(bound, int) or value.meta["val"].dtype not in _WIDE:
        return False
    if value.target == aten.arange.default:
        return bound <= 0
    if value.target == aten.add.Tensor and isinstance(value.args[1], int):
        return _is_at_least(value.args[0], bound - value.args[1])
    return value.target in _MOVES and _is_at_least(value.args[0], bound)


# Grouped matrix products, rows with the matrix of their group, as mixtures of experts use them.


# torch's own, and the one that transformers runs where torch's does not take the dtype
_NAMES = ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")


def recurrent_cells() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of LSTM, GRU and RNN cells into their two linear layers and what follows them."""
    return {
        aten.lstm_cell.default: _lstm_cell,
        aten.gru_cell.default: _gru_cell,
        aten.rnn_tanh_cell.default: functools.partial(_rnn_cell, torch.tanh),
        aten.rnn_relu_cell.default: functools.partial(_rnn_cell, torch.relu),
    }


def _lstm_cell(x: Any, state: Any, at_input: Any, at_state: Any, b_input: Any = None, b_state: Any = None) -> Any:
    h, c = state
    gates = aten.linear.default(x, at_input, b_input) + aten.linear.default(h, at_state, b_state)
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: Any, h: Any, at_input: Any, at_state: Any, b_input: Any = None, b_state: Any = None) -> Any:
    of_input = aten.linear.default(x, at_input, b_input).chunk(3, -1)
    of_state = aten.linear.default(h, at_state, b_state).chunk(3, -1)
    r, z = ((of_input[gate] + of_state[gate]).sigmoid() for gate in range(2))
    n = (of_input[2] + r * of_state[2]).tanh()
    return n + z * (h - n)


def _rnn_cell(
    activation: Any, x: Any, h: Any, at_input: Any, at_state: Any, b_input: Any = None, b_state: Any = None
) -> Any:
    return activation(aten.linear.default(x, at_input, b_input) + aten.linear.default(h, at_state, b_state))


def grouped_products(program: torch.export.ExportedProgram) -> Mapping[OpOverload, Callable[..., Any]]:
    """Return the replacements of grouped products for :func:`prepbench.targets.decompose.decompose`."""
    targets = {node.target for node in program.graph.nodes if str(node.target) in _NAMES}
    return dict.fromkeys(targets, grouped_product)


def grouped_product(
    input: torch.Tensor,
    weight: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Return the product of each row with the matrix of its group, selected from the products with all matrices.

    No runtime has an operator with as many rows for each matrix as data says. This takes as many times the work as
    there are groups, but one product of fixed form, which runtimes compute fast.

    Args:
        input: (rows, in); the rows of a group stand together.
        weight: (groups, in, out).
        offs: (groups,), the number of the first row after each group. Rows after the last group give 0.
        bias: taken by no kernel of torch yet.
        out_dtype: dtype of the result; None: that of the input.

    Returns:
        (rows, out), or ``NotImplemented`` where groups are not of rows.
    """
    if offs is None or bias is not None or input.dim() != 2 or weight.dim() != 3:
        return NotImplemented
    rows = torch.arange(input.shape[0], device=input.device).unsqueeze(1)
    group = (rows >= offs).sum(1).clamp(max=weight.shape[0] - 1)
    # the matrices are concatenated, because every runtime has a fast product of two matrices
    beside = weight.transpose(0, 1).flatten(1)
    products = torch.matmul(input, beside).unflatten(1, (weight.shape[0], weight.shape[2]))
    chosen = products.gather(1, group.view(-1, 1, 1).expand(-1, 1, weight.shape[2])).squeeze(1)
    result = torch.where(rows < offs[-1], chosen, 0.0)
    return result.to(input.dtype if out_dtype is None else out_dtype)
