"""Quantized weights in the layout of XNNPACK's kernels."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from prepbench.targets.weights import QuantizedWeight, fit_weights, input_of, operator_name

aten = torch.ops.aten
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
    if not fit_weights(module, _bits):
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


def _bits(node: fx.Node, weight: QuantizedWeight) -> int:
    if not weight.is_symmetric or weight.integers.ndim > 4 or (weight.integers.ndim == 3 and has_dynamic_sizes(node)):
        return 0
    if is_between_quantizers(node):
        return 8
    if weight.integers.ndim > 2:
        return 0
    # two integers of 4 bits share a byte, so there must be an even number of them
    return 4 if weight.bits <= 4 and weight.integers.shape[1] % 2 == 0 else 8
