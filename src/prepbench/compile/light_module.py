"""A quantized program as a module that runs in little memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from prepbench.quantize.blocks import OPERATOR as BLOCKS

aten = torch.ops.aten
# weights that are in float at a time
_VALUES = 2**22


def light_module(program: torch.export.ExportedProgram) -> Callable[..., Any]:
    """The program as a module that gives the same results, and never has a large matrix in float.

    Of a table, the rows that are looked up are made floats, and of the weight of a linear layer, some outputs after the
    other. PyTorch's own operator would go through integers of 64 bits, twelve bytes for each weight.
    """
    module = program.module(check_guards=False)
    for node in list(module.graph.nodes):
        if _is_large_matrix(node) and len(node.users) == 1:
            _read_in_parts(node, next(iter(node.users)))
    module.recompile()
    return module


def _is_large_matrix(node: fx.Node) -> bool:
    """Whether it makes floats of one, whose rows have scales of their own."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.kwargs or value.ndim != 2:
        return False
    sizes = [size for size in value.shape if isinstance(size, int)]  # those of weights are numbers
    if len(sizes) < 2 or sizes[0] * sizes[1] <= _VALUES:
        return False
    channels = torch.ops.quantized_decomposed.dequantize_per_channel.default
    return node.target is BLOCKS or (node.target is channels and bool(node.args[3] == 0))


def _read_in_parts(weight: fx.Node, user: fx.Node) -> None:
    call: Callable[..., torch.Tensor]
    given: tuple[Any, ...]
    if user.target is aten.embedding.default and user.args[0] is weight:
        call, given = _looked_up, (user.args[1],)
    elif user.target is aten.linear.default and user.args[1] is weight and user.args[0] is not weight:
        call, given = _linear, (user.args[0], user.args[2] if len(user.args) > 2 else None)
    else:
        return
    with user.graph.inserting_before(user):
        new = user.graph.call_function(call, (cast(Any, weight.target), weight.args, *given))
    user.replace_all_uses_with(new)
    user.graph.erase_node(user)
    user.graph.erase_node(weight)


def _part(dequantize: Callable[..., torch.Tensor], args: Sequence[Any], rows: Any) -> torch.Tensor:
    q, scale, zero_point, *others = args
    return dequantize(q[rows], scale[rows], None if zero_point is None else zero_point[rows], *others)


def _looked_up(dequantize: Callable[..., torch.Tensor], args: Sequence[Any], places: torch.Tensor) -> torch.Tensor:
    return _part(dequantize, args, places.flatten()).reshape(*places.shape, -1)


def _linear(
    dequantize: Callable[..., torch.Tensor], args: Sequence[Any], values: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    outputs, inputs = args[0].shape
    step = max(1, _VALUES // inputs)
    parts = [values @ _part(dequantize, args, slice(start, start + step)).t() for start in range(0, outputs, step)]
    joined = torch.cat(parts, -1)
    return joined if bias is None else joined.add_(bias)
