"""Channels in layers: products with weights, attention, norms."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import torch

from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value, along, compact, only, varying


def linear(call: Call) -> Value:
    """``linear``: columns with what enters, rows are new channels."""
    return _with_bias(call, _matmul(call, _required(call, "input"), _transposed(_required(call, "weight"))), "bias")


def product(first: str, second: str, added: str = "") -> Callable[[Call], Value]:
    """``mm``, ``bmm``, ``matmul``, and with something added ``addmm`` and ``baddbmm``."""

    def rule(call: Call) -> Value:
        result = _matmul(call, _required(call, first), _required(call, second))
        return _with_bias(call, result, added) if added else result

    return rule


def _matmul(call: Call, one: Value, other: Value) -> Value:
    names, others = _letters(len(one.shape)), _letters(len(other.shape))
    left = f"{names[2:]}ik" if len(one.shape) > 1 else "k"
    right = f"{others[2:]}kj" if len(other.shape) > 1 else "k"
    batch = max(left[:-2], right[:-2], key=len)
    result = batch + ("i" if "i" in left else "") + ("j" if "j" in right else "")
    return call.contracted([(left, one), (right, other)], result, call.shape)


def _letters(rank: int) -> str:
    """Letters for the dims of a matrix, and those of the batch, aligned at the end."""
    return "ij" + string.ascii_uppercase[26 - max(rank - 2, 0) :] if rank > 2 else "ij"


def _transposed(weight: Value) -> Value:
    layers = tuple(layer.transpose(-1, -2) if layer.ndim > 1 else layer for layer in weight.layers)
    shape = (*weight.shape[:-2], *reversed(weight.shape[-2:]))
    return Value(shape, layers, weight.is_weight)


def _with_bias(call: Call, result: Value, name: str, dim: int = -1) -> Value:
    bias = call.value(name)
    return result if bias is None else _with_vector(call, result, bias, dim, "adds a bias")


def _with_vector(call: Call, value: Value, vector: Value, dim: int, why: str) -> Value:
    """A value combined with something that has one number for each index of a dim, or broadcasts as usual."""
    if len(vector.shape) == 1 and dim != -1:
        behind = (1,) * (len(value.shape) - dim - 1)
        shape = (*vector.shape, *behind)
        vector = Value(shape, tuple(layer.reshape(shape) for layer in map(_plain, vector.layers)), vector.is_weight)
    joined = call.joined([value, vector], value.shape, why)
    return Value(joined.shape, joined.layers, value.is_weight and vector.is_weight)


def _plain(layer: torch.Tensor) -> torch.Tensor:
    return layer.contiguous()


def einsum(call: Call) -> Value | None:
    """``einsum``; None for equations with a letter twice in one operand, which take a diagonal."""
    left, _, result = str(call.given["equation"]).replace(" ", "").partition("->")
    names = left.split(",")
    values = call.listed("tensors")
    if "->" not in str(call.given["equation"]):
        every = "".join(names)
        result = "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    if any("." in each or len(set(each)) < len(each) for each in (*names, result)):
        return None
    return call.contracted(list(zip(names, values, strict=True)), result, call.shape)


def convolution(transposed: bool) -> Callable[[Call], Value]:
    """``conv1d`` and its relatives; weights of transposed ones have inputs first."""

    def rule(call: Call) -> Value:
        value, weight = _required(call, "input"), _required(call, "weight")
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
        return _with_bias(call, Value(call.shape, call.distinct(layers)), "bias", dim)

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
    weight = _required(call, "weight")
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


def attention(call: Call) -> Value | None:
    """``scaled_dot_product_attention``: heads are units, because products of queries and keys sum over the rest."""
    query, key, value = (_required(call, name) for name in ("query", "key", "value"))
    if call.given.get("enable_gqa"):
        key, value = (_repeated(each, query.shape[-3]) for each in (key, value))
    batch = string.ascii_uppercase[: len(query.shape) - 2]
    if not len(query.shape) == len(key.shape) == len(value.shape):
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    weights = call.contracted([(f"{batch}id", query), (f"{batch}jd", key)], f"{batch}ij", scores, "multiplies heads")
    mask = call.value("attn_mask")
    if mask is not None:
        weights = call.joined([weights, mask], scores, "adds a mask")
    weights = _tied(call, weights, [len(scores) - 1], "normalises over all of them")
    return call.contracted([(f"{batch}ij", weights), (f"{batch}je", value)], f"{batch}ie", call.shape, "mixes rows")


def _repeated(value: Value, heads: int) -> Value:
    times = heads // value.shape[-3]
    layers = tuple(compact(layer.repeat_interleave(times, -3)) for layer in value.layers)
    return Value((*value.shape[:-3], heads, *value.shape[-2:]), layers, value.is_weight)


def channel_norm(call: Call) -> Value:
    """``batch_norm`` and ``instance_norm``: each channel by itself."""
    value = _required(call, "input")
    value = _tied(call, value, [dim for dim in range(len(value.shape)) if dim != 1], "takes statistics over")
    for name in ("weight", "bias", "running_mean", "running_var"):
        vector = call.value(name)
        if vector is not None:
            value = _with_vector(call, value, vector, 1, "scales channels")
    return Value(value.shape, value.layers)


def group_norm(call: Call) -> Value:
    """``group_norm``: the channels of a group are one unit."""
    value, groups = _required(call, "input"), int(call.given["num_groups"])
    value = _tied(call, value, [dim for dim in range(len(value.shape)) if dim != 1], "takes statistics over")
    for layer in value.layers:
        places = only(layer, (1,)).reshape(groups, -1)
        why = f"{call.where} normalises {places.shape[1]} channels together"
        call.classes.join(places[:, :1].expand_as(places).contiguous(), places.contiguous(), why)
    for name in ("weight", "bias"):
        vector = call.value(name)
        if vector is not None:
            value = _with_vector(call, value, vector, 1, "scales channels")
    return Value(value.shape, value.layers)


def last_dims_norm(call: Call) -> Value:
    """``layer_norm`` and ``rms_norm``: all that is normalised together is one."""
    value = _required(call, "input")
    count = len(call.given["normalized_shape"])
    value = _tied(call, value, list(range(len(value.shape)))[-count:], "normalises over all of them")
    for name in ("weight", "bias"):
        vector = call.value(name)
        if vector is not None:
            value = call.joined([value, vector], value.shape, "scales what it normalised together")
    return Value(value.shape, value.layers)


def lookup(call: Call) -> Value:
    """``embedding``: rows are found by number, and so stay; columns are channels of the result."""
    weight, indices = _required(call, "weight"), _required(call, "indices")
    call.keep(indices, "looks up rows by number")
    found = []
    for layer in weight.layers:
        if varying(layer) == (1,):
            found.append(along(only(layer, (1,)).reshape(-1), len(call.shape) - 1, call.shape))
        else:
            call.classes.keep(only(layer, varying(layer)), f"{call.where} looks up rows by number")
    return Value(call.shape, tuple(found))


def _tied(call: Call, value: Value, dims: Sequence[int], why: str) -> Value:
    layers = value.layers
    for dim in dims:
        layers = tuple(call.tie(layer, dim, why) if dim in varying(layer) else layer for layer in layers)
    return Value(value.shape, tuple(layer for layer in layers if varying(layer)), value.is_weight)


def _required(call: Call, name: str) -> Value:
    value = call.value(name)
    assert value is not None, name
    return value
