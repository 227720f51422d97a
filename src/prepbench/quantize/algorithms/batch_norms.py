"""Fold the batch norms of an ATen graph into the layers in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from prepbench.quantize.algorithms.constants import Constants, assign_constant, bias_of, consumers, value_of
from prepbench.quantize.layer_nodes import BIASES, CONVOLUTIONS, TRANSPOSED, WEIGHTED, is_weight

aten = torch.ops.aten

# operator -> index of its epsilon
NORMS = {aten.batch_norm.default: 7, aten._native_batch_norm_legit_no_training.default: 6}


@dataclass(frozen=True)
class _Norm:
    """A batch norm and the layer before it.

    Attributes:
        node: the batch norm.
        layer: the layer before it, which nothing else reads.
        weight: the layer's weight.
        constants: the norm's weight, bias, mean and variance; None for a weight or bias that it lacks.
        epsilon: the constant that is added to the variance.
    """

    node: fx.Node
    layer: fx.Node
    weight: fx.Node
    constants: tuple[fx.Node | None, ...]
    epsilon: float

    @property
    def statistics(self) -> tuple[object, ...]:
        """The operands of the norm; equal for all calls of one norm."""
        return (*(None if node is None else node.target for node in self.constants), self.epsilon)


@torch.no_grad()
def fold_batch_norms(graph: fx.GraphModule) -> None:
    """Fold batch norms into the convolutions and linear layers that they follow, in place.

    A layer that is called several times takes a norm only where the same norm follows each call. If something else
    reads the layer's result, the norm stays; so it does behind linear layers over more than one row, where the norm
    counts another axis. Tensors outside of ``graph`` do not change.

    Source: Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko, "Quantization and Training of Neural Networks
    for Efficient Integer-Arithmetic-Only Inference", 2017, section 3.2.
    """
    known = Constants(graph)
    norms = (_norm(graph, node, known) for node in graph.graph.nodes)
    found = {norm.layer: norm for norm in norms if norm is not None}
    if not found:
        return
    done: set[fx.Node] = set()
    for layer, norm in found.items():
        if layer in done:
            continue
        calls = [found.get(reader) for reader in sorted(known.readers(norm.weight))]
        group = [call for call in calls if call is not None and call.statistics == norm.statistics]
        done.update(call.layer for call in group)
        if len(group) == len(calls):
            _fold(known, group)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _norm(graph: fx.GraphModule, node: fx.Node, known: Constants) -> _Norm | None:
    """Return the batch norm that ``node`` is, if it can be folded into the layer before it."""
    if node.op != "call_function" or node.target not in NORMS:
        return None
    layer = node.args[0]
    if not isinstance(layer, fx.Node) or layer.target not in WEIGHTED or layer.target not in BIASES:
        return None
    constants = tuple(node.args[1:5])
    is_training = node.target is aten.batch_norm.default and node.args[5]
    weight = layer.args[WEIGHTED[layer.target][1]]
    if is_training or consumers(layer) != [node] or not is_weight(weight, layer) or not known.can_scale(weight):
        return None
    if layer.target not in CONVOLUTIONS | TRANSPOSED and layer.meta["val"].ndim != 2:
        return None
    if None in constants[2:] or not all(_is_constant(known, constant) for constant in constants):
        return None
    try:
        bias_of(known, layer)
    except ValueError:
        return None
    epsilon = node.args[NORMS[node.target]]
    assert isinstance(epsilon, float)
    return _Norm(node, layer, weight, constants, epsilon)  # type: ignore[arg-type]


def _is_constant(known: Constants, node: object) -> bool:
    return node is None or (isinstance(node, fx.Node) and node.op == "get_attr" and known.can_scale(node))


def _fold(known: Constants, calls: Sequence[_Norm]) -> None:
    """Fold one norm into all calls of one layer, whose weight nothing else uses."""
    graph, first = known.graph, calls[0]
    scale, shift, mean, variance = (
        None if node is None else value_of(graph, node).double() for node in first.constants
    )
    assert mean is not None
    assert variance is not None
    factor = (variance + first.epsilon).rsqrt() * (1 if scale is None else scale)
    weight = value_of(graph, first.weight)
    folded = scaled_weight(weight.double(), factor, WEIGHTED[first.layer.target][2]).to(weight.dtype)
    for target in {str(call.weight.target) for call in calls}:
        assign_constant(graph, target, folded)
    for call in calls:
        bias = bias_of(known, call.layer)
        offset = (0 if bias is None else value_of(graph, bias).double()) - mean
        _set_bias(graph, call, (offset * factor + (0 if shift is None else shift)).to(weight.dtype))
        _skip(call.node, call.layer)


def scaled_weight(weight: torch.Tensor, factor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the weight times a factor for each channel of ``axis``, which may span the groups of another axis."""
    groups = len(factor) // weight.shape[axis] if axis else 1
    rows = weight.unflatten(0, (groups, -1)) if axis else weight.unsqueeze(0)
    shape = [groups, *(1 for _ in weight.shape)]
    shape[axis + 1] = -1
    return (rows * factor.view(shape)).flatten(0, 1).reshape(weight.shape)


def _set_bias(graph: fx.GraphModule, call: _Norm, value: torch.Tensor) -> None:
    path, _, name = str(call.weight.target).rpartition(".")
    name = f"{name}_{call.layer.name}_bias"
    graph.get_submodule(path).register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    with graph.graph.inserting_before(call.layer):
        bias = graph.graph.get_attr(f"{path}.{name}" if path else name)
    mean = call.constants[2]
    assert mean is not None
    bias.meta = dict(mean.meta)
    index = BIASES[call.layer.target][2]
    arguments = list(call.layer.args)
    arguments += [None] * (index + 1 - len(arguments))
    arguments[index] = bias
    call.layer.args = tuple(arguments)
    call.layer.kwargs = {key: argument for key, argument in call.layer.kwargs.items() if key != "bias"}


def _skip(norm: fx.Node, layer: fx.Node) -> None:
    """Replace the norm by the layer for all readers."""
    outputs = [norm] if norm.target is aten.batch_norm.default else [u for u in norm.users if u.args[1] == 0]
    for output in outputs:
        output.replace_all_uses_with(layer)
