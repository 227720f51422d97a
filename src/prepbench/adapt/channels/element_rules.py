"""Channels in operators that work element by element, reduce dims, or slide over places."""

from __future__ import annotations

import torch

from prepbench.adapt.channels.call import Call, dim_of, dims_of
from prepbench.adapt.channels.values import Value, along, only, varying

# those without torch's own tag for them
POINTWISE = frozenset(
    [
        "hardswish",
        "hardswish_",
        "dropout",
        "dropout_",
        "feature_dropout",
        "alpha_dropout",
        "contiguous",
        "clone",
        "alias",
        "detach",
        "_to_copy",
        "log_sigmoid",
        "copy_",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "masked_fill_",
        "lift_fresh_copy",
        "lift_fresh",
        "square",
        "selu_",
        "positive",
        "relu6_",
        "silu_",
        "mish_",
        "float_power",
        "native_dropout",
        "nan_to_num",
        "logical_and",
        "logical_or",
    ]
)
"""Names of operators that combine elements at the same places."""

SLIDING = {
    **{f"{kind}_pool{n}d": n for n in (1, 2, 3) for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp")},
    **{f"max_pool{n}d_with_indices": n for n in (1, 2, 3)},
    **{f"upsample_nearest{n}d": n for n in (1, 2, 3)},
    "_upsample_nearest_exact2d": 2,
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2,
    "upsample_trilinear3d": 3,
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2,
    "reflection_pad1d": 1,
    "reflection_pad2d": 2,
    "replication_pad1d": 1,
    "replication_pad2d": 2,
}
"""How many of the last dims are places that an operator slides over, by its name."""

REDUCING = frozenset(
    [
        "mean",
        "sum",
        "amax",
        "amin",
        "max",
        "min",
        "prod",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "norm",
        "linalg_vector_norm",
        "logsumexp",
        "softmax",
        "_softmax",
        "log_softmax",
        "_log_softmax",
        "cumsum",
        "cumprod",
        "argmax",
        "argmin",
        "any",
        "all",
        "topk",
        "sort",
        "argsort",
        "median",
        "nanmean",
        "aminmax",
        "cosine_similarity",
        "softmin",
        "count_nonzero",
    ]
)
"""Names of operators whose result mixes all elements along some dims."""


def pointwise(call: Call) -> Value:
    """All operands together, element by element."""
    return call.joined(call.operands(), call.shape, "combines channels")


def first_only(call: Call) -> Value:
    """The first operand in another type, which others may name."""
    value = call.operands()[0]
    return Value(call.shape, value.layers, value.is_weight)


def prelu(call: Call) -> Value | None:
    """``prelu``: a slope for each channel, in dim 1."""
    value, slope = call.value("self"), call.value("weight")
    if value is None or slope is None:
        return None
    if slope.shape in ((), (1,)):
        return value
    shape = (*slope.shape, *(1,) * (len(value.shape) - 2))
    layers = tuple(along(only(layer, (0,)).reshape(-1), 0, shape) for layer in slope.layers)
    return call.joined([value, Value(shape, layers, True)], call.shape, "scales channels")


def gated(call: Call) -> Value | None:
    """``glu``: the second half of a dim decides what passes of the first."""
    value = call.value("self")
    if value is None:
        return None
    dim = dim_of(int(call.given["dim"]), len(value.shape))
    layers = []
    for layer in value.layers:
        halves = layer.chunk(2, dim)
        if dim in varying(layer):
            first, second = (only(half, varying(layer)).contiguous() for half in halves)
            call.classes.join(first, second)
        layers.append(halves[0])
    return Value(call.shape, tuple(layers))


def reducing(call: Call) -> Value | list[Value]:
    """What is mixed is one channel; a norm over all of them ties all."""
    value = call.operands()[0]
    for other in call.operands()[1:]:
        call.keep(other, "mixes several operands")
    dims = dims_of(call.given.get("dim"), len(value.shape)) if "dim" in call.given else list(range(len(value.shape)))
    layers = list(value.layers)
    for dim in dims:
        layers = [call.tie(layer, dim, "mixes all of them") if dim in varying(layer) else layer for layer in layers]
    results = [_reduced(value, [layer for layer in layers if varying(layer)], dims, shape) for shape in call.shapes]
    return results if isinstance(call.node.meta.get("val"), list | tuple) else results[0]


def _reduced(value: Value, layers: list[torch.Tensor], dims: list[int], shape: tuple[int, ...]) -> Value:
    left = [dim for dim in range(len(value.shape)) if dim not in dims]
    made = []
    for layer in layers:
        small = only(layer, left)
        if len(shape) != len(value.shape):
            small = small.reshape([small.shape[dim] for dim in left])
        made.append(small.expand(shape))
    return Value(shape, tuple(made), value.is_weight)


def sliding(call: Call) -> Value | list[Value]:
    """Pooling and resizing: each channel by itself, over the last dims."""
    return _by_channel(call, SLIDING[call.name])


def padding(call: Call) -> Value | list[Value]:
    """``pad``: over the last dims that something is added to."""
    pads = list(call.given["pad"])
    padded = [index // 2 for index, size in enumerate(pads) if size != 0]
    return _by_channel(call, max(padded, default=-1) + 1)


def _by_channel(call: Call, places: int) -> Value | list[Value]:
    value = call.operands()[0]
    rank = len(value.shape)
    layers = list(value.layers)
    for dim in range(rank - places, rank):
        layers = [
            call.tie(layer, dim, "slides along these channels") if dim in varying(layer) else layer for layer in layers
        ]
    before = list(range(rank - places))
    results = [
        Value(shape, tuple(only(layer, before).expand(shape) for layer in layers if varying(layer)))
        for shape in call.shapes
    ]
    return results if isinstance(call.node.meta.get("val"), list | tuple) else results[0]
