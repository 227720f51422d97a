"""Running a float graph as it would be quantized, without changing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench.jobs import check_cancelled
from prepbench.quantize.layer_noise import LayerNoise, first_states
from prepbench.quantize.plan import Edge


@dataclass(frozen=True)
class Changes:
    """What is computed in another way than in float; by names of nodes, and edges as (user, source).

    Attributes:
        results: the quantizer of a node's result, for all that read it.
        operands: the quantizer of what enters a node.
        constants: what a node reads in the place of a weight or a bias, made of the value in float.
        operators: what is called in the place of a node's operator.
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
    """Runs a graph in float, and shows results to observers.

    Args:
        graph: runs.
        observers: called with the result of the node of this name.
    """

    def __init__(self, graph: fx.GraphModule, observers: Mapping[str, Sequence[Callable[[Any], Any]]]) -> None:
        super().__init__(graph)
        self._observers = observers

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        for observer in self._observers.get(n.name, ()):
            observer(output)
        return output


class Measuring(fx.Interpreter):
    """Runs a graph in float, and layers a second time with changes.

    Args:
        graph: runs.
        trials: by name of a layer's node: the changes, the axis of its output that counts channels, and where the noise
            is added up.
    """

    def __init__(self, graph: fx.GraphModule, trials: Mapping[str, Sequence[tuple[Changes, int, LayerNoise]]]) -> None:
        super().__init__(graph)
        self._trials = trials

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        for changes, channels, noise in self._trials.get(n.name, ()):
            right = first_states(output)
            if isinstance(right, torch.Tensor) and right.numel():
                args, kwargs = arguments(n, self.env, changes)
                call = changes.operators.get(n.name, n.target)
                assert callable(call)
                noise.add(right, first_states(call(*args, **kwargs)), channels)
        return output


def arguments(n: fx.Node, values: Mapping[fx.Node, Any], changes: Changes) -> tuple[Any, Any]:
    """The arguments of a node's call, with changes."""

    def load(source: fx.Node) -> Any:
        value, edge = values[source], (n.name, source.name)
        if edge in changes.constants:
            return changes.constants[edge](value)
        quantizer = changes.operands.get(edge)
        if quantizer is None or quantizer is changes.results.get(source.name):
            return value
        return quantizer.simulate(value)

    return fx.node.map_arg(n.args, load), fx.node.map_arg(n.kwargs, load)
