"""What quantizing each layer does to the outputs, estimated for all layers at once."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prepbench.compile.float_program import FloatProgram
from prepbench.jobs import ProgressCallback
from prepbench.quantize import Statistics, calibrate
from prepbench.quantize.changed_weights import change_weights
from prepbench.quantize.fitting import fitting_schemes
from prepbench.quantize.insert import float_graph, observed_with
from prepbench.quantize.mixed_graph import MixedGraph
from prepbench.quantize.output_noise import OutputNoise, estimate_output_noise
from prepbench.quantize.placement import without_lone_refusals
from prepbench.quantize.plan import make_plan
from prepbench.running.tracing import tracing
from prepbench.settings import QuantizationSettings
from prepbench.targets import target_for


@dataclass(frozen=True)
class Rounded:
    """A value that is rounded as soon as one of several layers is quantized, and only once if several are.

    Attributes:
        quantizer: which value, how it is rounded, and for whom; equal where it is the same.
        noise: what rounding it does to the outputs.
        needed_by: FQNs of the layers.
    """

    quantizer: tuple[Any, ...]
    noise: float
    needed_by: frozenset[str]


@dataclass(frozen=True)
class LayerEffects:
    """What quantizing layers does to the outputs, in parts that add up: noise relative to the signal, or nats.

    Attributes:
        weights: by FQN.
        values: what is rounded between layers.
    """

    weights: Mapping[str, float]
    values: Sequence[Rounded]

    def alone(self, fqn: str) -> float:
        """What one layer does while all others are in float."""
        return math.fsum([self.weights[fqn], *(value.noise for value in self.values if fqn in value.needed_by)])

    def with_weights(self, weights: Hashable) -> LayerEffects:
        """The same, told apart from the effects in a graph with other weights, whose values are others."""
        return replace(self, values=[replace(one, quantizer=(*one.quantizer, weights)) for one in self.values])


def layer_effects(
    source: FloatProgram,
    mixed: MixedGraph,
    mixture: Mapping[str, QuantizationSettings],
    statistics: Statistics,
    unchanged: Statistics,
    progress: ProgressCallback,
) -> LayerEffects:
    """What layers' weights and the values around them do to the outputs, each apart from all others.

    A value that a layer gives and another one reads is rounded for both, once. What enters layers and what they give is
    estimated apart, because who quantizes a result rounds it for all that read it, and who quantizes what it reads for
    itself only.

    Args:
        source: the captured model.
        mixed: its graph, which knows the outputs in float.
        mixture: the settings of all layers.
        statistics: what was learned before of a graph with these weights; what is learned now is added.
        unchanged: the same of the graph before algorithms changed weights.
        progress: called after each sample; may raise to cancel.
    """
    read = _noise(source, mixed, mixture, statistics, unchanged, progress, of_results=False)
    given = _noise(source, mixed, mixture, statistics, unchanged, progress, of_results=True)
    weights = {fqn: next(iter(schemes.values())) for fqn, schemes in read.weights.items()}
    givers = {given.quantizers[name]: layers for name, layers in given.needed_by.items()}
    values, rest = [], {given.quantizers[name]: noise for name, noise in given.values.items()}
    for number, (name, noise) in enumerate(read.values.items()):
        quantizer = read.quantizers[name]
        needed_by = read.needed_by[name] | givers.get(quantizer, frozenset())
        values.append(Rounded((*quantizer, number), noise, needed_by))
        if quantizer in rest:
            rest[quantizer] -= noise
    values += [
        Rounded((*quantizer, "rest"), noise, givers[quantizer]) for quantizer, noise in rest.items() if noise > 0
    ]
    return LayerEffects(weights, values)


def _noise(
    source: FloatProgram,
    mixed: MixedGraph,
    mixture: Mapping[str, QuantizationSettings],
    statistics: Statistics,
    unchanged: Statistics,
    progress: ProgressCallback,
    *,
    of_results: bool,
) -> OutputNoise:
    """That of weights and of what enters layers, or that of rounding the results of layers."""
    with tracing(progress):
        graph, written = float_graph(source.program, source.options)
        change_weights(graph, mixture, source.layers, source.options, source.samples, progress, unchanged)
        placement = without_lone_refusals(target_for(source.settings).placement)
        plan = make_plan(graph, mixture, placement)
        left_out: dict[str, Any] = {"inputs": ()} if of_results else {"output": None}
        points = [replace(point, **left_out) for point in plan.points if point.output is not None or not of_results]
        if of_results and not points:
            return OutputNoise(bool(mixed.logits))
        plan = replace(plan, points=points)
        observed = observed_with(graph, plan, placement, source.options, written)
    observed = calibrate(observed, source.samples, progress, statistics)
    schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
    return estimate_output_noise(
        observed.graph,
        plan,
        {fqn: [scheme] for fqn, scheme in schemes.items()},
        mixed.scored,
        mixed.expected(),
        logits=mixed.logits,
        corrected=source.options.bias_correction,
        statistics=statistics,
    )
