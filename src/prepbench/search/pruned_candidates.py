"""Candidates of ``pb.sensitivity`` that prune, by themselves or together with bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prepbench.compile.pruned_simulation import PrunedLayers, PrunedSimulation
from prepbench.compile.simulation import Simulation
from prepbench.errors import SettingsError
from prepbench.search.candidates import name_of_settings, named_candidates
from prepbench.settings import DeploymentSettings, PruningSettings, QuantizationSettings


@dataclass(frozen=True)
class PrunedChoice:
    """What a layer may become.

    Attributes:
        pruning: what goes.
        quantization: how what is left is quantized; None for float.
    """

    pruning: PruningSettings
    quantization: QuantizationSettings | None = None

    @property
    def given(self) -> Any:
        """The candidate as it was given."""
        return self.pruning if self.quantization is None else (self.quantization, self.pruning)

    @property
    def name(self) -> str:
        """What it says, in a few words."""
        bits = "" if self.quantization is None else f"{name_of_settings(self.quantization)}, "
        return f"{bits}{self.pruning.summary}"


def without_pruning(given: Any, deployment: DeploymentSettings) -> tuple[Any, dict[str, PrunedChoice]]:
    """Candidates as they were given but for those that prune, and these by name.

    Args:
        given: settings by name, a list of settings, or None.
        deployment: the target's settings.

    Raises:
        SettingsError: a pair that is no settings of quantization and of pruning, or that the target lacks.
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
    for name, choice in pruned.items():
        if choice.quantization is not None:
            named_candidates({name: choice.quantization}, deployment)
    return others, pruned


def _choice(name: object, value: object) -> PrunedChoice | None:
    if isinstance(value, PruningSettings):
        return PrunedChoice(value)
    if not isinstance(value, tuple):
        return None
    kinds = (QuantizationSettings, PruningSettings)
    if len(value) != 2 or not all(isinstance(one, kind) for one, kind in zip(value, kinds, strict=True)):
        raise SettingsError(
            f"candidates[{name!r}] must be settings, or a pair of bits and pruning: (pb.QuantizationSettings(), "
            f'pb.PruningSettings(mask_type="2:4")), got a tuple of {len(value)}.'
        )
    return PrunedChoice(value[1], value[0])


class PrunedTrials:
    """Layers with candidates that prune, one at a time.

    Args:
        simulation: of the whole model.
        choices: by name.
    """

    def __init__(self, simulation: Simulation, choices: Mapping[str, PrunedChoice]) -> None:
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
        """Layers and names of candidates, the largest layers first."""
        possible = [pair for pair, refusal in self.refusals.items() if not refusal]
        return sorted(possible, key=lambda pair: -self._simulation.parameters[pair[0]])

    def simulation(self, pair: tuple[str, str]) -> PrunedSimulation | None:
        """The model with one layer pruned; None, and the refusal is noted, where nothing would go."""
        fqn, name = pair
        choice = self._choices[name]
        try:
            found = self._layers.simulation(fqn, choice.pruning)
        except SettingsError as error:
            self.refusals[pair] = str(error)
            return None
        self.bytes[pair] = self._layers.weight_bytes(found, fqn, choice.pruning, choice.quantization)
        return found

    def mixture(self, pair: tuple[str, str]) -> dict[str, QuantizationSettings]:
        """The bits of the layer."""
        settings = self._choices[pair[1]].quantization
        return {} if settings is None else {pair[0]: settings}
