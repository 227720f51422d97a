"""What quantizing each layer costs: its output with and without, on real samples, before anything is converted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize.layers import LayerCall
from prepbench.quantize.plan import Plan
from prepbench.quantize.weights import WeightForm, rounded, weight_qparams

# rows (first dims) of samples that are measured; more hardly change a mean over all their positions
ROWS = 8


@dataclass
class Tally:
    """Sums over all samples, for one call of a layer in one form.

    Attributes:
        noise: power of what quantizing adds to the output.
        signal: power of the output in float.
        shift: what it adds to each output channel, summed.
        count: how many values of each channel were summed.
    """

    noise: float = 0.0
    signal: float = 0.0
    shift: torch.Tensor | None = None
    count: int = 0

    def add(self, right: torch.Tensor, got: torch.Tensor, channels: int) -> None:
        """Count one output."""
        difference = got - right
        self.noise += float(torch.linalg.vector_norm(difference)) ** 2
        self.signal += float(torch.linalg.vector_norm(right)) ** 2
        others = [axis for axis in range(right.ndim) if axis != channels % right.ndim]
        total = difference.sum(others).double() if others else difference.double()
        self.shift = total if self.shift is None else self.shift + total
        self.count += difference.numel() // max(1, difference.shape[channels])

    @property
    def mean_shift(self) -> torch.Tensor | None:
        """What quantizing adds to the mean of each channel."""
        return None if self.shift is None or not self.count else (self.shift / self.count).float()


def ratio(tallies: Sequence[Tally]) -> float:
    """Noise to signal over all calls of a layer; infinite where anything is not finite."""
    noise, signal = (sum(getattr(tally, name) for tally in tallies) for name in ("noise", "signal"))
    if noise == 0:
        return 0.0
    value = noise / signal if signal else math.inf
    return value if math.isfinite(value) else math.inf


def decibels(noise_to_signal: float) -> float:
    """A ratio of powers as SQNR in dB, within ±300: 300 stands for no noise at all."""
    if noise_to_signal == 0:
        return _NO_NOISE
    return max(-_NO_NOISE, -10 * math.log10(noise_to_signal)) if math.isfinite(noise_to_signal) else -_NO_NOISE


_NO_NOISE = 300.0


@dataclass
class Measured:
    """What one pass over samples found.

    Attributes:
        tallies: by node name of the call, for each form of its weight.
        outputs: the results in float of each sample: leaves.
        work: by node name of the call, how many multiplications it needs on all samples.
    """

    tallies: dict[str, dict[WeightForm, Tally]] = field(default_factory=dict)
    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    work: dict[str, int] = field(default_factory=dict)


def chosen_samples(samples: Sequence[Sample]) -> list[Sample]:
    """A few samples, from all over the list: as many as have some :data:`ROWS` rows together."""
    rows = max([1, *(leaf.shape[0] for leaf in samples[0].args if isinstance(leaf, torch.Tensor) and leaf.ndim)])
    count = max(1, ROWS // rows)
    return list(samples[:: max(1, len(samples) // count)][:count])


def measure(
    graph: fx.GraphModule,
    plan: Plan,
    forms: Mapping[str, Sequence[WeightForm]],
    samples: Sequence[Sample],
    progress: ProgressCallback,
) -> Measured:
    """Run samples through a graph with calibrated observers, and each quantized layer a second time with integers.

    Args:
        graph: observed and calibrated; its observers must be in the mode ``"pass"``.
        plan: which layers there are.
        forms: the candidates for each layer's weight, by FQN.
        samples: calls of the graph.
        progress: called after each sample; may raise to cancel.
    """
    calls = {call.node.name: (call, forms[fqn]) for fqn, of_layer in plan.calls.items() for call in of_layer}
    result = Measured()
    progress(Progress("measure", 0, len(samples)))
    with torch.no_grad():
        runner = _Runner(graph, calls, result)
        for done, sample in enumerate(samples, start=1):
            result.outputs.append(_listed(runner.run(*sample.args)))
            progress(Progress("measure", done, len(samples)))
    return result


class _Runner(fx.Interpreter):
    """Runs the graph and, at each layer, the layer again with what its observers make of its operands."""

    def __init__(
        self, graph: fx.GraphModule, calls: Mapping[str, tuple[LayerCall, Sequence[WeightForm]]], result: Measured
    ) -> None:
        super().__init__(graph)
        self._calls = calls
        self._result = result
        self._weights: dict[tuple[str, WeightForm], torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        if n.name in self._calls and isinstance(output, torch.Tensor) and output.numel():
            self._measure(n, output)
        return output

    def _measure(self, node: fx.Node, right: torch.Tensor) -> None:
        call, forms = self._calls[node.name]
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        operands = list(args)
        for index, argument in enumerate(node.args):
            observer = observer_of(self.module, argument)
            if observer is not None and index != call.weight_index:
                operands[index] = observer.simulate(operands[index])
        weight = operands[call.weight_index]
        work = right.numel() // max(1, right.shape[call.channels]) * weight.numel()
        self._result.work[node.name] = self._result.work.get(node.name, 0) + work
        assert callable(node.target)
        for form in forms:
            key = (node.name, form)
            if key not in self._weights:
                self._weights[key] = rounded(weight, call.axis, form, weight_qparams(weight, call.axis, form))
            operands[call.weight_index] = self._weights[key]
            tallies = self._result.tallies.setdefault(node.name, {})
            tallies.setdefault(form, Tally()).add(right, node.target(*operands, **kwargs), call.channels)


def observer_of(graph: torch.nn.Module, node: object) -> Any:
    """The observer that a node calls, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph.get_submodule(str(node.target))
    return module if hasattr(module, "calculate_qparams") else None


