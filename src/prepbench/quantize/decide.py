"""Decide each layer's scheme: the smallest that its sensitivity allows, or float where that is too inexact."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.objects.compare import Powers
from prepbench.quantize.floors import Floors, InFloat, Score
from prepbench.quantize.input_hessians import fitting_schemes
from prepbench.quantize.integer_program import Limit, Shared, cheapest
from prepbench.quantize.layer_noise import MeasuredLayers, bounded_decibels, chosen_samples, measure_layers
from prepbench.quantize.observed import (
    correct_biases,
    observer_of,
    remove_observers,
    restore_biases,
    set_mode,
)
from prepbench.quantize.output_noise import OutputNoise, estimate_output_noise, judged_outputs
from prepbench.quantize.plan import Plan
from prepbench.quantize.predictions import ScoreSum, logits_of
from prepbench.quantize.simulate import QuantizedRun, changes_of
from prepbench.quantize.statistics import Statistics, preserved_buffers
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import CompileOptions, QuantizationSettings
from prepbench.settings.numbers import FLOAT32

# noise to signal that a candidate may add when the settings name several but no threshold: 20 dB
CANDIDATE_LIMIT = 0.01


@dataclass
class Decisions:
    """The decisions, by FQN.

    Attributes:
        schemes: the scheme of each quantized layer's weight.
        noise: noise and signal at the output of each layer that was measured, with the scheme that was chosen; for a
            layer that stays in float, with its best one.
        left_in_float: why a layer stays in float that could be quantized.
        notes: remarks on layers that are quantized.
        score: how far the model is from float as quantized.
        in_float: what outputs are compared with; None where the model is not judged by its outputs.
        reused: the measurements that were taken from the cache, in words.
    """

    schemes: dict[str, WeightScheme] = field(default_factory=dict)
    noise: dict[str, Powers] = field(default_factory=dict)
    left_in_float: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    score: Score = field(default_factory=lambda: Score(float("inf")))
    in_float: InFloat | None = None
    reused: tuple[str, ...] = ()


def decide(
    graph: fx.GraphModule,
    plan: Plan,
    options: CompileOptions,
    samples: Sequence[Sample],
    progress: ProgressCallback,
    statistics: Statistics | None = None,
) -> Decisions:
    """Measure each layer of a calibrated graph on a few samples, decide, and change the graph accordingly, in place."""
    chosen, decisions = chosen_samples(samples), Decisions()
    candidates: dict[str, list[WeightScheme]] = {}
    for fqn in plan.nodes:
        candidates[fqn], note = fitting_schemes(plan, fqn, choices=True)
        if note:
            decisions.notes[fqn] = note
    with judged_outputs(graph) as judged:
        set_mode(graph, "pass")
        measured = measure_layers(graph, plan, candidates, chosen, progress, statistics)
        measured.outputs = [judged.judge(each) for each in measured.outputs]
        if known := len(candidates) - measured.measured:
            share = f": {known} of {len(candidates)} layers" if measured.measured else ""
            decisions.reused = (f"measure{share}",)
        noise = {
            fqn: {scheme: measured.powers_of(plan.nodes[fqn], scheme) for scheme in schemes}
            for fqn, schemes in candidates.items()
        }
        floors = Floors.of(options, list(plan.settings.values()), judged.corrected)
        for fqn, by_scheme in noise.items():
            _choose(fqn, by_scheme, plan.settings[fqn], floors, decisions)
        left = _without_left_in_float(graph, plan, decisions)
        search = FloorSearch(graph, left, options, floors, measured, chosen, statistics)
        decisions.score = search.score(decisions.schemes)
        if options.keep_ruined_layers_in_float and not search.is_enough(decisions.score):
            _reach_floor(search, decisions, {fqn: noise[fqn] for fqn in left.nodes}, floors)
        _without_left_in_float(graph, left, decisions)
    decisions.score = judged.told(decisions.score)
    outputs = tuple(each[: judged.outputs] for each in measured.outputs)
    sizes = [leaf.nbytes for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if not judged.frontier and sum(sizes) < _KEPT:
        decisions.in_float = InFloat(outputs, logits_of(graph.graph))
    return decisions


def _choose(
    fqn: str,
    noise: Mapping[WeightScheme, Powers],
    settings: QuantizationSettings,
    floors: Floors,
    decisions: Decisions,
) -> None:
    """Take the first candidate within the limit; without a threshold the best one, if it reaches the floor."""
    threshold = settings.quantization_sensitivity_threshold
    limit = threshold if threshold is not None else CANDIDATE_LIMIT
    floor, is_kept = floors.layer(settings), floors.options.keep_ruined_layers_in_float
    if is_kept:
        limit = min(limit, 10 ** (-floor / 10))
    best = _best(noise)
    within = [scheme for scheme, measured in noise.items() if measured.noise_to_signal <= limit and limit > 0]
    scheme = within[0] if within and (len(noise) > 1 or threshold is not None) else best
    decisions.noise[fqn] = noise[scheme]
    sqnr = bounded_decibels(noise[scheme])
    if threshold is not None and not within:
        sensitivity = noise[best].noise_to_signal
        decisions.left_in_float[fqn] = (
            f"its sensitivity {sensitivity:.2g} ({sqnr:.1f} dB) is above the threshold of {threshold:g}"
        )
    elif is_kept and sqnr < floor:
        decisions.left_in_float[fqn] = f"its output would be at {sqnr:.1f} dB, below the floor of {floor:g} dB"
    else:
        decisions.schemes[fqn] = scheme


def _best(noise: Mapping[WeightScheme, Powers]) -> WeightScheme:
    """Return the candidate that adds least noise."""
    return min(noise, key=lambda scheme: noise[scheme].noise_to_signal)


def _reach_floor(
    search: FloorSearch, decisions: Decisions, noise: Mapping[str, Mapping[WeightScheme, Powers]], floors: Floors
) -> None:
    """Change decisions until the whole model reaches its floor."""
    chosen, before = decisions.schemes, decisions.score
    choices = {fqn: _finer(by_scheme, chosen[fqn]) for fqn, by_scheme in noise.items()}
    decisions.schemes = search.reach_floor(choices)
    decisions.score = search.score(decisions.schemes)
    for fqn, by_scheme in noise.items():
        if decisions.schemes.get(fqn) == chosen[fqn]:
            continue
        decisions.noise[fqn] = by_scheme[decisions.schemes.get(fqn, _best(by_scheme))]
        if fqn not in decisions.schemes:
            decisions.left_in_float[fqn] = floors.why_not(before, decisions.score)


def _finer(noise: Mapping[WeightScheme, Powers], chosen: WeightScheme) -> list[WeightScheme]:
    """Return a scheme, and the candidates that add less noise."""
    limit = noise[chosen].noise_to_signal
    return [chosen, *(scheme for scheme, powers in noise.items() if powers.noise_to_signal < limit)]


def _without_left_in_float(graph: fx.GraphModule, plan: Plan, decisions: Decisions) -> Plan:
    """Remove the observers of layers that stay in float from the graph; return the plan without these layers."""
    if not decisions.left_in_float.keys() & plan.nodes.keys():
        return plan
    for fqn in decisions.left_in_float:
        decisions.schemes.pop(fqn, None)
    left = plan.without(decisions.left_in_float.keys())
    remove_observers(graph, left)
    return left


# Which layers go back to float so that the whole model reaches its floor.


Schemes = Mapping[str, WeightScheme]
"""The scheme of each quantized layer's weight, by FQN; layers that are not in it are in float."""

