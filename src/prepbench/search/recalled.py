"""Mixtures that a journal holds: a search that goes on after a crash, or for another budget, begins with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from prepbench.errors import PrepbenchError
from prepbench.search.mixtures import FLOAT, Arguments, Choices, Mixture
from prepbench.search.remembered import Remembered
from prepbench.settings import LayerQuantizationSettings, QuantizationSettings, explain_settings


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
    if "quantization_settings" not in plan:
        return {}
    names = {settings: name for name, settings in choices.items()}
    try:
        common = QuantizationSettings.from_dict(plan["quantization_settings"])
        given = plan.get("layer_quantization_settings", {})
        rules = {fqn: LayerQuantizationSettings.from_dict(rule) for fqn, rule in given.items()}
        rows = explain_settings(model, common, rules)
    except PrepbenchError:
        return None
    return {row.fqn: FLOAT if row.settings is None else names.get(row.settings, "") for row in rows}
