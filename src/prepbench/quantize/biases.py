"""Correct biases for the mean error of quantization, and keep them within the range of int32."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx, nn

from prepbench.quantize.layer_nodes import BIASES
from prepbench.quantize.observed_graph import observer_of

# half of what int32 holds: the sum over the products is added to it
LARGEST_BIAS = 2.0**30


def correct_biases(graph: fx.GraphModule, shifts: Mapping[str, torch.Tensor]) -> dict[str, fx.Node]:
    """Subtract the mean shift that quantization adds to each output channel from biases, in place.

    Layers without a bias stay without one. A corrected bias is a new parameter; the old one may be shared.

    Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
    Correction", 2019, section 4.2, with the mean measured on samples.

    Args:
        graph: an observed graph.
        shifts: the mean difference of each output channel, by node name of the layer's call.

    Returns:
        The bias that each corrected layer had before, by name of its node: see :func:`restore_biases`.
    """
    before: dict[str, fx.Node] = {}
    for node in list(graph.graph.nodes):
        shift = shifts.get(node.name)
        bias = _bias(node)
        if shift is None or bias is None or not bool(shift.isfinite().all()):
            continue
        value = operator.attrgetter(str(bias.target))(graph).detach()
        if value.shape != shift.shape:
            continue
        name = f"{node.name}_corrected_bias"
        graph.register_parameter(name, nn.Parameter(value - shift.to(value), requires_grad=False))
        with graph.graph.inserting_before(node):
            new = graph.graph.get_attr(name)
        new.meta = dict(bias.meta)
        before[node.name] = bias
        node.args = tuple(new if argument is bias else argument for argument in node.args)
    return before


def restore_biases(graph: fx.GraphModule, before: Mapping[str, fx.Node]) -> None:
    """Undo :func:`correct_biases`, in place."""
    for node in list(graph.graph.nodes):
        if node.name in before:
            corrected = _bias(node)
            assert corrected is not None
            node.replace_input_with(corrected, before[node.name])
            graph.graph.erase_node(corrected)


def fit_biases(graph: fx.GraphModule) -> None:
    """Widen the scales of calibrated weights, in place, where the bias would not fit otherwise.

    Integer kernels add the bias as int32 of scale (input scale x weight scale). A channel with tiny weights and a
    large bias (a folded batch norm leaves such channels) would need more than 32 bits. Its scale is raised until the
    bias fits; the loss in the weights is far below the resolution of the bias.
    """
    for node in graph.graph.nodes:
        bias = _bias(node)
        if bias is None:
            continue
        input_index, weight_index, _ = BIASES[node.target]
        activation, weight = (observer_of(graph, node.args[index]) for index in (input_index, weight_index))
        if activation is None or weight is None:
            continue
        scale = float(activation.calculate_qparams()[0])
        weight.widen(operator.attrgetter(str(bias.target))(graph).detach().abs() / (scale * LARGEST_BIAS))


def _bias(node: fx.Node) -> fx.Node | None:
    """Return the parameter that a layer's node adds."""
    if node.op != "call_function" or node.target not in BIASES:
        return None
    index = BIASES[node.target][2]
    bias = node.args[index] if len(node.args) > index else None
    return bias if isinstance(bias, fx.Node) and bias.op == "get_attr" else None