# bytes of outputs in float that stay in memory until the lowered program is measured, and beside a kept compile
_KEPT = 2**28
# after how many simulations a search that has found something ends, and any search does
_SIMULATIONS = 8
_UNTIL_ALL_IN_FLOAT = 40
# limits this close to each other are the same, and how far one is from the next at most
_SAME = 1.02
_FARTHEST = 30.0
# the cost of a finer scheme with as many bits, as a share of a layer in float
_FINER = 0.02
# that of integers which a layer multiplies by in float: it saves memory alone
_IN_FLOAT = 0.9


class FloorSearch:
    """Tries schemes for the layers of a graph, and measures the whole model with them.

    Each trial changes the graph only as far as needed to run it, and the next trial undoes that.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        plan: Plan,
        options: CompileOptions,
        floors: Floors,
        measured: MeasuredLayers,
        samples: Sequence[Sample],
        statistics: Statistics | None = None,
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._options = options
        self._floors = floors
        self._measured = measured
        self._samples = samples
        self._statistics = statistics
        self._logits = logits_of(graph.graph)
        self._before: dict[str, fx.Node] = {}
        by_name = {node.name: node for node in graph.graph.nodes}
        self._weights = {
            fqn: [
                observer_of(graph, operand)
                for layer in nodes
                for operand in layer.weight_operands(by_name[layer.node.name].args)
            ]
            for fqn, nodes in plan.nodes.items()
        }

    def score(self, schemes: Schemes) -> Score:
        """Return how far the model is from float with these schemes."""
        for fqn, scheme in schemes.items():
            for observer in self._weights[fqn]:
                observer.take(scheme)
        restore_biases(self._graph, self._before)
        if self._options.bias_correction:
            wanted = {fqn: one for fqn, one in schemes.items() if self._plan.settings[fqn].bias_correction}
            self._before = correct_biases(self._graph, self._measured.mean_shifts(self._plan, wanted))
        self._graph.recompile()
        left = self._plan.without(self._plan.nodes.keys() - schemes.keys())
        return simulated_score(self._graph, self._samples, self._measured.outputs, left, self._logits)

    def is_enough(self, score: Score) -> bool:
        """Return whether this reaches the floor, also on samples that were not measured."""
        return self._floors.is_enough(score)

    def reach_floor(self, choices: Mapping[str, Sequence[WeightScheme]]) -> dict[str, WeightScheme]:
        """Raise precision at the least cost until the floor is reached: finer schemes cost a share of a float layer.

        An integer program selects the layers: the least lost work within an amount of estimated noise. Its solution
        is simulated, and the allowed noise is corrected by the result. The search ends when no other solution lies
        between one that is enough and one that is not.

        Args:
            choices: for each layer, its current scheme, then finer ones.
        """
        floors = self._floors
        before = self.score({fqn: schemes[0] for fqn, schemes in choices.items()})
        noise = self.output_noise(choices, in_nats=floors.judges_predictions(before))
        program = _Program(choices, noise, self._work(choices))
        limit = floors.noise_allowed(before)
        allowed, enough, too_much = limit, 0.0, math.inf  # predicted noise
        best: dict[str, WeightScheme] | None = None
        for step in range(_UNTIL_ALL_IN_FLOAT):
            found = program.cheapest(allowed)
            predicted, exceeded = noise.total(found), floors.exceeded(self.score(found))
            if exceeded <= 1:
                if best is None or program.cost(found) < program.cost(best):
                    best = found
                enough = max(enough, allowed)
            else:
                too_much = min(too_much, predicted)
            if best is not None and (step + 1 >= _SIMULATIONS or not found or too_much <= enough * _SAME):
                return best
            allowed = _next(predicted / exceeded if exceeded > 0 else math.inf, allowed, enough, too_much)
            if best is not None and allowed <= enough * _SAME:
                return best
        return best or {}

    def output_noise(self, schemes: Mapping[str, Sequence[WeightScheme]], *, in_nats: bool) -> OutputNoise:
        """Estimate what each quantizer adds to the model's outputs; ``in_nats``, as a divergence of predictions."""
        restore_biases(self._graph, self._before)
        self._before = {}
        self._graph.recompile()
        return estimate_output_noise(
            self._graph,
            self._plan.without(self._plan.nodes.keys() - schemes.keys()),
            schemes,
            self._samples,
            self._measured.outputs,
            logits=self._logits if in_nats else (),
            corrected=self._options.bias_correction,
            statistics=self._statistics,
        )

    def noise_of(self, fqn: str, scheme: WeightScheme) -> Powers:
        """Return the noise of a scheme in the output of a layer."""
        return self._measured.powers_of(self._plan.nodes[fqn], scheme)

    def _work(self, layers: Iterable[str]) -> dict[str, float]:
        """Return each layer's cost in float: its multiplications, and half a layer's for conversions around it."""
        each = self._measured.multiplications
        work = {fqn: float(sum(each.get(one.node.name, 0) for one in self._plan.nodes[fqn])) for fqn in layers}
        conversions = 0.5 * max(1.0, math.fsum(work.values()) / max(1, len(work)))
        return {fqn: own + conversions for fqn, own in work.items()}


