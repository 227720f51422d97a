"""Channels in attention, norms and tables of embeddings."""

from __future__ import annotations

import string
from collections.abc import Sequence

from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value, along, compact, only, varying
from prepbench.adapt.channels.vectors import with_vector


def attention(call: Call) -> Value | None:
    """``scaled_dot_product_attention``: heads are units, because products of queries and keys sum over the rest."""
    query, key, value = (call.needed(name) for name in ("query", "key", "value"))
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
    value = call.needed("input")
    value = _tied(call, value, [dim for dim in range(len(value.shape)) if dim != 1], "takes statistics over")
    for name in ("weight", "bias", "running_mean", "running_var"):
        vector = call.value(name)
        if vector is not None:
            value = with_vector(call, value, vector, 1, "scales channels")
    return Value(value.shape, value.layers)


def group_norm(call: Call) -> Value:
    """``group_norm``: the channels of a group are one unit."""
    value, groups = call.needed("input"), int(call.given["num_groups"])
    value = _tied(call, value, [dim for dim in range(len(value.shape)) if dim != 1], "takes statistics over")
    for layer in value.layers:
        places = only(layer, (1,)).reshape(groups, -1)
        why = f"{call.where} normalises {places.shape[1]} channels together"
        call.classes.join(places[:, :1].expand_as(places).contiguous(), places.contiguous(), why)
    for name in ("weight", "bias"):
        vector = call.value(name)
        if vector is not None:
            value = with_vector(call, value, vector, 1, "scales channels")
    return Value(value.shape, value.layers)


def last_dims_norm(call: Call) -> Value:
    """``layer_norm`` and ``rms_norm``: all that is normalised together is one."""
    value = call.needed("input")
    count = len(call.given["normalized_shape"])
    value = _tied(call, value, list(range(len(value.shape)))[-count:], "normalises over all of them")
    for name in ("weight", "bias"):
        vector = call.value(name)
        if vector is not None:
            value = call.joined([value, vector], value.shape, "scales what it normalised together")
    return Value(value.shape, value.layers)


def lookup(call: Call) -> Value:
    """``embedding``: rows are found by number, and so stay; columns are channels of the result."""
    weight, indices = call.needed("weight"), call.needed("indices")
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
