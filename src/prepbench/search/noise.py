"""Estimate the noise that each (layer, choice) adds to the model's output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prepbench.compile.simulation import Simulation
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize import Score
from prepbench.search.candidates import Candidate, Choices, LayerChoice, name_of_settings
from prepbench.search.mixtures import FLOAT
from prepbench.search.parallel_scores import map_in_order, scores_in_processes, shares_process
from prepbench.search.tables import Corrected, Estimate, Measured, Part
from prepbench.search.target_job import TargetJob, alike_in_bits
from prepbench.settings import QuantizationSettings

_DOUBT = 0.3  # of what was simulated of one layer alone: it may grow or fade beside others
_DOUBT_OF_ESTIMATE = 1.0  # where it was not simulated
_EXACT = 0.05  # of a simulation, before it is known what becomes of a layer beside others
_SIMULATED = 96  # layers and choices, at most, that are simulated one by one: each takes a run of the model


def noise_of(score: Score) -> float:
    """Return the distance from float as a number that adds up over layers: noise to signal, or nats."""
    if score.divergence is not None:
        return max(score.divergence, 0.0)
    return 0.0 if score.sqnr == math.inf else 10 ** (-score.sqnr / 10)


def noise_by_part(
    job: TargetJob, executor: Any, progress: ProgressCallback
) -> tuple[Corrected, dict[Part, frozenset[tuple[str, str]]]]:
    """Return the noise of each (layer, choice), of each rounded value between layers, and of all that is pruned.

    Choices with the same bits have the same noise; the first of them is simulated.

    Returns:
        The noise by part, and the layers and choices that need the parts which are no layers.
    """
    first = alike_in_bits(job.choices)
    bits = {name: one.quantization for name, one in job.choices.items() if one.quantization is not None}
    own = {name: settings for name, settings in bits.items() if first[name] == name}
    noise, needed_by = noise_by_layer(job.simulation, own, executor, progress) if own else (_silence(job), {})
    needs = {
        part: frozenset((fqn, name) for fqn, of in pairs for name in bits if first[name] == of)
        for part, pairs in needed_by.items()
    }
    estimates = dict(noise.estimates)
    for score, pairs in job.pruned.noises(progress):
        value = noise_of(score)
        estimates[pairs] = Estimate(value, _DOUBT * value)
        needs[pairs] = pairs
    return Corrected(estimates), needs


def _silence(job: TargetJob) -> Corrected:
    return Corrected({(fqn, FLOAT): Estimate(0.0, 0.0) for fqn in job.simulation.layers})


def noise_by_layer(
    simulation: Simulation,
    choices: Mapping[str, QuantizationSettings],
    executor: Any,
    progress: ProgressCallback,
) -> tuple[Corrected, dict[Part, frozenset[tuple[str, str]]]]:
    """Return the noise of each (layer, choice), and of each rounded value between layers.

    The noisiest layers are simulated, each alone, and the others estimated. A simulation gives the sum of the noise of
    a layer's weights and of all values rounded for it; the estimate says how the sum divides.

    Returns:
        The noise by part, and the layers and choices that need the parts which are values.
    """
    parts, own, needed_by = _estimated(simulation, choices, progress)
    sums = {part: {part: 1.0, **{one: 1.0 for one, needs in needed_by.items() if part in needs}} for part in parts}
    alone = {part: math.fsum(own[each] for each in found) for part, found in sums.items()}
    loudest = sorted(parts, key=lambda part: -alone[part])[:_SIMULATED]
    simulated = dict(zip(loudest, _simulated(simulation, choices, loudest, executor, progress), strict=True))
    known = math.fsum(alone[part] for part in simulated)
    scale = math.fsum(simulated.values()) / known if known > 0 else 1.0
    corrected = Corrected(
        {part: Estimate(scale * value, _DOUBT_OF_ESTIMATE * scale * value) for part, value in own.items()},
        [Measured(sums[part], value, _EXACT * value) for part, value in simulated.items() if math.isfinite(value)],
    )
    told = {each for part in simulated for each in sums[part]}
    estimates: dict[Part, Estimate] = {(fqn, FLOAT): Estimate(0.0, 0.0) for fqn in simulation.layers}
    for part in own:
        doubt = _DOUBT if part in told else _DOUBT_OF_ESTIMATE
        estimates[part] = Estimate(corrected.size(part), doubt * corrected.size(part))
    return Corrected(estimates), needed_by


def _estimated(
    simulation: Simulation, choices: Mapping[str, QuantizationSettings], progress: ProgressCallback
) -> tuple[list[tuple[str, str]], dict[Part, float], dict[Part, frozenset[tuple[str, str]]]]:
    """Return the (layer, choice) pairs, the estimated noise of pairs and values, and the pairs that need each value."""
    effects = simulation.effects(dict(choices), progress)
    parts = [
        (fqn, name)
        for fqn in simulation.layers
        for name, settings in choices.items()
        if not simulation.refusal(fqn, settings)
    ]
    own: dict[Part, float] = {(fqn, name): effects[name].weights.get(fqn, 0.0) for fqn, name in parts}
    needed_by: dict[Part, frozenset[tuple[str, str]]] = {}
    for name, found in effects.items():
        for value in found.values:
            own[value.quantizer] = value.noise
            needs = frozenset((fqn, name) for fqn in value.needed_by if (fqn, name) in own)
            needed_by[value.quantizer] = needed_by.get(value.quantizer, frozenset()) | needs
    return parts, own, needed_by


def _simulated(
    simulation: Simulation,
    choices: Mapping[str, QuantizationSettings],
    parts: Sequence[tuple[str, str]],
    executor: Any,
    progress: ProgressCallback,
) -> list[float]:
    mixtures = [{fqn: choices[name]} for fqn, name in parts]
    if shares_process(executor):
        simulation.score({})  # the outputs in float, once for all threads
        simulation.learn(choices, progress)
        scores = map_in_order(
            lambda mixture: simulation.score(mixture, even_alone=True),
            mixtures,
            executor,
            lambda done, mixture: progress(Progress("noise of layers", done, len(parts), next(iter(mixture)))),
        )
    else:
        names = [f"{fqn}: {name}" for fqn, name in parts]
        scores = scores_in_processes(simulation, mixtures, names, executor, progress)
    return [noise_of(score) for score in scores]


# Add candidates with cross-layer equalization where they are quieter than the same candidates without it.


_QUIETER = 10**0.1
"""How many times less noise makes further settings worth their compiles and runs: 1 dB."""


class EqualizableCandidates(dict[str, Candidate]):
    """Candidates by name that are also tried with equalized channels, where that helps."""


@dataclass(frozen=True)
class EqualizedChoices:
    """The choices that layers may take, by name, and notes on candidates whose equalization gains too little."""

    choices: Choices
    notes: tuple[str, ...] = ()


def with_equalised(simulation: Simulation, choices: Choices) -> EqualizedChoices:
    """Add an equalized copy of each integer choice that is at least 1 dB quieter with equalized channels.

    Each choice is simulated in all layers that can take it. Where no channels can be scaled, nothing is run.
    """
    found, notes = dict(choices), []
    for name, choice in choices.items():
        plain = choice.quantization
        if plain is None or choice.pruning is not None:
            continue
        if plain.prefer_weights_only_quantization or plain.cross_layer_equalization:
            continue
        scaled = replace(plain, cross_layer_equalization=True)
        if scaled in [each.quantization for each in found.values()] or not simulation.equalised(scaled):
            continue
        before, after = (_noise_of_all(simulation, settings) for settings in (plain, scaled))
        if after * _QUIETER <= before:
            found[_name(name, plain, scaled)] = LayerChoice(scaled)
        else:
            notes.append(f"{name!r} is not tried with channels equalised, which gains less than 1 dB")
    return EqualizedChoices(found, tuple(notes))


def _noise_of_all(simulation: Simulation, settings: QuantizationSettings) -> float:
    """Return the output noise of a model whose layers all take these settings where they can."""
    return noise_of(simulation.score({f: settings for f in simulation.layers if not simulation.refusal(f, settings)}))


def _name(name: str, plain: QuantizationSettings, scaled: QuantizationSettings) -> str:
    return name_of_settings(scaled) if name == name_of_settings(plain) else f"{name} equalised"