class _Program:
    """The choices of a search as an integer program: an item for each layer, whose last choice is float."""

    def __init__(
        self, choices: Mapping[str, Sequence[WeightScheme]], noise: OutputNoise, work: Mapping[str, float]
    ) -> None:
        self._choices = choices
        self._costs = {fqn: [_share(schemes, one) * work[fqn] for one in schemes] for fqn, schemes in choices.items()}
        self._work = work
        items = {fqn: index for index, fqn in enumerate(choices)}
        self._all_costs = [[*self._costs[fqn], work[fqn]] for fqn in choices]
        self._noise = [[*(noise.weights[fqn][one] for one in schemes), 0.0] for fqn, schemes in choices.items()]
        self._rounded = [
            Shared({items[fqn]: range(len(choices[fqn])) for fqn in noise.needed_by[name] & items.keys()}, [added])
            for name, added in noise.values.items()
        ]

    def cheapest(self, allowed: float) -> dict[str, WeightScheme]:
        """Return the schemes with the least lost work whose predicted noise is at most this."""
        found = cheapest(self._all_costs, [Limit(self._noise, allowed)], shared=self._rounded)
        assert found is not None  # everything in float adds nothing
        pairs = zip(self._choices.items(), found, strict=True)
        return {fqn: schemes[choice] for (fqn, schemes), choice in pairs if choice < len(schemes)}

    def cost(self, schemes: Schemes) -> float:
        """Return the lost work."""
        return math.fsum(
            self._costs[fqn][choices.index(schemes[fqn])] if fqn in schemes else self._work[fqn]
            for fqn, choices in self._choices.items()
        )


