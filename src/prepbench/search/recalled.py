"""Mixtures that a journal holds: a search that goes on after a crash, or for another budget, begins with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from prepbench.errors import PrepbenchError
from prepbench.search.layer_choice import Choices, LayerChoice
from prepbench.search.mixtures import FLOAT, Arguments, Mixture
from prepbench.search.remembered import Remembered
from prepbench.settings import (
    LayerPruningSettings,
    LayerQuantizationSettings,
    PruningSettings,
    QuantizationSettings,
    explain_settings,
    prunable_layers,
)


def recalled(remembered: Remembered, arguments: Arguments, at: int) -> Iterator[Mixture]:
    """The mixtures of a target that were measured before, each once, in the order in which they were.

    Args:
        remembered: what the journal holds of this model.
        arguments: of ``compile_model`` for each mixture.
        at: the target's position.
    """
    layers, choices, deployment = arguments.targets[at]
    seen = set()
    for result in remembered.all(deployment):
        mixture = _mixture_of(result.plan, arguments.model, choices)
        known = tuple(mixture.get(fqn, FLOAT) for fqn in layers) if mixture is not None else ()
        if (
            "" not in known
            and known
            and known not in seen
            and remembered.is_of(result, deployment, arguments.of(at, known))
        ):
            seen.add(known)
            yield known


def _mixture_of(plan: Mapping[str, Any], model: nn.Module, choices: Choices) -> dict[str, str] | None:
    """The name of what each layer takes, "" for none of the choices; None for a plan of another version."""
    try:
        bits, pruning = _bits_of(plan, model), _pruning_of(plan, model)
    except PrepbenchError:
        return None
    names = {LayerChoice(): FLOAT} | {choice: name for name, choice in choices.items()}
    return {fqn: names.get(LayerChoice(bits.get(fqn), pruning.get(fqn)), "") for fqn in {**bits, **pruning}}


def _bits_of(plan: Mapping[str, Any], model: nn.Module) -> dict[str, QuantizationSettings | None]:
    if "quantization_settings" not in plan:
        return {}
    common = QuantizationSettings.from_dict(plan["quantization_settings"])
    given = plan.get("layer_quantization_settings", {})
    rules = {fqn: LayerQuantizationSettings.from_dict(rule) for fqn, rule in given.items()}
    return {row.fqn: row.settings for row in explain_settings(model, common, rules)}


def _pruning_of(plan: Mapping[str, Any], model: nn.Module) -> dict[str, PruningSettings | None]:
    if "pruning_settings" not in plan:
        return {}
    common = PruningSettings.from_dict(plan["pruning_settings"])
    given = plan.get("layer_pruning_settings", {})
    rules = {fqn: LayerPruningSettings.from_dict(rule) for fqn, rule in given.items()}
    return {row.fqn: row.settings for row in prunable_layers(model, common, rules)}
