"""Quantized weights in the forms for which XNNPACK has kernels."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import register_quantized_operators
from prepbench.quantize.layers import CONVOLUTIONS

register_quantized_operators()
aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed

# operator -> (index of the input, of the weight, of the bias or None, whether a row of the weight is an output)
_LINEAR: dict[Any, tuple[int, int, int | None, bool]] = {
    aten.linear.default: (0, 1, 2, True),
    aten.addmm.default: (1, 2, 0, False),
    aten.mm.default: (0, 1, None, False),
    aten.matmul.default: (0, 1, None, False),
}
_QUANTIZE = "quantized_decomposed.quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"
FUSED = frozenset(["relu", "relu_", "relu6", "relu6_", "hardtanh", "hardtanh_"])


@dataclass(frozen=True)
class _Weight:
    """A constant of a graph that is stored in integers, and the numbers for each channel along ``axis``."""

    integers: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int
    bits: int

    @property
    def is_symmetric(self) -> bool:
        """XNNPACK has no zero points for weights."""
        return not bool(self.zero_point.any())

    def transposed(self) -> _Weight:
        return replace(self, integers=self.integers.t().contiguous(), axis=1 - self.axis)

    def floats(self) -> torch.Tensor:
        shape = [-1 if dim == self.axis else 1 for dim in range(self.integers.ndim)]
        return (self.integers - self.zero_point.reshape(shape)) * self.scale.reshape(shape)


def fit_weights(module: fx.GraphModule) -> None:
    """Rewrite how quantized weights are stored, in place; what the graph computes stays the same.

    - A linear layer whose activations stay in float multiplies by integers of 8 or 4 bits per channel. XNNPACK has no
      bias there, so that becomes an addition.
    - Between quantized activations integers of 4 bits are stored in 8.
    - What no kernel takes (convolutions in float, weights with zero points) is stored as the numbers that it stands
      for.
    """
    for node in list(module.graph.nodes):
        if node.target in _LINEAR:
            _fit_linear(module, node)
        elif node.target in CONVOLUTIONS:
            _fit_convolution(module, node)
    module.graph.eliminate_dead_code()
    _forget_unused(module)
    module.recompile()


def _forget_unused(module: fx.GraphModule) -> None:
    """Drop the constants that nothing reads; they would be stored all the same."""
    used = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    for prefix, owner in list(module.named_modules()):
        for name in [*owner._parameters, *owner._buffers]:
            if (f"{prefix}.{name}" if prefix else name) not in used:
                delattr(owner, name)


def is_between_quantizers(node: fx.Node) -> bool:
    """Whether a layer reads quantized values and ends, maybe after an activation function, in a quantizer."""
    users = list(node.users)
    if len(users) == 1 and _name(users[0]).removeprefix("aten.") in FUSED:
        users = list(users[0].users)
    source = node.args[_LINEAR[node.target][0]] if node.target in _LINEAR else node.args[0]
    return _name(source) == _DEQUANTIZE and len(users) == 1 and _name(users[0]) == _QUANTIZE


def _name(node: object) -> str:
    """The operator, whichever dialect and overload."""
    target = getattr(node, "target", "")
    name = getattr(target, "_schema", None)
    return name.name.replace("::", ".") if name is not None else str(target)


def _fit_linear(module: fx.GraphModule, node: fx.Node) -> None:
    input_index, weight_index, bias_index, is_row = _LINEAR[node.target]
    weight = _weight(module, node.args[weight_index])
    if weight is None or weight.integers.ndim != 2:
        return
    weight = weight if is_row else weight.transposed()
    bias = node.args[bias_index] if bias_index is not None and len(node.args) > bias_index else None
    between = is_between_quantizers(node)
    with module.graph.inserting_before(node):
        if not weight.is_symmetric or weight.axis != 0:
            constant = _constant(module, weight.floats())
        elif between:
            constant = _dequantize(module, weight, bits=8)
        else:
            # two integers of 4 bits share a byte, so a row must have an even number
            constant = _dequantize(
                module, weight, bits=4 if weight.bits <= 4 and weight.integers.shape[1] % 2 == 0 else 8
            )
        arguments = [node.args[input_index], constant]
        if bias is not None and (between or constant.op == "get_attr"):
            arguments.append(bias)
        result = _like(node, module.graph.call_function(aten.linear.default, tuple(arguments)))
        if bias is not None and len(arguments) == 2:
            result = _like(node, module.graph.call_function(aten.add.Tensor, (result, bias)))
    node.replace_all_uses_with(result)
    module.graph.erase_node(node)


def _fit_convolution(module: fx.GraphModule, node: fx.Node) -> None:
    weight = _weight(module, node.args[1])
    if weight is None:
        return
    with module.graph.inserting_before(node):
        if weight.is_symmetric and weight.integers.ndim < 5 and is_between_quantizers(node):
            constant = _dequantize(module, weight, bits=8)
        else:
            constant = _constant(module, weight.floats())
    node.update_arg(1, constant)


def _weight(module: fx.GraphModule, node: Any) -> _Weight | None:
    """The constant that ``node`` dequantizes; None if it does something else."""
    per_channel = _name(node) == "quantized_decomposed.dequantize_per_channel"
    if not per_channel and _name(node) != _DEQUANTIZE:
        return None
    stored, scale, zero_point, *rest = (_value(module, argument) for argument in node.args)
    if not isinstance(stored, torch.Tensor):
        return None
    axis, lowest, highest = rest[:3] if per_channel else (0, *rest[:2])
    if not per_channel:
        scale, zero_point = (torch.tensor(value).expand(stored.shape[0]) for value in (scale, zero_point))
    return _Weight(stored, scale.float(), zero_point.int(), axis % stored.ndim, (highest - lowest).bit_length())


def _value(module: fx.GraphModule, argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return operator.attrgetter(str(argument.target))(module).detach() if argument.op == "get_attr" else None
    return argument


def _dequantize(module: fx.GraphModule, weight: _Weight, *, bits: int) -> fx.Node:
    half = 2 ** (bits - 1)
    constants = [_constant(module, value) for value in (weight.integers, weight.scale, weight.zero_point.long())]
    arguments = (*constants, weight.axis, -half, half - 1, torch.int8)
    return module.graph.call_function(quantized.dequantize_per_channel.default, arguments)


def _constant(module: fx.GraphModule, value: torch.Tensor) -> fx.Node:
    name = f"prepbench_constant_{len(module._buffers)}"
    module.register_buffer(name, value.contiguous())
    return module.graph.get_attr(name)


def _like(old: fx.Node, new: fx.Node) -> fx.Node:
    new.meta.update({key: value for key, value in old.meta.items() if key != "val"})
    return new