def all_observers(graph: fx.GraphModule) -> list[Any]:
    """The observers that the graph calls, each once."""
    found = (observer_of(graph, node) for node in graph.graph.nodes)
    return list({id(observer): observer for observer in found if observer is not None}.values())


def set_mode(graph: fx.GraphModule, mode: str) -> None:
    """What all observers do from now on: ``"observe"``, ``"pass"`` or ``"simulate"``."""
    for observer in all_observers(graph):
        observer.mode = mode


def _simulate(graph: fx.GraphModule, plan: Plan) -> None:
    """Let those observers simulate that ``plan`` names, and the others pass."""
    set_mode(graph, "pass")
    for node in graph.graph.nodes:
        observer = observer_of(graph, node)
        if observer is None:
            continue
        source = observed_value(graph, node).name
        edges = [(user.name, source) for user in node.users]
        if source in plan.outputs or any(edge in plan.inputs or edge in plan.weights for edge in edges):
            observer.mode = "simulate"


def observed_value(graph: torch.nn.Module, node: fx.Node) -> fx.Node:
    """What an observer looks at, behind other observers."""
    while observer_of(graph, node) is not None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def simulated_sqnr(
    graph: fx.GraphModule, samples: Sequence[Sample], expected: Sequence[tuple[Any, ...]], plan: Plan
) -> float:
    """SQNR in dB of the model's outputs when quantized as ``plan`` says, the worst of its floating outputs; leaves the
    mode ``"pass"``.
    """
    _simulate(graph, plan)
    noise: dict[int, float] = {}
    signal: dict[int, float] = {}
    try:
        with torch.no_grad():
            for sample, right in zip(samples, expected, strict=True):
                got = _listed(sample.call(graph))
                for index, (one, other) in enumerate(zip(right, got, strict=True)):
                    if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel():
                        difference = torch.where(one == other, 0.0, (one - other).double())
                        noise[index] = noise.get(index, 0.0) + float(difference.square().sum())
                        signal[index] = signal.get(index, 0.0) + float(
                            torch.where(one.isfinite(), one, 0.0).double().square().sum()
                        )
    finally:
        set_mode(graph, "pass")
    ratios = [noise[index] / signal[index] if signal[index] else math.inf for index in noise if noise[index]]
    return min(map(decibels, ratios), default=_NO_NOISE)


def _listed(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def first_not_finite(graph: fx.GraphModule, sample: Sample) -> fx.Node | None:
    """The first node, in execution order, whose result on a sample is not finite although what it reads is."""
    found: list[fx.Node] = []

    class Finder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            output = super().run_node(n)
            if not found and n.op == "call_function" and _has_nan_or_inf(output):
                arguments = [self.env[source] for source in n.all_input_nodes if source in self.env]
                if not any(_has_nan_or_inf(value) for value in arguments):
                    found.append(n)
            return output

    set_mode(graph, "pass")
    with torch.no_grad():
        Finder(graph, garbage_collect_values=False).run(*sample.args)
    return found[0] if found else None


def _has_nan_or_inf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
