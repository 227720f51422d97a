"""The operators whose channels are followed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.adapt.channels import convolution_rules, element_rules, moving_rules, norm_rules, product_rules
from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value

Rule = Callable[[Call], "Value | list[Value] | None"]

_RULES: dict[str, Rule] = {
    "linear": product_rules.linear,
    "mm": product_rules.product("self", "mat2"),
    "bmm": product_rules.product("self", "mat2"),
    "matmul": product_rules.product("self", "other"),
    "addmm": product_rules.product("mat1", "mat2", "self"),
    "baddbmm": product_rules.product("batch1", "batch2", "self"),
    "einsum": product_rules.einsum,
    **{f"conv{n}d": convolution_rules.convolution(False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution_rules.convolution(True) for n in (1, 2, 3)},
    "scaled_dot_product_attention": norm_rules.attention,
    "batch_norm": norm_rules.channel_norm,
    "instance_norm": norm_rules.channel_norm,
    "group_norm": norm_rules.group_norm,
    "layer_norm": norm_rules.last_dims_norm,
    "rms_norm": norm_rules.last_dims_norm,
    "embedding": norm_rules.lookup,
    "type_as": element_rules.first_only,
    "to": element_rules.first_only,
    "prelu": element_rules.prelu,
    "glu": element_rules.gated,
    "pad": element_rules.padding,
    "constant_pad_nd": element_rules.padding,
    "cat": moving_rules.joining(False),
    "concat": moving_rules.joining(False),
    "stack": moving_rules.joining(True),
    **dict.fromkeys(element_rules.POINTWISE, element_rules.pointwise),
    **dict.fromkeys(element_rules.REDUCING, element_rules.reducing),
    **dict.fromkeys(element_rules.SLIDING, element_rules.sliding),
    **dict.fromkeys(moving_rules.RESHAPING, moving_rules.reshaping),
    **dict.fromkeys(moving_rules.MOVING, moving_rules.moving),
}
_CREATES = frozenset(
    ["arange", "full", "zeros", "ones", "empty", "eye", "linspace", "scalar_tensor", "tril_indices", "triu_indices"]
)

_OTHERWISE = ("aten.view.dtype", "aten.repeat_interleave.Tensor", "aten.repeat_interleave.self_Tensor")


def rule_of(node: fx.Node) -> Rule | None:
    """What the operator of a node does to channels; None where that is not known."""
    name = schema_of(node.target).name.partition("::")[2]
    if not schema_of(node.target).name.startswith("aten::") or str(node.target) in _OTHERWISE:
        return None
    if name in _RULES:
        return _RULES[name]
    if torch.Tag.pointwise in node.target.tags:  # type: ignore[union-attr]
        return element_rules.pointwise
    return (lambda call: Value(call.shape)) if name in _CREATES else None
