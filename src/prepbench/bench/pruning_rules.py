"""Turn clicks on layers into pruning settings and rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from prepbench.bench.state import EVERYTHING
from prepbench.errors import SettingsError
from prepbench.settings import LayerPruningSettings, PrunableLayer, PruningSettings, prunable_layers
from prepbench.settings.pruning import CHANNELS, SINGLE

PruningRules = Mapping[str, LayerPruningSettings]
Planned = Mapping[str, PruningSettings | None]

STAYS = LayerPruningSettings(skip_pruning=True)
NOTHING = "none"
"""The mask of layers that are not pruned."""
_FEW = 64  # rules, up to which each is tried whether it is needed


def pruning_label(settings: PruningSettings | None) -> str:
    """Return a short text of the pruning, e.g. ``"50% channels"``, ``"2:4"``; empty for none.

    Example:
        >>> pruning_label(PruningSettings(mask_type="channels"))
        '50% channels'
    """
    if settings is None:
        return ""
    if settings.pattern is not None:
        return settings.mask_type
    what = "channels" if settings.mask_type == CHANNELS else "weights"
    return f"{percent(settings)}% {what}"


def percent(settings: PruningSettings) -> str:
    """Return the share to remove, in percent."""
    return f"{100 * settings.share:.4g}"


def planned_pruning(model: nn.Module, base: PruningSettings | None, rules: PruningRules) -> tuple[PrunableLayer, ...]:
    """Return the decision for each layer that can be pruned; empty without pruning.

    Raises:
        SettingsError: as :func:`prepbench.prunable_layers` does.
    """
    return () if base is None else tuple(prunable_layers(model, base, rules))


def with_field(settings: PruningSettings | None, field: str, value: Any) -> PruningSettings | None:
    """Return a layer's ``settings`` with one field changed.

    Args:
        settings: the layer's current pruning; None for none.
        field: ``"mask_type"``, where :data:`NOTHING` prunes nothing, or another field of :class:`PruningSettings`.
        value: its new value.

    Raises:
        SettingsError: a value that is not allowed.
    """
    if field == "mask_type" and value == NOTHING:
        return None
    now = PruningSettings() if settings is None else settings
    if field == "mask_type":
        keeps = value in (SINGLE, CHANNELS) and now.pattern is None  # a pattern says how many stay
        return replace(now, mask_type=value, amount=now.amount if keeps else None)
    if field == "amount" and now.pattern is not None:
        now = replace(now, mask_type=SINGLE)
    return replace(now, **{field: value})


def changed_pruning(
    model: nn.Module,
    base: PruningSettings | None,
    rules: PruningRules,
    meant: Mapping[str, Sequence[str]],
    change: Callable[[PruningSettings | None], PruningSettings | None],
) -> tuple[PruningSettings | None, dict[str, LayerPruningSettings]]:
    """Return settings and rules that prune some layers differently, and all others as before.

    Args:
        model: the model.
        base: the global settings; None where nothing is pruned.
        rules: the rules.
        meant: for each pattern the layers that it means.
        change: from the current pruning of a layer to the new one.

    Raises:
        SettingsError: settings that contradict each other, or two ways of pruning one shared weight.
    """
    prunable = [row.fqn for row in prunable_layers(model, PruningSettings(), None)]
    chosen = [fqn for fqns in meant.values() for fqn in fqns if fqn in set(prunable)]
    if not chosen:
        raise SettingsError(
            f"{', '.join(meant)} cannot be pruned: layers with a weight matrix can, but for embeddings."
        )
    now: Planned = dict.fromkeys(prunable)
    now = {**now, **{row.fqn: row.settings for row in planned_pruning(model, base, rules)}}
    goal = {fqn: change(settings) if fqn in set(chosen) else settings for fqn, settings in now.items()}
    kinds = Counter(settings for settings in goal.values() if settings is not None)
    if not kinds:
        return None, {}
    if len(kinds) == 1 and None not in goal.values():
        return next(iter(kinds)), {}
    if base is None:
        base, rules = kinds.most_common(1)[0][0], {EVERYTHING: STAYS}
    kept = {key: rule for key, rule in rules.items() if key not in meant and key not in set(chosen)}
    short = dict(kept)
    for pattern, fqns in meant.items():
        wanted = {goal[fqn] for fqn in fqns if fqn in goal}
        if len(wanted) == 1:
            short[pattern] = _override(next(iter(wanted)), base)
        else:
            short |= {fqn: _override(goal[fqn], base) for fqn in fqns if fqn in goal}
    single = {fqn: _override(settings, base) for fqn, settings in goal.items()}
    for attempt in (short, {**short, **{fqn: single[fqn] for fqn in chosen}}, single):
        if _means(model, base, attempt) == goal:
            return base, _needed(model, base, attempt, goal)
    planned_pruning(model, base, single)  # raises where layers share a weight
    raise SettingsError(
        "The global pruning settings have a threshold, which a single layer cannot be without. Set one for it, or "
        "call bench.set_pruning(pb.PruningSettings(...)) first."
    )


def _override(settings: PruningSettings | None, base: PruningSettings) -> LayerPruningSettings:
    """Return the rule that gives a layer these settings."""
    if settings is None:
        return STAYS
    values = {each.name: getattr(settings, each.name) for each in fields(PruningSettings)}
    if settings.pattern is None and settings.amount is None and base.amount is not None:
        values["amount"] = settings.share
    return LayerPruningSettings(**{name: v for name, v in values.items() if v != getattr(base, name)})


def _means(model: nn.Module, base: PruningSettings, rules: PruningRules) -> Planned | None:
    """Return the plan that rules give each layer; None where they contradict each other."""
    try:
        return {row.fqn: row.settings for row in prunable_layers(model, base, rules)}
    except SettingsError:
        return None


def _needed(
    model: nn.Module, base: PruningSettings, rules: PruningRules, goal: Planned
) -> dict[str, LayerPruningSettings]:
    """Return the rules without those that change nothing."""
    kept = dict(rules)
    for key in list(rules) if len(rules) <= _FEW else ():
        fewer = {name: rule for name, rule in kept.items() if name != key}
        if _means(model, base, fewer) == goal:
            kept = fewer
    return kept
