"""The candidate settings of a search, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.settings import DeploymentSettings, QuantizationSettings
from prepbench.targets import target_for
from prepbench.targets.capabilities import supported, unsupported

_EXAMPLE = 'Write candidates={"int8": pb.QuantizationSettings()}, for example.'
_SINGLE = ("weights_num_bits", "weights_only_quantization_block_size")
_NAMED = (*_SINGLE, "activations_num_bits", "prefer_weights_only_quantization", "cross_layer_equalization")


def named_candidates(given: Any, deployment: DeploymentSettings) -> dict[str, QuantizationSettings]:
    """Return the candidates by name; by default the 8-bit settings of the target and weight-only ones of 8 and 4 bits.

    Args:
        given: settings by name, or a sequence of settings, which are named here; or None.
        deployment: the target's settings.

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

    Args:
        given: settings by name, or a sequence of settings.
        deployment: the target's settings.

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
    only_weights = settings.prefer_weights_only_quantization
    bits, block = settings.weights_num_bits, settings.weights_only_quantization_block_size
    name = f"int{bits}"
    if only_weights:
        name += " weights" + (f" in blocks of {block}" if block else "")
    elif settings.activations_num_bits != bits:
        name += f" weights, int{settings.activations_num_bits} activations"
    name += " equalised" if settings.cross_layer_equalization else ""
    usual = QuantizationSettings(prefer_weights_only_quantization=only_weights)
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
