"""Run a graph as it would be quantized, without changing it.

The one simulator: a compile runs its observed graph by it, and a search its float graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench.jobs import check_cancelled
from prepbench.quantize.dynamic_lstm import OPERATOR
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.observed import observed_value, observer_of
from prepbench.quantize.plan import Edge, Plan
from prepbench.quantize.weights import WeightScheme


@dataclass(frozen=True)
class Changes:
    """Deviations from the float graph, by names of nodes and edges as (user, source).

    Attributes:
        results: the quantizer of a node's result, for all that read it.
        operands: the quantizer of a node's input.
        constants: the replacement of a weight or a bias, as a function of its float value.
        operators: the replacement of a node's operator.
    """

    results: dict[str, Any] = field(default_factory=dict)
    operands: dict[Edge, Any] = field(default_factory=dict)
    constants: dict[Edge, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    operators: dict[str, Callable[..., Any]] = field(default_factory=dict)


class QuantizedRun(fx.Interpreter):
    """Runs a graph with changes. Several threads may run one graph, each with a run of its own."""

    def __init__(self, graph: fx.GraphModule, changes: Changes) -> None:
        super().__init__(graph)
        self._changes = changes

    def run_node(self, n: fx.Node) -> Any:
        check_cancelled()
        changes = self._changes
        if n.name in changes.operators:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            output = changes.operators[n.name](*args, **kwargs)
        else:
            output = super().run_node(n)
        quantizer = changes.results.get(n.name)
        return output if quantizer is None else quantizer.simulate(output)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        return arguments(n, self.env, self._changes)


class Watching(fx.Interpreter):
    """Runs a graph in float, and passes results to observers.

    Args:
        graph: runs.
        observers: called with the result of the node of this name.
        ends_early: leave out what comes behind the last of these nodes; the run returns None.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        observers: Mapping[str, Sequence[Callable[[Any], Any]]],
        *,
        ends_early: bool = False,
    ) -> None:
        super().__init__(graph)
        self._observers = observers
        watched = [node.name for node in graph.graph.nodes if node.name in observers]
        self._last = watched[-1] if ends_early and watched else None
        self.extra_traceback = not ends_early

    def run(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().run(*args, **kwargs)
        except _SeenAll:
            return None

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        for observer in self._observers.get(n.name, ()):
            observer(output)
        if n.name == self._last:
            raise _SeenAll
        return output


class _SeenAll(Exception):
    """Ends a run whose further results nobody reads."""


Trial = tuple[Changes, Callable[[torch.Tensor, torch.Tensor], object]]


class Measuring(fx.Interpreter):
    """Runs a graph in float, and layers a second time with changes.

    Args:
        graph: runs.
        trials: by name of a layer's node: changes, and what is called with its output in float and with these changes.
    """

    def __init__(self, graph: fx.GraphModule, trials: Mapping[str, Sequence[Trial]]) -> None:
        super().__init__(graph)
        self._trials = trials

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        for changes, compare in self._trials.get(n.name, ()):
            right = first_states(output)
            if isinstance(right, torch.Tensor) and right.numel():
                compare(right, changed_result(n, self.env, changes))
        return output


def changed_result(n: fx.Node, values: Mapping[fx.Node, Any], changes: Changes) -> torch.Tensor:
    """Return what a layer's node returns with changes to what it reads, and to its operator."""
    args, kwargs = arguments(n, values, changes)
    call = changes.operators.get(n.name, n.target)
    assert callable(call)
    result: torch.Tensor = first_states(call(*args, **kwargs))
    return result


def arguments(n: fx.Node, values: Mapping[fx.Node, Any], changes: Changes) -> tuple[Any, Any]:
    """Return the arguments of a node's call, with changes."""

    def load(source: fx.Node) -> Any:
        value, edge = values[source], (n.name, source.name)
        if edge in changes.constants:
            return changes.constants[edge](value)
        quantizer = changes.operands.get(edge)
        # The result is quantized already by the same quantizer; twice would give the same and cost a pass.
        if quantizer is None or quantizer is changes.results.get(source.name):
            return value
        return quantizer.simulate(value)

    return fx.node.map_arg(n.args, load), fx.node.map_arg(n.kwargs, load)


def changes_of(graph: fx.GraphModule, plan: Plan) -> Changes:
    """Return the changes to a graph with calibrated observers that make those simulate which ``plan`` names."""
    observers = {node: found for node in graph.graph.nodes if (found := observer_of(graph, node)) is not None}
    named = set()
    for node, observer in observers.items():
        source = observed_value(graph, node).name
        edges = [(user.name, source) for user in node.users]
        if source in plan.outputs or any(edge in plan.inputs or edge in plan.weights for edge in edges):
            named.add(id(observer))
    results = {node.name: observer for node, observer in observers.items() if id(observer) in named}
    return Changes(results=results, operators=dict.fromkeys(in_integers(graph, plan), OPERATOR))


def in_integers(graph: fx.GraphModule, plan: Plan) -> list[str]:
    """Return the nodes of an observed graph that find ranges in each call, with the current schemes of weights."""
    nodes = {node.name: node for node in graph.graph.nodes}
    found = []
    for layer in (layer for layers in plan.nodes.values() for layer in layers if layer.node.name in plan.dynamic):
        weight = layer.weight_operands(nodes[layer.node.name].args)[0]
        scheme = getattr(observer_of(graph, weight), "scheme", None)
        if scheme is None or not scheme.multiplies_in_float:
            found.append(layer.node.name)
    return found


def rounded_weights(
    graph: torch.nn.Module, layer: LayerNode, node: fx.Node, scheme: WeightScheme, *, is_dynamic: bool
) -> Changes:
    """Return the changes that give a layer, at its node of an observed graph, weights in integers."""

    def rounded(operand: fx.Node) -> Callable[[torch.Tensor], torch.Tensor]:
        found = observer_of(graph, operand).found

        def floats(weight: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = found.rows(layer.axis, scheme).floats(weight, layer.axis)
            return result

        return floats

    return Changes(
        constants={(node.name, operand.name): rounded(operand) for operand in layer.weight_operands(node.args)},
        operators={node.name: OPERATOR} if is_dynamic else {},
    )


def observed_inputs(graph: fx.GraphModule, layer: LayerNode, node: fx.Node) -> dict[Edge, Any]:
    """Return the observers of the inputs of a layer, for :attr:`Changes.operands`."""
    return {
        (node.name, argument.name): observer
        for index, argument in enumerate(node.args)
        if isinstance(argument, fx.Node)
        and index != layer.weight_index
        and (observer := observer_of(graph, argument)) is not None
    }


def first_states(output: Any) -> Any:
    """Return a layer's output; where a recurrent one returns its last states, too, only the states of all steps."""
    return output[0] if isinstance(output, tuple) else output


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """Return a graph's output as a tuple, also a single value."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
