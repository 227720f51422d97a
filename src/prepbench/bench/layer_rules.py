"""Turn clicks on layers into a minimal set of rules, in which the last click wins, and into pruning settings."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from prepbench.bench.state import EVERYTHING, FLOAT
from prepbench.errors import SettingsError
from prepbench.settings import (
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PrunableLayer,
    PruningSettings,
    QuantizationSettings,
    prunable_layers,
)
from prepbench.settings.explain import explain_layers
from prepbench.settings.pruning import CHANNELS, SINGLE
from prepbench.settings.rules import LayerNames, check_rule, is_table, quantizable_layers

_QUANTIZING = ("skip_quantization", "weights_num_bits", "activations_num_bits", "prefer_weights_only_quantization")
"""The settings that take a layer out of float."""

# decisions that are remembered, each for some rules
_KEPT = 6

Rules = Mapping[str, LayerQuantizationSettings]


class LayerRulesOf:
    """Evaluates rules for the quantizable layers of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.names = LayerNames(model)
        self.layers = tuple(quantizable_layers(model, tables=True))
        self.tables = frozenset(fqn for fqn in self.layers if is_table(self.names.modules[fqn]))
        self._explained: list[tuple[QuantizationSettings, list[Any], tuple[ExplainedLayer, ...]]] = []

    @property
    def has_others(self) -> bool:
        """Whether there is a layer that is no embedding."""
        return len(self.tables) < len(self.layers)

    def explained(self, base: QuantizationSettings, rules: Rules) -> tuple[ExplainedLayer, ...]:
        """Return the decision for each layer that these settings can quantize; embeddings for weight-only settings."""
        items = list(rules.items())  # their order decides between patterns
        found = next((known for known in self._explained if known[:2] == (base, items)), None)
        if found is None:  # a click asks for the decisions before and after it several times
            found = base, items, tuple(explain_layers(self.names, self.layers, base, rules))
            self._explained = [*self._explained[1 - _KEPT :], found]
        return found[2]

    def completed(self, explained: Iterable[ExplainedLayer]) -> tuple[ExplainedLayer, ...]:
        """Add the missing layers: embeddings that these settings cannot quantize are in float."""
        known = {layer.fqn: layer for layer in explained}
        return tuple(known.get(fqn) or self._in_float(fqn) for fqn in self.layers)

    def _in_float(self, fqn: str) -> ExplainedLayer:
        return ExplainedLayer(fqn, self.names.type_of(fqn), "global", None)

    def matched(self, pattern: str) -> list[str]:
        """Return the quantizable layers that a key matches: a layer, those inside a module, a glob, ``re:``, a
        class.

        Raises:
            SettingsError: it means none.
        """
        if not self.layers:
            raise SettingsError(
                f"pattern: {pattern!r} matches no layer, because the model has none to quantize, such as linear "
                "layers and convolutions. It compiles in float as it is."
            )
        if pattern.startswith("re:"):
            check_rule(pattern, FLOAT, self.names)  # raises what is wrong with the expression
        probe = {pattern: FLOAT}
        found = [fqn for fqn in self.layers if self.names.matching(fqn, probe)]
        if not found:
            near = difflib.get_close_matches(pattern, self.layers, n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(near)}." if near else f"There are: {', '.join(self.layers[:8]) or 'none'}."
            raise SettingsError(f"No quantizable layer matches {pattern!r}. {hint}")
        return found

    def with_rule(
        self, base: QuantizationSettings, rules: Rules, pattern: str, settings: LayerQuantizationSettings
    ) -> dict[str, LayerQuantizationSettings]:
        """Add a rule that decides for all layers that its pattern matches.

        Rules that it makes obsolete are dropped. It is omitted if its layers have these settings anyway.

        Raises:
            SettingsError: the pattern means no quantizable layer, or the settings contradict the global ones.
        """
        meant = self.matched(pattern)
        if self.tables.issuperset(meant):
            if settings.skips and not base.prefer_weights_only_quantization:
                return self._without_tables(base, rules, pattern, meant)
            if not settings.skips:  # there are no activations to quantize in a table
                settings = replace(settings, prefer_weights_only_quantization=True)
        names = {alias for fqn in meant for alias in self.names.aliases(fqn)}
        kept = {key: rule for key, rule in rules.items() if key not in names and key != pattern}
        added = {**kept, pattern: settings}
        chosen = set(meant)
        deciding = {layer.fqn: layer.rule for layer in self.explained(base, added)}
        for fqn in meant:  # a rule of higher rank, such as that of a module around, would decide
            if deciding.get(fqn, pattern) != pattern:
                added[fqn] = settings
        added = self._without_idle(base, added)
        without = {key: rule for key, rule in added.items() if key != pattern and key not in chosen}
        return without if self._same(base, added, without) else added

    def with_change(
        self, base: QuantizationSettings, rules: Rules, pattern: str, field: str, value: Any
    ) -> dict[str, LayerQuantizationSettings]:
        """Change one setting of the layers that a pattern matches, and keep their other settings.

        Raises:
            SettingsError: the pattern means no quantizable layer, or the value is not allowed.
        """
        meant, before = set(self.matched(pattern)), self.explained(base, rules)
        if meant.isdisjoint(each.fqn for each in before):  # embeddings in float
            before = self.completed(before)
        wanted = {each.fqn: with_field(each.settings, base, field, value) for each in before if each.fqn in meant}
        kinds = set(map(repr, wanted.values()))
        if len(kinds) == 1:
            return self.with_rule(base, rules, pattern, next(iter(wanted.values())))
        goal = [wanted[each.fqn].applied_to(base) if each.fqn in meant else each.settings for each in before]
        fewer = self._changed_in_place(before, rules, pattern, wanted)
        found = {each.fqn: each.settings for each in self.completed(self.explained(base, fewer))}
        if [found[each.fqn] for each in before] == goal:
            return self._without_idle(base, fewer)
        result = dict(rules)
        for fqn, settings in wanted.items():
            result = self.with_rule(base, result, fqn, settings)
        return result

    def _without_tables(
        self, base: QuantizationSettings, rules: Rules, pattern: str, meant: Sequence[str]
    ) -> dict[str, LayerQuantizationSettings]:
        """Keep embeddings in float beside layers with integer activations, unless a rule says otherwise.

        Raises:
            SettingsError: a rule for other layers, too, quantizes them.
        """
        names = {alias for fqn in meant for alias in self.names.aliases(fqn)}
        kept = {key: rule for key, rule in rules.items() if key not in names and key != pattern}
        ruled = next((each for each in self.explained(base, kept) if each.fqn in set(meant)), None)
        if ruled is None:
            return kept
        raise SettingsError(
            f"{pattern} cannot be left in float alone: the rule {ruled.rule!r} quantizes it together with other "
            "layers. Remove that rule, and choose the precision of these layers by their own names."
        )

    def _changed_in_place(
        self,
        before: Sequence[ExplainedLayer],
        rules: Rules,
        pattern: str,
        wanted: Mapping[str, LayerQuantizationSettings],
    ) -> dict[str, LayerQuantizationSettings]:
        """Edit the deciding rules in place and prepend one for layers that had none."""
        decided = {each.rule: wanted[each.fqn] for each in before if each.fqn in wanted}
        changed = {key: decided.get(key, rule) for key, rule in rules.items()}
        return {pattern: decided["global"], **changed} if "global" in decided and pattern not in rules else changed

    def _without_idle(self, base: QuantizationSettings, rules: Rules) -> dict[str, LayerQuantizationSettings]:
        """Return only the rules that decide for some layer."""
        deciding = {layer.rule for layer in self.explained(base, rules)}
        return {key: rule for key, rule in rules.items() if key in deciding}

    def _same(self, base: QuantizationSettings, one: Rules, other: Rules) -> bool:
        decided = [self.completed(self.explained(base, rules)) for rules in (one, other)]
        applied = [[layer.settings for layer in layers] for layers in decided]
        return applied[0] == applied[1]


