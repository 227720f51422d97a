"""Add candidates with cross-layer equalization where they are quieter than the same candidates without it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prepbench.compile.simulation import Simulation
from prepbench.search.candidates import name_of_settings
from prepbench.search.layer_choice import Candidate, Choices, LayerChoice
from prepbench.search.noise import noise_of
from prepbench.settings import QuantizationSettings

_QUIETER = 10**0.1
"""How many times less noise makes further settings worth their compiles and runs: 1 dB."""


class EqualizableCandidates(dict[str, Candidate]):
    """Candidates by name that are also tried with equalized channels, where that helps."""


@dataclass(frozen=True)
class EqualizedChoices:
    """The choices that layers may take.

    Attributes:
        choices: by name.
        notes: the candidates whose equalization gains too little to be tried.
    """

    choices: Choices
    notes: tuple[str, ...] = ()


def with_equalised(simulation: Simulation, choices: Choices) -> EqualizedChoices:
    """Add an equalized copy of each integer choice that is at least 1 dB quieter with equalized channels.

    Each choice is simulated in all layers that can take it. Where no channels can be scaled, nothing is run.

    Args:
        simulation: of the model.
        choices: by name.
    """
    found, notes = dict(choices), []
    for name, choice in choices.items():
        plain = choice.quantization
        if plain is None or choice.pruning is not None or not _computes_in_integers(plain):
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


def _computes_in_integers(settings: QuantizationSettings) -> bool:
    return not settings.prefer_weights_only_quantization and not settings.cross_layer_equalization


def _noise_of_all(simulation: Simulation, settings: QuantizationSettings) -> float:
    """Return the output noise of a model whose layers all take these settings where they can."""
    return noise_of(simulation.score({f: settings for f in simulation.layers if not simulation.refusal(f, settings)}))


def _name(name: str, plain: QuantizationSettings, scaled: QuantizationSettings) -> str:
    return name_of_settings(scaled) if name == name_of_settings(plain) else f"{name} equalised"
