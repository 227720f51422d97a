"""Candidates that prune, alone or together with quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prepbench.compile.pruned_simulation import PrunedLayers, PrunedSimulation
from prepbench.compile.simulation import Simulation
from prepbench.errors import SettingsError
from prepbench.search.layer_choice import LayerChoice
from prepbench.settings import PruningSettings, QuantizationSettings


def without_pruning(given: Any) -> tuple[Any, dict[str, LayerChoice]]:
    """Split candidates into those that do not prune, as they were given, and those that do, by name.

    Args:
        given: settings by name, a list of settings, or None.

    Raises:
        SettingsError: a pair that is no settings of quantization and of pruning.
    """
    if isinstance(given, Mapping):
        pruned = {name: choice for name, value in given.items() if (choice := _choice(name, value)) is not None}
        others: Any = {name: value for name, value in given.items() if name not in pruned}
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        choices = [_choice(index, value) for index, value in enumerate(given)]
        pruned = {choice.name: choice for choice in choices if choice is not None}
        others = [value for value, choice in zip(given, choices, strict=True) if choice is None]
    else:
        return given, {}
    return others, pruned


def bits_of(pruned: Mapping[str, LayerChoice]) -> dict[str, QuantizationSettings]:
    """Return the quantization settings of candidates that also quantize, by name."""
    return {name: choice.quantization for name, choice in pruned.items() if choice.quantization is not None}


def _choice(name: object, value: object) -> LayerChoice | None:
    if isinstance(value, PruningSettings):
        return LayerChoice(pruning=value)
    if not isinstance(value, tuple):
        return None
    kinds = (QuantizationSettings, PruningSettings)
    if len(value) != 2 or not all(isinstance(one, kind) for one, kind in zip(value, kinds, strict=True)):
        raise SettingsError(
            f"candidates[{name!r}] must be settings, or a pair of bits and pruning: (pb.QuantizationSettings(), "
            f'pb.PruningSettings(mask_type="2:4")), got a tuple of {len(value)}.'
        )
    return LayerChoice(*value)


class PrunedTrials:
    """Trials of layers with candidates that prune, one layer at a time.

    Args:
        simulation: of the whole model.
        choices: by name.
    """

    def __init__(self, simulation: Simulation, choices: Mapping[str, LayerChoice]) -> None:
        self._simulation = simulation
        self._choices = choices
        self._layers = PrunedLayers(simulation)
        self.refusals: dict[tuple[str, str], str] = {}
        self.bytes: dict[tuple[str, str], int] = {}
        for fqn in simulation.layers:
            for name, choice in choices.items():
                lacking = "" if choice.quantization is None else simulation.refusal(fqn, choice.quantization)
                self.refusals[fqn, name] = lacking

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of layer and candidate name, the largest layers first."""
        possible = [pair for pair, refusal in self.refusals.items() if not refusal]
        return sorted(possible, key=lambda pair: -self._simulation.parameters[pair[0]])

    def simulation(self, pair: tuple[str, str]) -> PrunedSimulation | None:
        """Return the model with one layer pruned; where nothing would be removed, note the refusal and return None."""
        fqn, name = pair
        choice = self._choices[name]
        assert choice.pruning is not None
        try:
            found = self._layers.alone(fqn, choice.pruning)
        except SettingsError as error:
            self.refusals[pair] = str(error)
            return None
        self.bytes[pair] = self._layers.weight_bytes(found, fqn, choice.pruning, choice.quantization)
        return found

    def mixture(self, pair: tuple[str, str]) -> dict[str, QuantizationSettings]:
        """Return the quantization settings of the layer."""
        settings = self._choices[pair[1]].quantization
        return {} if settings is None else {pair[0]: settings}