def with_field(
    settings: QuantizationSettings | None, base: QuantizationSettings, field: str, value: Any
) -> LayerQuantizationSettings:
    """Return a layer's ``settings`` with one field changed, as overrides of ``base``.

    Args:
        settings: the layer's current settings; None if it is in float.
        base: the global settings.
        field: a field of :class:`QuantizationSettings`, or ``"skip_quantization"``.
        value: its new value.
    """
    if (field == "skip_quantization" and value) or (settings is None and field not in _QUANTIZING):
        return FLOAT
    now = base if settings is None else settings
    if field == "weights_only_quantization_block_size" and value != 0:  # else it would change nothing
        now = replace(now, prefer_weights_only_quantization=True)
    if field != "skip_quantization":
        now = _fitting(replace(now, **{field: value}) if _fits(now, field, value) else now, field, value)
    changed = {each.name: getattr(now, each.name) for each in fields(QuantizationSettings)}
    return LayerQuantizationSettings(**{k: v for k, v in changed.items() if v != getattr(base, k)})


def _fits(now: QuantizationSettings, field: str, value: Any) -> bool:
    try:
        replace(now, **{field: value})
    except SettingsError:
        return False
    return True


def _fitting(now: QuantizationSettings, field: str, value: Any) -> QuantizationSettings:
    """Return the settings with a field changed, and with the other fields that this value requires."""
    if getattr(now, field) == value:
        return now
    if field == "weights_symmetric":  # weights with a zero point need activations in float
        return replace(now, weights_symmetric=value, prefer_weights_only_quantization=True)
    if field == "prefer_weights_only_quantization":
        return replace(now, prefer_weights_only_quantization=value, weights_symmetric=True)
    return replace(now, **{field: value})  # raises what is wrong with it


def all_in_float(rules: Rules) -> dict[str, LayerQuantizationSettings]:
    """Return the rules behind one that leaves every layer in float."""
    return {EVERYTHING: FLOAT, **{key: rule for key, rule in rules.items() if key != EVERYTHING}}


# Turn clicks on layers into pruning settings and rules.


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


def with_pruning_field(settings: PruningSettings | None, field: str, value: Any) -> PruningSettings | None:
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
