"""Decide the pruning of each layer, and say which rule decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from prepbench.checks import check_table, check_type
from prepbench.errors import SettingsError
from prepbench.settings.pruning import LayerPruningSettings, PruningSettings
from prepbench.settings.quantizable import quantizable_layers
from prepbench.settings.rules import LayerNames, check_rule

ARGUMENT = "layer_pruning_settings"

PruningRules = Mapping[str, LayerPruningSettings]
"""Settings by key: an FQN, a glob, a regular expression with the prefix ``re:``, or a class name."""


@dataclass(frozen=True)
class PrunableLayer:
    """The decision for one layer.

    Attributes:
        fqn: the layer.
        type: its class name.
        rule: the key of ``layer_pruning_settings`` that decided, or ``"global"``.
        settings: the settings that apply, or None if the layer stays unchanged.
        overruled: other keys that match the layer, which ``rule`` outranks.
    """

    fqn: str
    type: str
    rule: str
    settings: PruningSettings | None
    overruled: tuple[str, ...] = ()


def check_pruning_rules(rules: object) -> None:
    """Raise ``SettingsError`` unless the value is None or a dict of settings by key."""
    check_table(ARGUMENT, rules, '{"head": pb.LayerPruningSettings(skip_pruning=True)}', optional=True)


def check_pruning_settings(pruning: object, layers: PruningRules | None) -> None:
    """Raise ``SettingsError`` unless both are of the right types, or None, and rules have something to override."""
    check_type(
        "pruning_settings", pruning, PruningSettings, "Write pruning_settings=pb.PruningSettings().", optional=True
    )
    check_pruning_rules(layers)
    if pruning is None and layers:
        raise SettingsError(
            f"layer_pruning_settings were given for {', '.join(map(repr, layers))} without pruning_settings, so "
            "nothing is pruned. Add pruning_settings=PruningSettings()."
        )


def prunable_layers(model: nn.Module, settings: PruningSettings, rules: PruningRules | None) -> list[PrunableLayer]:
    """Return the decision for each layer whose weight has two dims or more, by the rules of precedence of
    :func:`prepbench.explain_settings`; embeddings are excluded.

    Raises:
        SettingsError: a key that matches no such layer, a value of another type, a rule that contradicts the global
            settings, or two ways of pruning one weight that layers share.
    """
    check_type("pruning_settings", settings, PruningSettings, "Give pb.PruningSettings().")
    check_pruning_rules(rules)
    table, names = dict(rules or {}), LayerNames(model, ARGUMENT)
    for key, rule in table.items():
        check_rule(key, rule, names, LayerPruningSettings)
    applied = {key: _applied(key, rule, settings) for key, rule in table.items()}
    patterns, rows = names.patterns(table), []
    for fqn in quantizable_layers(model):
        key, *overruled = [*names.matching(fqn, table, patterns), "global"]
        kind = type(names.modules[fqn]).__name__
        chosen = settings if key == "global" else applied[key]
        rows.append(PrunableLayer(fqn, kind, key, chosen, tuple(each for each in overruled if each != "global")))
    _check_rules_matter(rows, table)
    _check_shared(rows, names)
    return rows


def _applied(key: str, rule: LayerPruningSettings, settings: PruningSettings) -> PruningSettings | None:
    try:
        return rule.applied_to(settings)
    except SettingsError as error:
        raise SettingsError(f"{ARGUMENT}[{key!r}] together with pruning_settings: {error}") from error


def _check_rules_matter(rows: list[PrunableLayer], rules: PruningRules) -> None:
    matching = {key for row in rows for key in (row.rule, *row.overruled)}
    for key in rules:
        if key not in matching:
            raise SettingsError(
                f"{ARGUMENT}[{key!r}] changes nothing: what it matches is not a layer that can be pruned, and holds "
                "none. Layers with a weight matrix can be, but for embeddings. Give one of them, or leave the key out."
            )


def _check_shared(rows: list[PrunableLayer], names: LayerNames) -> None:
    """Raise for two ways of pruning one weight."""
    first: dict[int, PrunableLayer] = {}
    for row in rows:
        for name, weight in names.modules[row.fqn].named_parameters(recurse=False):
            if weight.ndim < 2:
                continue
            other = first.setdefault(id(weight), row)
            if other.settings != row.settings:
                raise SettingsError(
                    f"{ARGUMENT}[{row.rule!r}] and {other.rule!r} contradict each other: {row.fqn!r} and {other.fqn!r} "
                    f"share the weight {name!r}, which cannot be pruned in two ways. Give both the same settings."
                )
