"""What the layers of a model may take on each target of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prepbench.errors import SettingsError
from prepbench.search.candidates import named_candidates, without_lacking
from prepbench.search.layer_choice import Choices, LayerChoice
from prepbench.search.mixtures import FLOAT
from prepbench.search.pruned_candidates import bits_of, without_pruning
from prepbench.settings import DeploymentSettings


def choices_by_target(
    candidates: Any, deployments: Sequence[DeploymentSettings]
) -> tuple[list[Choices], list[dict[str, str]]]:
    """What layers may take on each target, and why a target lacks others.

    Args:
        candidates: as :func:`prepbench.search` takes them, but for None.
        deployments: the targets.

    Raises:
        SettingsError: something else among them, or what no target has.
    """
    bits, pruned = without_pruning(candidates)
    if len(deployments) > 1 and isinstance(bits, Mapping | Sequence) and not isinstance(bits, str):
        found = [_known_to(bits, pruned, each) for each in deployments]
        every = set.intersection(*(set(missing) for _, missing in found))
        if not every and all(taken for taken, _ in found):
            return [taken for taken, _ in found], [missing for _, missing in found]
    return [_all_for(bits, pruned, each) for each in deployments], [{} for _ in deployments]


def _known_to(
    bits: Any, pruned: Mapping[str, LayerChoice], deployment: DeploymentSettings
) -> tuple[Choices, dict[str, str]]:
    """What a target has, and why it lacks the others."""
    taken, lacking = without_lacking(bits, deployment) if not pruned or bits else ({}, {})
    pairs = bits_of(pruned)
    missing = without_lacking(pairs, deployment)[1] if pairs else {}
    named = {name: LayerChoice(settings) for name, settings in taken.items()}
    return _checked(named | {name: one for name, one in pruned.items() if name not in missing}), lacking | missing


def _all_for(bits: Any, pruned: Mapping[str, LayerChoice], deployment: DeploymentSettings) -> Choices:
    named = named_candidates(bits, deployment) if not pruned or bits else {}
    if pairs := bits_of(pruned):
        named_candidates(pairs, deployment)
    return _checked({**{name: LayerChoice(settings) for name, settings in named.items()}, **pruned})


def _checked(choices: Choices) -> Choices:
    if FLOAT in choices:
        raise SettingsError(
            f"candidates: {FLOAT!r} is the name of layers that are neither quantized nor pruned, which are always "
            "tried. Give these settings another name."
        )
    return {name: choice.in_full for name, choice in choices.items()}
