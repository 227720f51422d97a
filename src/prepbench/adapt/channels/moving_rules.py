"""Channels in operators that only move elements: the labels are moved in the same way, at the sizes of the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prepbench.adapt.channels.call import Call, dim_of
from prepbench.adapt.channels.values import Value, compact, varying

RESHAPING = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "view_copy",
        "flatten",
        "unflatten",
        "expand",
        "expand_as",
        "view_as",
        "reshape_as",
    ]
)
"""Names of operators whose result has the sizes that they are given."""

MOVING = frozenset(
    [
        "permute",
        "transpose",
        "transpose_",
        "t",
        "movedim",
        "moveaxis",
        "swapaxes",
        "swapdims",
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "narrow",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "flip",
        "repeat",
        "repeat_interleave",
        "pixel_shuffle",
        "pixel_unshuffle",
        "unsafe_split",
        "unsafe_chunk",
        "permute_copy",
        "transpose_copy",
    ]
)
"""Names of operators that move, cut or repeat elements."""


def reshaping(call: Call) -> Value | None:
    """The labels in the sizes of the result."""
    value = call.operands()[0]
    layers = [_reshaped(layer, call.shape, call.name.startswith("expand")) for layer in value.layers]
    return Value(call.shape, tuple(layers), value.is_weight)


def _reshaped(layer: torch.Tensor, shape: Sequence[int], expands: bool) -> torch.Tensor:
    return compact(layer.expand(tuple(shape)) if expands else layer.reshape(tuple(shape)))


def moving(call: Call) -> Value | list[Value] | None:
    """Run the operator on labels."""
    value = call.operands()[0]
    dims = _dims_cut_with_steps(call, len(value.shape))
    for layer in value.layers:
        for dim in dims:
            if dim in varying(layer):
                call.tie(layer, dim, "takes every few of them, or places that only a call knows")
    made = [_run(call, layer) for layer in value.layers]
    if isinstance(call.node.meta.get("val"), list | tuple):
        parts = [tuple(compact(each[index]) for each in made) for index in range(len(call.shapes))]
        return [Value(shape, part, value.is_weight) for shape, part in zip(call.shapes, parts, strict=True)]
    return Value(call.shape, tuple(compact(each) for each in made), value.is_weight)


def _run(call: Call, layer: torch.Tensor) -> Any:
    name = next(iter(call.given))
    arguments = {key: _number(value) for key, value in call.given.items() if key != name}
    return call.node.target(layer, **arguments)  # type: ignore[operator]


def _number(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        made = value.meta.get("val")
        return made.node.hint if isinstance(made, torch.SymInt) else made
    return [_number(each) for each in value] if isinstance(value, list | tuple) else value


def _dims_cut_with_steps(call: Call, rank: int) -> list[int]:
    """The dims whose channels cannot be removed, because what is cut would no longer lie where the operator cuts."""
    cuts = [call.given.get(name) for name in ("start", "end", "length", "index")]
    is_open = any(isinstance(cut, torch.fx.Node) for cut in cuts)
    if call.name in ("slice", "narrow", "select") and (call.given.get("step", 1) != 1 or is_open):
        return [dim_of(int(call.given["dim"]), rank)]
    return []


def joining(stacks: bool) -> Callable[[Call], Value]:
    """``cat`` and ``stack``: channels lie side by side."""

    def rule(call: Call) -> Value:
        values = call.listed("tensors")
        rank = len(call.shape)
        dim = dim_of(int(call.given["dim"]), rank)
        values = [value for value in values if len(value.shape) == rank - stacks]  # torch lets cat take empty ones
        count = max((len(value.layers) for value in values), default=0)
        made = []
        for index in range(count):
            parts = [_layer(call, value, index) for value in values]
            made.append(compact(torch.stack(parts, dim) if stacks else torch.cat(parts, dim)))
        return Value(call.shape, call.distinct(made), all(value.is_weight for value in values))

    return rule


def _layer(call: Call, value: Value, index: int) -> torch.Tensor:
    """A layer of a value, or one channel that is kept where it has none."""
    if index < len(value.layers):
        return value.layers[index]
    kept = call.classes.new(1)
    call.classes.keep(kept, f"{call.where} puts beside channels what has none to remove")
    return kept.reshape((1,) * len(value.shape)).expand(value.shape)
