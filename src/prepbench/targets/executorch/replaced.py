"""Replacements for operators that ExecuTorch's kernels compute differently, or for which it has none."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from prepbench.settings.numbers import FLOAT32, INT4, INT8, NumberFormat
from prepbench.targets.weights import QuantizedWeight, fit_weights, input_of, operator_name

aten = torch.ops.aten


def _center_layer(x: torch.Tensor, normalized_shape: Sequence[Any], *rest: Any) -> Any:
    dims = list(range(-len(normalized_shape), 0))
    return torch.ops.aten.layer_norm.default(x - x.mean(dims, keepdim=True), normalized_shape, *rest)


def _center_groups(x: torch.Tensor, num_groups: int, *rest: Any) -> Any:
    groups = x.reshape(x.shape[0], num_groups, -1)
    centered = (groups - groups.mean(-1, keepdim=True)).reshape(x.shape)
    return torch.ops.aten.group_norm.default(centered, num_groups, *rest)


def _center_instances(x: torch.Tensor, *rest: Any) -> Any:
    if rest[2] is not None or not rest[4]:  # a running mean, or the statistics of the input
        return NotImplemented
    return torch.ops.aten.instance_norm.default(x - x.mean(list(range(2, x.ndim)), keepdim=True), *rest)


def _center_batch(x: torch.Tensor, *rest: Any) -> Any:
    if rest[2] is not None or not rest[4]:
        return NotImplemented
    dims = [dim for dim in range(x.ndim) if dim != 1]
    return torch.ops.aten.batch_norm.default(x - x.mean(dims, keepdim=True), *rest)


def _remainder(x: torch.Tensor, y: Any) -> Any:
    """Compute the remainder of integers, to which the kernel gives the sign of the dividend."""
    are_integers = not x.is_floating_point() and (isinstance(y, int) or _is_integer(y))
    return x - torch.floor_divide(x, y) * y if are_integers else NotImplemented


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype is not torch.bool


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Sort by the kernel for values alone, because the other one leaves the order of equal values undefined."""
    return (torch.topk(x, x.shape[dim], dim, largest=descending).values, None) if x.ndim else NotImplemented


def _stable_sort(x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> Any:
    """Compute the tanh approximation by its formula: the kernel leaves 60 dB where all values are negative."""
    if approximate != "tanh":
        return NotImplemented
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + torch.tanh(inner))


def _prelu(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Compute PReLU by other operators, because XNNPACK takes images only, and fails at others."""
    if x.ndim == 4:
        return NotImplemented
    slopes = weight.reshape([-1] + [1] * (x.ndim - 2)) if x.ndim > 1 else weight
    return torch.where(x > 0, x, slopes * x)


REPLACED: dict[Any, Callable[..., Any]] = {
    # its kernels compute the variance as a difference of squares, which cancels where the mean is large
    aten.layer_norm.default: _center_layer,
    aten.group_norm.default: _center_groups,
    aten.instance_norm.default: _center_instances,
    aten.batch_norm.default: _center_batch,
    aten.remainder.Scalar: _remainder,
    aten.remainder.Tensor: _remainder,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.gelu.default: _gelu,
    aten.prelu.default: _prelu,
}


# Quantized weights in the layout of XNNPACK's kernels.


quantized = torch.ops.quantized_decomposed
_WITH_BIAS = frozenset(f"aten.{name}" for name in ("linear", "conv1d", "conv2d", "convolution"))
_FUSED = frozenset(f"aten.{name}" for name in ("relu", "relu_", "relu6", "relu6_", "hardtanh", "hardtanh_"))


def fit_to_xnnpack(module: fx.GraphModule) -> None:
    """Rewrite how quantized weights are stored, in place; the graph's results stay the same.

    - A linear layer with activations in float multiplies by 8-bit or 4-bit integers. XNNPACK's kernel has no bias, so
      the bias becomes an addition.
    - 4-bit weights between quantized activations are stored in 8 bits.
    - Weights without a kernel are stored in float: those of convolutions in float, and those with zero points.
    - Each reader of quantized activations gets a dequantizer of its own. XNNPACK counts a dequantizer to the integer
      kernel that reads it, and would take its other readers for integer kernels, too.
    - Each call of a layer gets a bias of its own. XNNPACK stores a bias once, in integers whose scale is that of what
      the first call reads, and so the others would add another bias.
    """
    if not fit_weights(module, _format):
        return
    _separate_biases(module)
    for node in list(module.graph.find_nodes(op="call_function", target=quantized.dequantize_per_tensor.default)):
        for reader in list(node.users)[1:]:
            with module.graph.inserting_after(node):
                own = module.graph.node_copy(node)
            reader.replace_input_with(node, own)
    for node in module.graph.find_nodes(op="call_function", target=aten.linear.default):
        if len(node.args) > 2 and not is_between_quantizers(node) and "dequantize" in operator_name(node.args[1]):
            with module.graph.inserting_after(node):
                addition = module.graph.call_function(aten.add.Tensor, (node, node.args[2]))
            addition.meta = dict(node.meta)
            for reader in [user for user in node.users if user is not addition]:
                reader.replace_input_with(node, addition)
            node.args = node.args[:2]
    module.recompile()


def _separate_biases(module: fx.GraphModule) -> None:
    taken: set[Any] = set()
    for node in list(module.graph.nodes):
        bias = node.args[2] if operator_name(node) in _WITH_BIAS and len(node.args) > 2 else None
        if not isinstance(bias, fx.Node) or bias.op != "get_attr":
            continue
        if bias.target in taken:
            name = f"{node.name}_bias"
            module.register_buffer(name, operator.attrgetter(str(bias.target))(module).detach().clone())
            with module.graph.inserting_before(node):
                own = module.graph.get_attr(name)
            own.meta = dict(bias.meta)
            node.update_arg(2, own)
        taken.add(bias.target)


def is_between_quantizers(node: fx.Node) -> bool:
    """Return whether a layer reads quantized values and a quantizer follows, possibly after an activation function."""
    users = list(node.users)
    if len(users) == 1 and operator_name(users[0]) in _FUSED:
        users = list(users[0].users)
    return (
        operator_name(input_of(node)) == "quantized_decomposed.dequantize_per_tensor"
        and len(users) == 1
        and operator_name(users[0]) == "quantized_decomposed.quantize_per_tensor"
    )


def has_dynamic_sizes(node: fx.Node) -> bool:
    """Return whether more than one size of a result is dynamic, which XNNPACK's reshapes do not support."""
    return sum(isinstance(size, torch.SymInt) for size in tuple[Any, ...](node.meta["val"].shape)) > 1


def _format(node: fx.Node, weight: QuantizedWeight) -> NumberFormat:
    if not weight.is_symmetric or weight.integers.ndim > 4 or (weight.integers.ndim == 3 and has_dynamic_sizes(node)):
        return FLOAT32
    if is_between_quantizers(node):
        return INT8
    if weight.integers.ndim > 2:
        return FLOAT32
    # two integers of 4 bits share a byte, so there must be an even number of them
    return INT4 if weight.bits <= INT4.bits and weight.integers.shape[1] % 2 == 0 else INT8
