"""Channels in convolutions, with and without groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value, along, only, varying
from prepbench.adapt.channels.vectors import with_bias


def convolution(transposed: bool) -> Callable[[Call], Value]:
    """``conv1d`` and its relatives; weights of transposed ones have inputs first."""

    def rule(call: Call) -> Value:
        value, weight = call.needed("input"), call.needed("weight")
        dim = len(value.shape) - len(weight.shape) + 1
        if not weight.is_weight:
            call.keep(value, "has weights that are computed")
            call.keep(weight, "has weights that are computed")
            return Value(call.shape)
        flat = [_along_only(call, layer, dim) for layer in value.layers]
        inputs = Value((value.shape[dim],), tuple(layer for layer in flat if varying(layer)))
        rows, columns = _rows_and_columns(call, weight, transposed)
        groups = int(call.given["groups"])
        made = _in_groups(call, inputs, rows, columns, groups, transposed)
        layers = tuple(along(layer, dim, call.shape) for layer in made if varying(layer))
        return with_bias(call, Value(call.shape, call.distinct(layers)), "bias", dim)

    return rule


def _along_only(call: Call, layer: torch.Tensor, dim: int) -> torch.Tensor:
    """A layer of a convolution's input as labels of its channels."""
    for other in varying(layer):
        if other != dim:
            layer = call.tie(layer, other, "slides along these channels")
    return only(layer, (dim,)).reshape(-1) if dim in varying(layer) else layer.new_zeros(1)


def _rows_and_columns(call: Call, weight: Value, transposed: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for layer in weight.layers:
        dims = varying(layer)
        if len(dims) > 1 or (dims and dims[0] > 1):
            for dim in dims:
                layer = call.tie(layer, dim, "slides along these channels")
        elif dims:
            found[dims[0]].append(only(layer, dims).reshape(-1))
    return (found[1], found[0]) if transposed else found


def _in_groups(
    call: Call,
    inputs: Value,
    rows: list[torch.Tensor],
    columns: list[torch.Tensor],
    groups: int,
    transposed: bool,
) -> list[torch.Tensor]:
    """The labels of what a convolution computes.

    Without groups, columns go with inputs. With many groups, each is one unit, which goes with its inputs, rows and
    results. With few, the same places of all groups go together, so that all groups stay alike.
    """
    why = f"has {groups} groups"
    inside = inputs.shape[0] // groups
    if groups == 1:
        result = call.contracted(
            [("i", inputs), ("oi", _matrix(rows, columns, inputs.shape[0]))],
            "o",
            (len(rows[0]) if rows else 1,),
        )
        return [layer.contiguous() for layer in result.layers]
    outside = _channels(call) // groups
    if groups > max(1, min(inside, outside)):
        whole, inner = (columns, rows) if transposed else (rows, columns)
        anchor = call.classes.new(groups)
        for layer in (*inputs.layers, *whole):
            places = layer.reshape(groups, -1)
            call.classes.join(places.contiguous(), anchor[:, None].expand_as(places).contiguous())
        for layer in inner:
            call.classes.keep(layer, f"{call.where} {why}")
        if not inputs.layers:
            call.classes.keep(anchor, f"{call.where} {why} of channels that are not removed before it")
        return [anchor.repeat_interleave(outside)]
    # weights have one label for the same place of all groups: columns, and rows of transposed ones
    all_rows = [layer.repeat(groups) if transposed else layer for layer in rows]
    all_columns = [layer if transposed else layer.repeat(groups) for layer in columns]
    if not inputs.layers:
        for layer in columns:
            call.classes.keep(layer, f"{call.where} reads channels that are not removed before it")
    made: list[torch.Tensor] = []
    for layer in inputs.layers:
        _alike_groups(call, layer, groups, why)
        for column in all_columns:
            call.classes.join(layer.contiguous(), column)
    for layer in all_rows:
        _alike_groups(call, layer, groups, why)
        made.append(layer)
    return made


def _channels(call: Call) -> int:
    weight = call.needed("weight")
    is_transposed = call.name.startswith("conv_transpose")
    return weight.shape[1] * int(call.given["groups"]) if is_transposed else weight.shape[0]


def _matrix(rows: Sequence[torch.Tensor], columns: Sequence[torch.Tensor], inputs: int) -> Value:
    shape = (len(rows[0]) if rows else 1, inputs)
    layers = [along(layer, 0, shape) for layer in rows] + [along(layer, 1, shape) for layer in columns]
    return Value(shape, tuple(layers), True)


def _alike_groups(call: Call, layer: torch.Tensor, groups: int, why: str) -> None:
    """Remove the same places of all groups."""
    places = layer.reshape(groups, -1)
    call.classes.join(places[:1].expand_as(places).contiguous(), places.contiguous(), f"{call.where} {why}")
