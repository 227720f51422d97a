"""Taking operators apart into others, where they stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from prepbench._torch_compat.operators import OpOverload
from prepbench._torch_compat.programs import with_graph
from prepbench.patching import warnings_ignored_here
from prepbench.targets.masks import choose_known

Program = torch.export.ExportedProgram


def take_apart(program: Program, forms: Mapping[OpOverload, Callable[..., Any]]) -> Program:
    """The program with some operators replaced by those that their form runs; itself where it has none of them.

    Args:
        program: not changed.
        forms: for an operator, a function of its arguments that computes the same with others, or gives
            ``NotImplemented`` for arguments for which it has no form.
    """
    if not any(node.target in forms for node in program.graph.nodes):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    module = fx.GraphModule(program.graph_module, graph)
    for node in list(graph.nodes):
        if node.target in forms:
            _replace(node, forms[node.target])
    choose_known(module)
    module.recompile()
    return with_graph(program, module)


def _replace(node: fx.Node, form: Callable[..., Any]) -> None:
    """Put the operators that ``form`` runs in the place of one; leave it where there is no such form.

    Taking whole programs apart (``run_decompositions``) traces them anew, which takes as long as exporting them.
    """
    operands = node.all_input_nodes
    values = [operand.meta["val"] for operand in operands]
    has_form = True

    def run(*given: torch.Tensor) -> Any:
        nonlocal has_form
        by_node = dict(zip(operands, given, strict=True))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda operand: by_node[operand])
        result = form(*args, **kwargs)
        has_form = result is not NotImplemented
        return result if has_form else given[0]

    with warnings_ignored_here(), torch.no_grad():  # torch about its own internals
        steps = make_fx(run, tracing_mode="symbolic", pre_dispatch=True)(*values)
    if not has_form:
        return
    places = dict(zip(steps.graph.find_nodes(op="placeholder"), operands, strict=True))
    with node.graph.inserting_before(node):
        for step in steps.graph.nodes:
            if step.op == "output":
                (result,) = step.all_input_nodes
                node.replace_all_uses_with(places[result])
            elif step.op != "placeholder":
                copy = node.graph.node_copy(step, lambda source: places[source])
                copy.meta = {**{key: node.meta[key] for key in _KEPT if key in node.meta}, "val": step.meta["val"]}
                places[step] = copy
    node.graph.erase_node(node)


_KEPT = ("nn_module_stack", "stack_trace", "from_node")


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
    """``aten.scaled_dot_product_attention`` as two products with a softmax between them."""
    if dropout_p:
        return NotImplemented  # type: ignore[no-any-return]  # random
    if enable_gqa:
        key, value = (_repeat_heads(tensor, query.shape[-3]) for tensor in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if is_causal:
        rows, columns = (torch.arange(tensor.shape[-2], device=query.device) for tensor in (query, key))
        attn_mask = rows.unsqueeze(-1) >= columns
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    # in rows that see nothing every weight is 0, as in PyTorch
    if attn_mask.dtype == torch.bool:
        weights = torch.softmax(torch.where(attn_mask, scores, torch.finfo(scores.dtype).min), -1)
        weights = torch.where(attn_mask, weights, 0.0)
    else:
        weights = torch.softmax(scores + attn_mask, -1)
        weights = torch.where(attn_mask == -math.inf, 0.0, weights)
    return torch.matmul(weights, value)


def _repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head of keys or values for the queries that share it."""
    groups = heads // tensor.shape[-3]
    shape = (*tensor.shape[:-2], groups, *tensor.shape[-2:])
    return tensor.unsqueeze(-3).expand(shape).flatten(-4, -3)
