"""What each layer becomes: the smallest form that its sensitivity allows, or float where it would be ruined."""

from __future__ import annotations

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
    kept = _give_up(graph, plan, decisions, {})
    for fqn, form in decisions.forms.items():
        for call in kept.calls.get(fqn, ()):
            _weight_observer(graph, call.node.name, call.weight_index).take(form)
    before = correct_biases(graph, _shifts(kept, decisions, measured)) if options.bias_correction else {}
    graph.recompile()
    decisions.model_sqnr = simulated_sqnr(graph, chosen, measured.outputs)
    step = 1
    while options.keep_ruined_layers_in_float and decisions.model_sqnr < options.model_sqnr_floor and kept.calls:
        worst = sorted(kept.calls, key=lambda fqn: decisions.ratios.get(fqn, 0.0), reverse=True)[:step]
        finer = [fqn for fqn in worst if _best(measured, plan, fqn, forms[fqn]) != decisions.forms[fqn]]
        for fqn in finer:
            _refine(graph, plan, fqn, _best(measured, plan, fqn, forms[fqn]), decisions, measured, before)
        for fqn in set(worst) - set(finer):
            decisions.given_up[fqn] = (
                f"the model's output would be at {decisions.model_sqnr:.1f} dB, below the floor of "
                f"{options.model_sqnr_floor:g} dB, and this layer is among those that add most noise "
                f"({decibels(decisions.ratios.get(fqn, 0.0)):.1f} dB)"
            )
        kept = _give_up(graph, kept, decisions, before)
        decisions.model_sqnr = simulated_sqnr(graph, chosen, measured.outputs)
        step *= 2
    return decisions


def _best(measured: Measured, plan: Plan, fqn: str, candidates: Sequence[WeightForm]) -> WeightForm:
    """The candidate that adds least noise."""
    ratios = {form: ratio(tallies) for form, tallies in _tallies(plan, fqn, candidates, measured).items()}
    return min(ratios, key=lambda form: ratios[form])


def _refine(
    graph: fx.GraphModule,
    plan: Plan,
    fqn: str,
    form: WeightForm,
    decisions: Decisions,
    measured: Measured,
    before: dict[str, fx.Node],
) -> None:
    """Give a layer another form of weights, with the bias that belongs to it."""
    decisions.forms[fqn] = form
    decisions.ratios[fqn] = ratio(_tallies(plan, fqn, [form], measured)[form])
    for call in plan.calls[fqn]:
        _weight_observer(graph, call.node.name, call.weight_index).take(form)
    names = {call.node.name for call in plan.calls[fqn]} & before.keys()
    restore_biases(graph, before, names)
    shifts = {name: shift for name, shift in _shifts(plan, decisions, measured).items() if name in names}
    before.update(correct_biases(graph, shifts))
    graph.recompile()


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


def _shifts(plan: Plan, decisions: Decisions, measured: Measured) -> dict[str, torch.Tensor]:
    """Mean shift of each call; a layer that is called several times has one bias for all of them and is left alone."""
    result: dict[str, torch.Tensor] = {}
    for fqn, calls in plan.calls.items():
        if len(calls) == 1 and fqn in decisions.forms:
            tally = measured.tallies.get(calls[0].node.name, {}).get(decisions.forms[fqn])
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
    before: Mapping[str, fx.Node],
) -> Plan:
    """Take the observers of layers that were given up out of the graph; returns the plan of what is left."""
    if not decisions.given_up.keys() & plan.calls.keys():
        return plan
    gone = {call.node.name for fqn in decisions.given_up for call in plan.calls.get(fqn, ())}
    restore_biases(graph, before, gone)
    for fqn in decisions.given_up:
        decisions.forms.pop(fqn, None)
    left = plan.without(decisions.given_up.keys())
    for node in list(graph.graph.nodes):
        if observer_of(graph, node) is None:
            continue
        source = _value(graph, node)
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


def _value(graph: fx.GraphModule, node: fx.Node) -> fx.Node:
    """What an observer looks at, behind other observers."""
    while observer_of(graph, node) is not None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node
