"""What each layer becomes: the smallest form that its sensitivity allows, or float where it would be ruined."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.quantize.biases import correct_biases, restore_biases
from prepbench.quantize.measure import (
    Measured,
    Tally,
    chosen_samples,
    decibels,
    measure,
    observed_value,
    observer_of,
    ratio,
    set_mode,
    simulated_sqnr,
)
from prepbench.quantize.plan import Plan
from prepbench.quantize.weights import WeightForm
from prepbench.settings import CompileOptions, QuantizationSettings

# noise that a candidate may add when the settings name several but no threshold: 20 dB
CANDIDATE_LIMIT = 0.01
# dB that a few measured samples must lie above the floor for the whole model, so that others do too
MARGIN = 1.0


@dataclass
class Decisions:
    """What was decided, by FQN.

    Attributes:
        forms: the form of each quantized layer's weight.
        ratios: noise to signal at the output of each layer that was measured, in the form chosen or, for one that was
            given up, in its best form.
        given_up: why a layer stays in float that could be quantized.
        notes: remarks on layers that are quantized.
        model_sqnr: SQNR of the model's outputs as quantized, in dB.
    """

    forms: dict[str, WeightForm] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    model_sqnr: float = float("inf")


def decide(
    graph: fx.GraphModule,
    plan: Plan,
    options: CompileOptions,
    samples: Sequence[Sample],
    progress: ProgressCallback,
) -> Decisions:
    """Measure each layer of a calibrated graph on a few samples, decide, and change the graph accordingly, in place.

    Args:
        graph: observed and calibrated.
        plan: what its observers stand for.
        options: floors, and whether biases are corrected.
        samples: the calibration inputs.
        progress: called after each sample; may raise to cancel.
    """
    chosen = chosen_samples(samples)
    decisions = Decisions()
    forms = {fqn: _forms(graph, plan, fqn, plan.settings[fqn], decisions) for fqn in plan.calls}
    set_mode(graph, "pass")
    measured = measure(graph, plan, forms, chosen, progress)
    for fqn, candidates in forms.items():
        _choose(fqn, _tallies(plan, fqn, candidates, measured), plan.settings[fqn], options, decisions)
    kept = _give_up(graph, plan, decisions)
    search = _Search(graph, kept, options, measured, chosen)
    decisions.model_sqnr = search.sqnr(decisions.forms)
    if options.keep_ruined_layers_in_float and not search.is_enough(decisions.model_sqnr):
        best = {fqn: _best(measured, plan, fqn, forms[fqn]) for fqn in kept.calls}
        search.reach_floor(decisions, best)
    _give_up(graph, kept, decisions)
    return decisions


def _best(measured: Measured, plan: Plan, fqn: str, candidates: Sequence[WeightForm]) -> WeightForm:
    """The candidate that adds least noise."""
    ratios = {form: ratio(tallies) for form, tallies in _tallies(plan, fqn, candidates, measured).items()}
    return min(ratios, key=lambda form: ratios[form])


class _Search:
    """Tries forms for the layers of a graph: each try changes it so far that it can be run, and can be followed by
    another.
    """

    def __init__(
        self, graph: fx.GraphModule, plan: Plan, options: CompileOptions, measured: Measured, samples: Sequence[Sample]
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._options = options
        self._measured = measured
        self._samples = samples
        self._before: dict[str, fx.Node] = {}
        self._weights = {
            fqn: [_weight_observer(graph, call.node.name, call.weight_index) for call in calls]
            for fqn, calls in plan.calls.items()
        }

    def sqnr(self, forms: Mapping[str, WeightForm]) -> float:
        """SQNR of the model's outputs in dB with these forms; layers without one are in float."""
        for fqn, form in forms.items():
            for observer in self._weights[fqn]:
                observer.take(form)
        restore_biases(self._graph, self._before)
        if self._options.bias_correction:
            self._before = correct_biases(self._graph, _shifts(self._plan, forms, self._measured))
        self._graph.recompile()
        left = self._plan.without(self._plan.calls.keys() - forms.keys())
        return simulated_sqnr(self._graph, self._samples, self._measured.outputs, left)

    def reach_floor(self, decisions: Decisions, best: Mapping[str, WeightForm]) -> None:
        """Change few layers: those that add most noise to their best form, while that is another than the chosen one,
        then to float. Which layers go to float is tried in several orders, because what a layer adds may grow or fade
        on its way to the outputs; the order wins that leaves most multiplications to integers.
        """
        floor = self._options.model_sqnr_floor
        noise = {fqn: ratio(_tallies(self._plan, fqn, [form], self._measured)[form]) for fqn, form in best.items()}
        by_noise = sorted(best, key=lambda fqn: noise[fqn], reverse=True)
        chosen = decisions.forms
        finer = [(fqn, best[fqn]) for fqn in by_noise if best[fqn] != chosen[fqn]]
        orders = (by_noise, list(best), list(best)[::-1])
        attempts = [self._fewest(chosen, [*finer, *((fqn, None) for fqn in order)]) for order in orders]
        decisions.forms = max(attempts, key=self._integer_work)
        before, decisions.model_sqnr = decisions.model_sqnr, self.sqnr(decisions.forms)
        for fqn in best:
            if decisions.forms.get(fqn) == chosen[fqn]:
                continue
            decisions.ratios[fqn] = noise[fqn]
            if fqn not in decisions.forms:
                decisions.given_up[fqn] = (
                    f"the model's output would be at {before:.1f} dB, below the floor of {floor:g} dB with {MARGIN:g} "
                    f"to spare; with this layer and others in float it is at {decisions.model_sqnr:.1f} dB"
                )

    def _fewest(
        self, chosen: Mapping[str, WeightForm], moves: Sequence[tuple[str, WeightForm | None]]
    ) -> dict[str, WeightForm]:
        """The forms after as few of these moves as reach the floor; all of them leave no integers."""

        def after(count: int) -> dict[str, WeightForm]:
            return {fqn: form for fqn, form in {**chosen, **dict(moves[:count])}.items() if form is not None}

        counts = range(len(moves))
        return after(bisect.bisect_left(counts, True, lo=1, key=lambda count: self.is_enough(self.sqnr(after(count)))))

    def is_enough(self, sqnr: float) -> bool:
        """Whether the floor is kept, also on samples that were not measured."""
        return sqnr >= self._options.model_sqnr_floor + MARGIN

    def _integer_work(self, forms: Mapping[str, WeightForm]) -> int:
        """How many multiplications of the measured samples are those of quantized layers."""
        return sum(self._measured.work.get(call.node.name, 0) for fqn in forms for call in self._plan.calls[fqn])