def _share(schemes: Sequence[WeightScheme], one: WeightScheme) -> float:
    """Return the cost of a finer scheme as a share of float's: by its additional bits; a little where it has none."""
    first = schemes[0]
    if one.multiplies_in_float and not first.multiplies_in_float:
        return _IN_FLOAT
    return 0.0 if one == first else max(_FINER, (one.bits - first.bits) / (FLOAT32.bits - first.bits))


def _next(corrected: float, allowed: float, enough: float, too_much: float) -> float:
    """Return the noise to allow next: the estimated floor, within the known bounds, not too far from the last."""
    corrected = min(max(corrected, allowed / _FARTHEST), allowed * _FARTHEST)
    if too_much < math.inf and not enough < corrected < too_much:
        return math.sqrt(enough * too_much) if enough else too_much / 2
    return corrected


def simulated_score(
    graph: fx.GraphModule,
    samples: Sequence[Sample],
    expected: Sequence[tuple[Any, ...]],
    plan: Plan,
    logits: Collection[int] = (),
) -> Score:
    """Return how far the model is from float when quantized by ``plan``: SQNR of the worst floating-point output."""
    total, changes = ScoreSum(logits), changes_of(graph, plan)
    with torch.no_grad(), preserved_buffers(graph):
        for sample, right in zip(samples, expected, strict=True):
            found = QuantizedRun(graph, changes).run(*sample.args, enable_io_processing=False)
            total.add(right, found)
    return total.score
