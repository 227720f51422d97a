"""Rules for operators: how each maps the channels of its operands to those of its result."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.adapt.channels.values import Call, Value, along, compact, dim_of, dims_of, only, varying

# Values combined with one number for each channel: biases, and scales of norms.


def with_bias(call: Call, result: Value, name: str, dim: int = -1) -> Value:
    bias = call.value(name)
    return result if bias is None else with_vector(call, result, bias, dim, "adds a bias")


def with_vector(call: Call, value: Value, vector: Value, dim: int, why: str) -> Value:
    """Combine a value with a vector along one dim, or with any tensor that broadcasts."""
    if len(vector.shape) == 1 and dim != -1:
        behind = (1,) * (len(value.shape) - dim - 1)
        shape = (*vector.shape, *behind)
        vector = Value(shape, tuple(layer.reshape(shape) for layer in map(_plain, vector.layers)), vector.is_weight)
    joined = call.joined([value, vector], value.shape, why)
    return Value(joined.shape, joined.layers, value.is_weight and vector.is_weight)


def _plain(layer: torch.Tensor) -> torch.Tensor:
    return layer.contiguous()


# Channels in products of matrices.


def linear(call: Call) -> Value:
    """``linear``: columns join the input's channels, rows are new channels."""
    return with_bias(call, _matmul(call, call.needed("input"), _transposed(call.needed("weight"))), "bias")


def product(first: str, second: str, added: str = "") -> Callable[[Call], Value]:
    """``mm``, ``bmm``, ``matmul``, and with an addend ``addmm`` and ``baddbmm``."""

    def rule(call: Call) -> Value:
        result = _matmul(call, call.needed(first), call.needed(second))
        return with_bias(call, result, added) if added else result

    return rule


def _matmul(call: Call, one: Value, other: Value) -> Value:
    names, others = _letters(len(one.shape)), _letters(len(other.shape))
    left = f"{names[2:]}ik" if len(one.shape) > 1 else "k"
    right = f"{others[2:]}kj" if len(other.shape) > 1 else "k"
    batch = max(left[:-2], right[:-2], key=len)
    result = batch + ("i" if "i" in left else "") + ("j" if "j" in right else "")
    return call.contracted([(left, one), (right, other)], result, call.shape)


def _letters(rank: int) -> str:
    """Return letters for the dims of a matrix, and for those of the batch, aligned at the end."""
    return "ij" + string.ascii_uppercase[26 - max(rank - 2, 0) :] if rank > 2 else "ij"


def _transposed(weight: Value) -> Value:
    layers = tuple(layer.transpose(-1, -2) if layer.ndim > 1 else layer for layer in weight.layers)
    shape = (*weight.shape[:-2], *reversed(weight.shape[-2:]))
    return Value(shape, layers, weight.is_weight)


def einsum(call: Call) -> Value | None:
    """``einsum``; None for equations with a repeated letter in one operand, which take a diagonal."""
    left, _, result = str(call.given["equation"]).replace(" ", "").partition("->")
    names = left.split(",")
    values = call.listed("tensors")
    if "->" not in str(call.given["equation"]):
        every = "".join(names)
        result = "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    if any("." in each or len(set(each)) < len(each) for each in (*names, result)):
        return None
    return call.contracted(list(zip(names, values, strict=True)), result, call.shape)


# Channels in attention, norms and tables of embeddings.


def attention(call: Call) -> Value | None:
    """``scaled_dot_product_attention``: heads are units, since queries and keys are summed over the other dims."""
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
    """``batch_norm`` and ``instance_norm``: channels stay independent."""
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
    """``layer_norm`` and ``rms_norm``: all channels that are normalised together form one unit."""
    value = call.needed("input")
    count = len(call.given["normalized_shape"])
    value = _tied(call, value, list(range(len(value.shape)))[-count:], "normalises over all of them")
    for name in ("weight", "bias"):
        vector = call.value(name)
        if vector is not None:
            value = call.joined([value, vector], value.shape, "scales what it normalised together")
    return Value(value.shape, value.layers)


def lookup(call: Call) -> Value:
    """``embedding``: rows are found by number and so are kept; columns are channels of the result."""
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


