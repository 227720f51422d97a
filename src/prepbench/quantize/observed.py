"""A graph with PT2E's observers, the value that the stages pass on."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from prepbench.quantize.floors import InFloat, Score
from prepbench.quantize.layer_nodes import BIASES
from prepbench.quantize.plan import Plan
from prepbench.quantize.report import LayerReport
from prepbench.settings import CompileOptions


@dataclass(frozen=True)
class Observed:
    """A graph with observers, and the plan of each layer.

    Attributes:
        graph: the graph, which the stages change.
        layers: the plan of each layer.
        plan: which values the observers stand for.
        options: algorithms and floors.
        score: how far the outputs are from float on calibration samples, once it has been simulated.
        in_float: the outputs in float on the same samples; None where others are judged.
        reused: the stages that found all or some of their results in :class:`Statistics`, in words.
        scaled: layers whose weights an algorithm changed before.
        written: the initial values of the buffers that the graph writes to, by name.
    """

    graph: fx.GraphModule
    layers: tuple[LayerReport, ...]
    plan: Plan = field(default_factory=Plan)
    options: CompileOptions = field(default_factory=CompileOptions)
    score: Score | None = None
    in_float: InFloat | None = None
    reused: tuple[str, ...] = ()
    scaled: frozenset[str] = frozenset()
    written: dict[str, torch.Tensor] = field(default_factory=dict)


# The observers of a graph: find them, switch their mode, and remove them.


def observer_of(graph: torch.nn.Module, node: object) -> Any:
    """Return the observer that a node calls, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph.get_submodule(str(node.target))
    return module if hasattr(module, "calculate_qparams") else None


def all_observers(graph: fx.GraphModule) -> list[Any]:
    """Return the observers that the graph calls, each once."""
    found = (observer_of(graph, node) for node in graph.graph.nodes)
    return list({id(observer): observer for observer in found if observer is not None}.values())


def set_mode(graph: fx.GraphModule, mode: str) -> None:
    """Set the mode of all observers: ``"observe"`` learns ranges, ``"pass"`` does nothing."""
    for observer in all_observers(graph):
        observer.mode = mode


def observed_value(graph: torch.nn.Module, node: fx.Node) -> fx.Node:
    """Return the value that an observer sees, behind other observers."""
    while observer_of(graph, node) is not None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def remove_observers(graph: fx.GraphModule, plan: Plan) -> None:
    """Remove all observers that ``plan`` does not name, in place."""
    for node in list(graph.graph.nodes):
        if observer_of(graph, node) is None:
            continue
        source = observed_value(graph, node)
        if source.name in plan.outputs:
            continue
        for user in list(node.users):
            edge = (user.name, source.name)
            if edge not in plan.inputs and edge not in plan.weights and observer_of(graph, user) is None:
                user.replace_input_with(node, source)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


# Correct biases for the mean error of quantization, and keep them within the range of int32.


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
