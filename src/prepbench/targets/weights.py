"""Quantized weights in graphs: find them, and store them in the layout of a target's kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import register_quantized_operators, schema_of
from prepbench.capture.aten.export_program import dynamic_sizes, export_again
from prepbench.errors import TargetError, sentence
from prepbench.internal_errors import raise_if_internal
from prepbench.quantize.layer_nodes import CONVOLUTIONS, TRANSPOSED
from prepbench.settings.numbers import NumberFormat

register_quantized_operators()
aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed
Program = torch.export.ExportedProgram

# operator -> (index of the input, of the weight, of the bias or None, whether a row of the weight is an output)
_LINEAR: dict[Any, tuple[int, int, int | None, bool]] = {
    aten.linear.default: (0, 1, 2, True),
    aten.addmm.default: (1, 2, 0, False),
    aten.mm.default: (0, 1, None, False),
    aten.matmul.default: (0, 1, None, False),
}


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight of a graph that is stored in integers.

    Attributes:
        integers: int8; for linear layers a row is an output.
        scale: float32, for each channel along ``axis``, or one for all.
        zero_point: int32, likewise.
        axis: the dim of the channels; 0 where one scale is for all.
        bits: the bits that the integers need.
    """

    integers: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int
    bits: int

    @property
    def is_symmetric(self) -> bool:
        """Whether integer kernels can multiply by it: it has no zero points, and its channels are outputs."""
        return self.axis == 0 and not bool(self.zero_point.any())

    def floats(self) -> torch.Tensor:
        """Return the dequantized weight."""
        shape = [-1 if dim == self.axis else 1 for dim in range(self.integers.ndim)]
        return (self.integers - self.zero_point.reshape(shape)) * self.scale.reshape(shape)


_CONVOLUTIONS = CONVOLUTIONS | TRANSPOSED
Choice = Callable[[fx.Node, QuantizedWeight], NumberFormat]


def fit_weights(module: fx.GraphModule, choose: Choice) -> bool:
    """Rewrite how quantized weights are stored, in place; the graph's results stay the same.

    Products with a weight become ``aten.linear``, and there is one scale for each output channel, because this is
    what compilers look for.

    Args:
        module: a graph with its weights as attributes.
        choose: for a layer's node and its weight, the format to store it in; float32 where a target has no kernel or
            would dequantize in each call.

    Returns:
        Whether the graph has quantized weights.
    """
    found = False
    for node in list(module.graph.nodes):
        if node.target not in _LINEAR and node.target not in _CONVOLUTIONS:
            continue
        weight = _weight(module, node.args[1 if node.target in _CONVOLUTIONS else _LINEAR[node.target][1]])
        if weight is None:
            continue
        found = True
        with module.graph.inserting_before(node):
            if node.target in _CONVOLUTIONS:
                node.update_arg(1, _stored(module, weight, choose(node, weight)))
            elif weight.integers.ndim == 2:
                _as_linear(module, node, weight, choose)
    if found:
        module.graph.eliminate_dead_code()
        _forget_unused(module)
        module.recompile()
    return found


def input_of(node: fx.Node) -> fx.Node:
    """Return the activation that a layer reads."""
    source = node.args[_LINEAR[node.target][0] if node.target in _LINEAR else 0]
    assert isinstance(source, fx.Node)
    return source


def operator_name(node: object) -> str:
    """Return the operator without its overload, in torch's dialect or another, such as ``"aten.relu"``."""
    schema = schema_of(getattr(node, "target", None))
    return schema.name.replace("::", ".") if schema is not None else ""


def lowered_program(module: fx.GraphModule, program: Program, inputs: tuple[Any, ...] | None = None) -> Program:
    """Return ``module``, a rewritten form of the flat ``program``, as a program with the same dynamic sizes.

    Args:
        module: the rewritten form.
        program: it is not changed.
        inputs: the inputs to trace with; by default the example inputs of ``program``.

    Raises:
        TargetError: a size cannot stay dynamic, or torch cannot export the rewritten form.
    """
    assert program.example_inputs is not None

    def error(name: str) -> TargetError:
        return TargetError(
            f"Lowering fixes the dynamic sizes of the input {name!r}. Make these axes static (DynamicAxes.set), or "
            "choose another target."
        )

    inputs = program.example_inputs[0] if inputs is None else inputs
    try:
        return export_again(module, inputs, dynamic_sizes(program), error)
    except TargetError:
        raise
    except Exception as cause:  # of any type: torch raises untyped errors where it cannot solve its own guards
        raise_if_internal(cause)
        raise TargetError(
            f"torch cannot export the graph again after it was rewritten for the target: {sentence(cause)} "
            "Choose another target, or make the dynamic axes static (DynamicAxes.set)."
        ) from cause


def _as_linear(module: fx.GraphModule, node: fx.Node, weight: QuantizedWeight, choose: Choice) -> None:
    _, _, bias_index, is_row = _LINEAR[node.target]
    if not is_row:
        axis = 0 if weight.scale.numel() == 1 else 1 - weight.axis
        weight = replace(weight, integers=weight.integers.t().contiguous(), axis=axis)
    bias = node.args[bias_index] if bias_index is not None and len(node.args) > bias_index else None
    arguments = (input_of(node), _stored(module, weight, choose(node, weight)), bias)
    linear = module.graph.call_function(aten.linear.default, arguments if bias is not None else arguments[:2])
    linear.meta = dict(node.meta)
    node.replace_all_uses_with(linear)
    module.graph.erase_node(node)


def _weight(module: fx.GraphModule, node: Any) -> QuantizedWeight | None:
    """Return the constant that ``node`` dequantizes; None for other nodes."""
    name = operator_name(node)
    if name not in ("quantized_decomposed.dequantize_per_channel", "quantized_decomposed.dequantize_per_tensor"):
        return None
    stored, scale, zero_point, *rest = (_value(module, argument) for argument in node.args)
    if not isinstance(stored, torch.Tensor):
        return None
    axis, lowest, highest = rest[:3] if name.endswith("channel") else (0, *rest[:2])
    return QuantizedWeight(
        stored,
        torch.as_tensor(scale).float().reshape(-1),
        torch.as_tensor(zero_point).int().reshape(-1),
        axis % stored.ndim,
        (highest - lowest).bit_length(),
    )


def _value(module: fx.GraphModule, argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return operator.attrgetter(str(argument.target))(module).detach() if argument.op == "get_attr" else None
    return argument


def _stored(module: fx.GraphModule, weight: QuantizedWeight, kind: NumberFormat) -> fx.Node:
    """Return a node with the weight, stored in this format."""
    if kind.is_float:
        return _constant(module, weight.floats())
    numbers = [value.expand(weight.integers.shape[weight.axis]) for value in (weight.scale, weight.zero_point.long())]
    constants = [_constant(module, value) for value in (weight.integers, *numbers)]
    arguments: tuple[Any, ...] = (*constants, weight.axis, kind.low, kind.high, kind.dtype)
    return module.graph.call_function(quantized.dequantize_per_channel.default, arguments)


def _constant(module: fx.GraphModule, value: torch.Tensor) -> fx.Node:
    name = f"prepbench_constant_{len(module._buffers)}"
    module.register_buffer(name, value.contiguous())
    return module.graph.get_attr(name)


def _forget_unused(module: fx.GraphModule) -> None:
    """Remove unused constants, because they would be saved with the model."""
    used = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    for prefix, owner in list(module.named_modules()):
        for name in [*owner._parameters, *owner._buffers]:
            if (f"{prefix}.{name}" if prefix else name) not in used:
                delattr(owner, name)