def _forms(
    graph: fx.GraphModule, plan: Plan, fqn: str, settings: QuantizationSettings, decisions: Decisions
) -> list[WeightForm]:
    """The candidates for a layer that fit its weight."""
    call = plan.calls[fqn][0]
    weight = call.weight.meta["val"]
    wanted = [WeightForm.of(candidate) for candidate in settings.candidates()]
    fitting = [form for form in wanted if form.fits(weight, call.axis)]
    if not fitting:
        size = wanted[0].block_size
        decisions.notes[fqn] = (
            f"one scale for each channel, because its weight {tuple(weight.shape)} cannot be cut into blocks of {size}"
        )
        fitting = [replace(form, block_size=0) for form in wanted]
    return list(dict.fromkeys(fitting))


def _tallies(
    plan: Plan, fqn: str, candidates: Sequence[WeightForm], measured: Measured
) -> dict[WeightForm, list[Tally]]:
    by_call = [measured.tallies.get(call.node.name, {}) for call in plan.calls[fqn]]
    return {form: [tallies[form] for tallies in by_call if form in tallies] for form in candidates}


def _choose(
    fqn: str,
    tallies: Mapping[WeightForm, Sequence[Tally]],
    settings: QuantizationSettings,
    options: CompileOptions,
    decisions: Decisions,
) -> None:
    """Take the first candidate within the limit; without a threshold the best one, if it is not ruined."""
    ratios = {form: ratio(of_form) for form, of_form in tallies.items()}
    threshold = settings.quantization_sensitivity_threshold
    limit = threshold if threshold is not None else CANDIDATE_LIMIT
    if options.keep_ruined_layers_in_float:
        limit = min(limit, 10 ** (-options.layer_sqnr_floor / 10))
    best = min(ratios, key=lambda form: ratios[form])
    within = [form for form, value in ratios.items() if value <= limit and limit > 0]
    form = within[0] if within and (len(ratios) > 1 or threshold is not None) else best
    decisions.ratios[fqn] = ratios[form]
    sqnr = decibels(ratios[form])
    if threshold is not None and not within:
        decisions.given_up[fqn] = (
            f"its sensitivity {ratios[best]:.2g} ({sqnr:.1f} dB) is above the threshold of {threshold:g}"
        )
    elif options.keep_ruined_layers_in_float and sqnr < options.layer_sqnr_floor:
        decisions.given_up[fqn] = (
            f"its output would be at {sqnr:.1f} dB, below the floor of {options.layer_sqnr_floor:g} dB"
        )
    else:
        decisions.forms[fqn] = form


def _shifts(plan: Plan, forms: Mapping[str, WeightForm], measured: Measured) -> dict[str, torch.Tensor]:
    """Mean shift of each call; a layer that is called several times has one bias for all of them and is left alone."""
    result: dict[str, torch.Tensor] = {}
    for fqn, calls in plan.calls.items():
        if len(calls) == 1 and fqn in forms:
            tally = measured.tallies.get(calls[0].node.name, {}).get(forms[fqn])
            if tally is not None and tally.mean_shift is not None:
                result[calls[0].node.name] = tally.mean_shift
    return result


def _weight_observer(graph: fx.GraphModule, name: str, index: int) -> Any:
    node = next(node for node in graph.graph.nodes if node.name == name)
    return observer_of(graph, node.args[index])


def _give_up(
    graph: fx.GraphModule,
    plan: Plan,
    decisions: Decisions,
) -> Plan:
    """Take the observers of layers that were given up out of the graph; returns the plan of what is left."""
    if not decisions.given_up.keys() & plan.calls.keys():
        return plan
    for fqn in decisions.given_up:
        decisions.forms.pop(fqn, None)
    left = plan.without(decisions.given_up.keys())
    for node in list(graph.graph.nodes):
        if observer_of(graph, node) is None:
            continue
        source = observed_value(graph, node)
        if source.name in left.outputs:
            continue
        for user in list(node.users):
            edge = (user.name, source.name)
            if edge not in left.inputs and edge not in left.weights and observer_of(graph, user) is None:
                user.replace_input_with(node, source)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return left
