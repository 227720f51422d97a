"""The candidates of a search by name: settings, pruning, and both for one layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from prepbench.checks import described
from prepbench.compile.simulation import PrunedLayers, PrunedSimulation, Simulation
from prepbench.errors import SettingsError
from prepbench.settings import (
    DeploymentSettings,
    PruningSettings,
    QuantizationSettings,
    activation_format,
    weight_formats,
)
from prepbench.targets import target_for
from prepbench.targets.base import supported, unsupported

_EXAMPLE = 'Write candidates={"int8": pb.QuantizationSettings()}, for example.'
_SINGLE = ("weights_num_bits", "weights_only_quantization_block_size")
_NAMED = (*_SINGLE, "activations_num_bits", "prefer_weights_only_quantization", "cross_layer_equalization")


def named_candidates(given: Any, deployment: DeploymentSettings) -> dict[str, QuantizationSettings]:
    """Return the candidates by name; by default the 8-bit settings of the target and weight-only ones of 8 and 4 bits.

    Raises:
        SettingsError: there is none, one is no settings or names several bits, or the target does not support one.

    Example:
        >>> from prepbench.settings import OnnxRuntimeDeployment
        >>> list(named_candidates(None, OnnxRuntimeDeployment()))
        ['int8', 'int8 weights', 'int4 weights in blocks of 32']
    """
    target = target_for(deployment)
    if given is None:
        return {
            name_of_settings(settings): settings
            for settings in _defaults(target.placement.block_sizes)
            if not unsupported(settings, target.placement)
        }
    named = _named(given)
    for name, settings in named.items():
        _check(name, settings)
        lacking = unsupported(settings, target.placement)
        if lacking:
            raise SettingsError(
                f"candidates[{name!r}]: {target.display_name} does not support {lacking}. It supports: "
                f"{supported(target.placement)}. Leave this candidate out, or choose another target."
            )
    return named


def supported_candidates(given: Any, deployment: DeploymentSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the candidates that the target supports, and the reason for each that it does not, both by name.

    Example:
        >>> from prepbench.settings import OpenVinoDeployment
        >>> supported_candidates([QuantizationSettings(activations_num_bits=16)], OpenVinoDeployment())
        ({}, {'int8 weights, int16 activations': 'OpenVINO does not support 16-bit activations'})
    """
    target, taken, lacking = target_for(deployment), {}, {}
    for name, settings in _named(given).items():
        _check(name, settings)
        if missing := unsupported(settings, target.placement):
            lacking[name] = f"{target.display_name} does not support {missing}"
        else:
            taken[name] = settings
    return taken, lacking


def name_of_settings(settings: QuantizationSettings) -> str:
    """Return a short name for settings, such as "int8".

    Example:
        >>> name_of_settings(QuantizationSettings(observer="mse"))
        'int8, observer=mse'
    """
    weights, activations = weight_formats(settings), activation_format(settings)
    block, name = settings.weights_only_quantization_block_size, " or ".join(one.name for one in weights)
    if activations.is_float:
        name += " weights" + (f" in blocks of {block}" if block else "")
    elif weights != (activations,):
        name += f" weights, {activations.name} activations"
    name += " equalised" if settings.cross_layer_equalization else ""
    usual = QuantizationSettings(prefer_weights_only_quantization=activations.is_float)
    others = [
        f"{field.name}={getattr(settings, field.name)}"
        for field in fields(settings)
        if field.name not in _NAMED and getattr(settings, field.name) != getattr(usual, field.name)
    ]
    return ", ".join([name, *others])


def _defaults(in_blocks: bool) -> list[QuantizationSettings]:
    return [
        QuantizationSettings(),
        QuantizationSettings(prefer_weights_only_quantization=True),
        QuantizationSettings(
            prefer_weights_only_quantization=True,
            weights_num_bits=4,
            weights_only_quantization_block_size=32 if in_blocks else 0,
        ),
    ]


def _named(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        named = dict(given)
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        for index, settings in enumerate(given):
            _check(index, settings)
        named = {name_of_settings(settings): settings for settings in given}
    else:
        raise SettingsError(
            f"candidates must be a dict of settings by name, or a list of settings, got {described(given)}. {_EXAMPLE}"
        )
    if not named:
        raise SettingsError(f"candidates is empty, so there is nothing to try. {_EXAMPLE}")
    for name in named:
        if not isinstance(name, str) or not name.strip():
            raise SettingsError(f"candidates: every key must be a name, got {described(name)}. {_EXAMPLE}")
    return named


def _check(name: object, settings: object) -> None:
    if not isinstance(settings, QuantizationSettings):
        raise SettingsError(
            f"candidates[{name!r}] must be of type QuantizationSettings, got {described(settings)}. {_EXAMPLE}"
        )
    for field in _SINGLE:
        value = getattr(settings, field)
        if not isinstance(value, int):
            raise SettingsError(
                f"candidates[{name!r}].{field} names several values, {value}. Give a candidate for each of them: "
                "list(settings.candidates())."
            )


# A choice for a layer: quantization settings, pruning settings, or both.


Candidate = QuantizationSettings | PruningSettings | tuple[QuantizationSettings, PruningSettings]
"""One choice for a layer, as the caller gives it."""


@dataclass(frozen=True)
class LayerChoice:
    """A choice for a layer: quantization settings, pruning settings, or both.

    Attributes:
        quantization: of the layer, or of what pruning leaves of it; None for float.
        pruning: of the layer; None for none.
    """

    quantization: QuantizationSettings | None = None
    pruning: PruningSettings | None = None

    @property
    def given(self) -> Any:
        """Return the choice in the form in which users give candidates."""
        if self.pruning is None:
            return self.quantization
        return self.pruning if self.quantization is None else (self.quantization, self.pruning)

    @property
    def in_full(self) -> LayerChoice:
        """Return a copy whose pruning amount is explicit, so that rules of layers can override it and be overridden."""
        if self.pruning is None or self.pruning.pattern is not None:
            return self
        return replace(self, pruning=replace(self.pruning, amount=self.pruning.share))

    @property
    def name(self) -> str:
        """Return a short name of the choice."""
        bits = [] if self.quantization is None else [name_of_settings(self.quantization)]
        return ", ".join([*bits, *([] if self.pruning is None else [self.pruning.summary])])


Choices = Mapping[str, LayerChoice]
"""Choices of layers, by name, beside staying as they are."""


# Candidates that prune, alone or together with quantization.


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
    """Trials of layers with candidates that prune, one layer at a time."""

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