# Channels in operators that only move elements: the labels are moved in the same way, at the sizes of the sample.


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
    """Reshape the labels to the sizes of the result."""
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
                call.tie(layer, dim, "takes every n-th of them, or positions known only at run time")
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
    """Return the dims whose channels must be kept, because slices would start elsewhere after a removal."""
    cuts = [call.given.get(name) for name in ("start", "end", "length", "index")]
    is_open = any(isinstance(cut, torch.fx.Node) for cut in cuts)
    if call.name in ("slice", "narrow", "select") and (call.given.get("step", 1) != 1 or is_open):
        return [dim_of(int(call.given["dim"]), rank)]
    return []


def joining(stacks: bool) -> Callable[[Call], Value]:
    """``cat`` and ``stack``: channels are concatenated."""

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
    """Return a layer of a value; if the value has none, one channel that is kept."""
    if index < len(value.layers):
        return value.layers[index]
    kept = call.classes.new(1)
    call.classes.keep(kept, f"{call.where} joins removable channels with others that must stay")
    return kept.reshape((1,) * len(value.shape)).expand(value.shape)


# Channels in operators that work element by element, reduce dims, or slide over places.


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
    """Join all operands element by element."""
    return call.joined(call.operands(), call.shape, "combines channels")


def first_only(call: Call) -> Value:
    """Pass on the labels of the first operand."""
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
    """``glu``: the second half of a dim gates the first, so both lose the same channels."""
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
    """Reductions tie the channels along each dim that they reduce."""
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
    """Pooling and resizing over the last dims: channels stay independent."""
    return _by_channel(call, SLIDING[call.name])


def padding(call: Call) -> Value | list[Value]:
    """``pad``: keeps the channels of padded dims."""
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


# Channels in convolutions, with and without groups.


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
    """Return a layer of a convolution's input as labels of its channels."""
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
    """Return the labels of a convolution's result.

    Without groups, columns join the input channels. With many groups, each group is one unit of its inputs, rows and
    results. With few groups, the same places of all groups form a unit, so that all groups keep equal sizes.
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
    """Tie the same places of all groups together."""
    places = layer.reshape(groups, -1)
    call.classes.join(places[:1].expand_as(places).contiguous(), places.contiguous(), f"{call.where} {why}")


Rule = Callable[[Call], "Value | list[Value] | None"]

_RULES: dict[str, Rule] = {
    "linear": linear,
    "mm": product("self", "mat2"),
    "bmm": product("self", "mat2"),
    "matmul": product("self", "other"),
    "addmm": product("mat1", "mat2", "self"),
    "baddbmm": product("batch1", "batch2", "self"),
    "einsum": einsum,
    **{f"conv{n}d": convolution(False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution(True) for n in (1, 2, 3)},
    "scaled_dot_product_attention": attention,
    "batch_norm": channel_norm,
    "instance_norm": channel_norm,
    "group_norm": group_norm,
    "layer_norm": last_dims_norm,
    "rms_norm": last_dims_norm,
    "embedding": lookup,
    "type_as": first_only,
    "to": first_only,
    "prelu": prelu,
    "glu": gated,
    "pad": padding,
    "constant_pad_nd": padding,
    "cat": joining(False),
    "concat": joining(False),
    "stack": joining(True),
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(REDUCING, reducing),
    **dict.fromkeys(SLIDING, sliding),
    **dict.fromkeys(RESHAPING, reshaping),
    **dict.fromkeys(MOVING, moving),
}
_CREATES = frozenset(
    ["arange", "full", "zeros", "ones", "empty", "eye", "linspace", "scalar_tensor", "tril_indices", "triu_indices"]
)

_OTHERWISE = ("aten.view.dtype", "aten.repeat_interleave.Tensor", "aten.repeat_interleave.self_Tensor")


def rule_of(node: fx.Node) -> Rule | None:
    """Return the rule for the operator of a node; None if there is none."""
    name = schema_of(node.target).name.partition("::")[2]
    if not schema_of(node.target).name.startswith("aten::") or str(node.target) in _OTHERWISE:
        return None
    if name in _RULES:
        return _RULES[name]
    if torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
        return pointwise
    return (lambda call: Value(call.shape)) if name in _CREATES else None
