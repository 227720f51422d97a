"""What each layer becomes: the smallest scheme that its sensitivity allows, or float where that is too inexact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.quantize.fitting import fitting_schemes
from prepbench.quantize.floor_search import FloorSearch
from prepbench.quantize.floors import Floors, Score
from prepbench.quantize.layer_noise import bounded_decibels, chosen_samples, measure_layers
from prepbench.quantize.observed_graph import remove_observers, set_mode
from prepbench.quantize.plan import Plan
from prepbench.quantize.statistics import Statistics
from prepbench.quantize.weights import WeightScheme
from prepbench.running.sqnr import Powers
from prepbench.settings import CompileOptions, QuantizationSettings

# noise to signal that a candidate may add when the settings name several but no threshold: 20 dB
CANDIDATE_LIMIT = 0.01


@dataclass
class Decisions:
    """What was decided, by FQN.

    Attributes:
        schemes: the scheme of each quantized layer's weight.
        noise: noise and signal at the output of each layer that was measured, with the scheme that was chosen; for a
            layer that stays in float, with its best one.
        left_in_float: why a layer stays in float that could be quantized.
        notes: remarks on layers that are quantized.
        score: how far the model is from float as quantized.
        reused: what was not measured again, in words.
    """

    schemes: dict[str, WeightScheme] = field(default_factory=dict)
    noise: dict[str, Powers] = field(default_factory=dict)
    left_in_float: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    score: Score = field(default_factory=lambda: Score(float("inf")))
    reused: tuple[str, ...] = ()


def decide(
    graph: fx.GraphModule,
    plan: Plan,
    options: CompileOptions,
    samples: Sequence[Sample],
    progress: ProgressCallback,
    statistics: Statistics | None = None,
) -> Decisions:
    """Measure each layer of a calibrated graph on a few samples, decide, and change the graph accordingly, in place.

    Args:
        graph: observed and calibrated.
        plan: what its observers stand for.
        options: floors, and whether biases are corrected.
        samples: the calibration inputs.
        progress: called after each sample; may raise to cancel.
        statistics: what was measured before, see :func:`measure_layers`.
    """
    chosen, decisions = chosen_samples(samples), Decisions()
    candidates: dict[str, list[WeightScheme]] = {}
    for fqn in plan.nodes:
        candidates[fqn], note = fitting_schemes(plan, fqn)
        if note:
            decisions.notes[fqn] = note
    set_mode(graph, "pass")
    measured = measure_layers(graph, plan, candidates, chosen, progress, statistics)
    if known := len(candidates) - measured.measured:
        decisions.reused = ("measure" if not measured.measured else f"measure: {known} of {len(candidates)} layers",)
    noise = {
        fqn: {scheme: measured.powers_of(plan.nodes[fqn], scheme) for scheme in schemes}
        for fqn, schemes in candidates.items()
    }
    floors = Floors.of(options, list(plan.settings.values()))
    for fqn, by_scheme in noise.items():
        _choose(fqn, by_scheme, plan.settings[fqn], floors, decisions)
    left = _without_left_in_float(graph, plan, decisions)
    search = FloorSearch(graph, left, options, floors, measured, chosen, statistics)
    decisions.score = search.score(decisions.schemes)
    if options.keep_ruined_layers_in_float and not search.is_enough(decisions.score):
        _reach_floor(search, decisions, {fqn: noise[fqn] for fqn in left.nodes}, floors)
    _without_left_in_float(graph, left, decisions)
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
    """The candidate that adds least noise."""
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
    """A scheme, and the candidates that add less noise."""
    limit = noise[chosen].noise_to_signal
    return [chosen, *(scheme for scheme, powers in noise.items() if powers.noise_to_signal < limit)]


def _without_left_in_float(graph: fx.GraphModule, plan: Plan, decisions: Decisions) -> Plan:
    """Take the observers of layers that stay in float out of the graph; returns the plan of what is left."""
    if not decisions.left_in_float.keys() & plan.nodes.keys():
        return plan
    for fqn in decisions.left_in_float:
        decisions.schemes.pop(fqn, None)
    left = plan.without(decisions.left_in_float.keys())
    remove_observers(graph, left)
    return left
