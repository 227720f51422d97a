"""From a click on layers to rules: as few as say it, and the last click decides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from prepbench.bench.state import EVERYTHING, FLOAT
from prepbench.errors import SettingsError
from prepbench.settings import ExplainedLayer, LayerQuantizationSettings, QuantizationSettings
from prepbench.settings.explain import explain_layers
from prepbench.settings.quantizable import quantizable_layers
from prepbench.settings.rules import LayerNames

Rules = Mapping[str, LayerQuantizationSettings]


class LayerRulesOf:
    """The quantizable layers of a model, and what rules mean for them."""

    def __init__(self, model: nn.Module) -> None:
        self.names = LayerNames(model)
        self.layers = tuple(quantizable_layers(model))

    def explained(self, base: QuantizationSettings, rules: Rules) -> tuple[ExplainedLayer, ...]:
        """The decision for each layer."""
        return tuple(explain_layers(self.names, self.layers, base, rules))

    def matched(self, pattern: str) -> list[str]:
        """The quantizable layers that a key means: a layer, what is inside a module, a glob, ``re:``, a class.

        Raises:
            SettingsError: it means none.
        """
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
        """The rules with one more, which decides for all layers that its pattern means.

        Rules that it outdates are dropped, and it is left out itself where its layers have these settings anyway.

        Raises:
            SettingsError: the pattern means no quantizable layer, or the settings contradict the global ones.
        """
        meant = self.matched(pattern)
        names = {alias for fqn in meant for alias in self.names.aliases(fqn)}
        kept = {key: rule for key, rule in rules.items() if key not in names and key != pattern}
        added = {**kept, pattern: settings}
        chosen = set(meant)
        deciding = {layer.fqn: layer.rule for layer in self.explained(base, added)}
        for fqn in meant:  # a rule of higher rank, such as that of a module around, would decide
            if deciding[fqn] != pattern:
                added[fqn] = settings
        added = self._without_idle(base, added)
        without = {key: rule for key, rule in added.items() if key != pattern and key not in chosen}
        return without if self._same(base, added, without) else added

    def without(self, base: QuantizationSettings, rules: Rules, layers: Sequence[str]) -> Rules:
        """The rules without those of single layers, so that what is more general decides again."""
        names = {alias for fqn in layers for alias in self.names.aliases(fqn)} if layers else set()
        return self._without_idle(base, {key: rule for key, rule in rules.items() if key not in names})

    def _without_idle(self, base: QuantizationSettings, rules: Rules) -> dict[str, LayerQuantizationSettings]:
        """The rules that decide for some layer."""
        deciding = {layer.rule for layer in self.explained(base, rules)}
        return {key: rule for key, rule in rules.items() if key in deciding}

    def _same(self, base: QuantizationSettings, one: Rules, other: Rules) -> bool:
        applied = [[layer.settings for layer in self.explained(base, rules)] for rules in (one, other)]
        return applied[0] == applied[1]


def with_field(
    settings: QuantizationSettings | None, base: QuantizationSettings, field: str, value: Any
) -> LayerQuantizationSettings:
    """What a layer with ``settings`` has when one field is changed, as overrides of ``base``.

    Args:
        settings: what applies to the layer now; None where it is in float.
        base: the global settings.
        field: a field of :class:`QuantizationSettings`, or ``"skip_quantization"``.
        value: its new value.
    """
    if field == "skip_quantization" and value:
        return FLOAT
    now = base if settings is None else settings
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
    """The settings with the field, and with what it needs beside it."""
    if getattr(now, field) == value:
        return now
    if field == "weights_symmetric":  # weights with a zero point need activations in float
        return replace(now, weights_symmetric=value, prefer_weights_only_quantization=True)
    if field == "prefer_weights_only_quantization":
        return replace(now, prefer_weights_only_quantization=value, weights_symmetric=True)
    return replace(now, **{field: value})  # raises what is wrong with it


def everything_in_float(rules: Rules) -> dict[str, LayerQuantizationSettings]:
    """The rules behind one that leaves every layer in float."""
    return {EVERYTHING: FLOAT, **{key: rule for key, rule in rules.items() if key != EVERYTHING}}
