"""The keys of rules for layers: which layers they match, and which rule wins."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench.checks import check_table
from prepbench.errors import SettingsError
from prepbench.settings.quantizable import is_quantizable, other_weights, recurrent_parts
from prepbench.settings.quantization import LayerQuantizationSettings

LayerRules = Mapping[str, LayerQuantizationSettings]
"""Settings by key: an FQN, a glob, a regular expression with the prefix ``re:``, or a class name."""

QUANTIZATION = "layer_quantization_settings"


def check_layer_rules(rules: object) -> None:
    """Raise ``SettingsError`` unless the value is None or a dict of settings by key."""
    example = '{"encoder.*": pb.LayerQuantizationSettings(skip_quantization=True)}'
    check_table(QUANTIZATION, rules, example, optional=True)


def check_rule(key: str, rule: object, names: LayerNames, kind: type = LayerQuantizationSettings) -> None:
    """Raise ``SettingsError`` unless the key matches a module and the rule is of a class and fits the model."""
    if not isinstance(rule, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise SettingsError(
            f"{names.argument}[{key!r}] must be {article} {kind.__name__}, got {type(rule).__name__}. "
            f"Write {kind.__name__}(...) with the settings to override."
        )
    _check_matches(key, names)
    if isinstance(rule, LayerQuantizationSettings):
        _check_until(key, rule, names.modules)


class LayerNames:
    """The names of a model's modules, indexed to resolve many rules for many layers.

    Args:
        model: the model.
        argument: the name of the rules in messages.

    Example:
        >>> names = LayerNames(nn.Sequential(nn.Linear(2, 2)))
        >>> names.matching("0", {"*": LayerQuantizationSettings(skip_quantization=True)})
        ['*']
    """

    def __init__(self, model: nn.Module, argument: str = QUANTIZATION) -> None:
        self.argument = argument
        # a shared layer answers to each of its names
        self.modules: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
        # tensors that are layers by themselves have names and rules like modules
        self.modules.update(other_weights(model))
        # the class of the module that a layer of several belongs to
        self.recurrent = {
            f"{fqn}.{name}" if fqn else name: type(module).__name__
            for fqn, module in model.named_modules()
            for name in recurrent_parts(module)
        }
        self._aliases: dict[int, list[str]] = {}
        for name, module in self.modules.items():
            self._aliases.setdefault(id(module), []).append(name)
        self.types = frozenset(type(module).__name__ for module in self.modules.values())
        self._around: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
        self._matched: dict[str, frozenset[str]] = {}

    def type_of(self, fqn: str) -> str:
        """Return the class name of a layer; for one layer of a recurrent module that of the module."""
        return self.recurrent.get(fqn) or type(self.modules[fqn]).__name__

    def aliases(self, fqn: str) -> list[str]:
        """Return all names of a module."""
        return self._aliases[id(self.modules[fqn])]

    def patterns(self, rules: Mapping[str, Any]) -> list[str]:
        """Return the keys that are globs or regular expressions, the last one first."""
        return [key for key in reversed(list(rules)) if _is_pattern(key) and key not in self.modules]

    def matching(self, fqn: str, rules: Mapping[str, Any], patterns: Sequence[str] | None = None) -> list[str]:
        """Return the keys that match a layer; the first one wins. Pass ``patterns`` to avoid computing them for each
        layer.
        """
        above, types = self._distances(fqn)
        by_name = {name: distance for name, distance in above.items() if name in rules}
        by_type = {kind: types[kind] for kind in types if kind in rules and kind not in self.modules}
        patterns = self.patterns(rules) if patterns is None else patterns
        matching = [key for key in patterns if not self.matched_by(key).isdisjoint(above)]
        return [*self._nearest_first(fqn, by_name, rules), *matching, *self._nearest_first(fqn, by_type, rules)]

    def matched_by(self, pattern: str) -> frozenset[str]:
        """Return the names of modules that a glob or a regular expression matches."""
        if pattern not in self._matched:
            self._matched[pattern] = frozenset(name for name in self.modules if _pattern_matches(pattern, name))
        return self._matched[pattern]

    def _distances(self, fqn: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return the distance from a layer to each module around it, by name and by class; a shared layer has
        several parents.
        """
        if fqn not in self._around:
            above: dict[str, int] = {}
            types: dict[str, int] = {}
            for alias in self.aliases(fqn):
                for distance, name in enumerate((alias, *_ancestors(alias))):
                    above[name] = min(distance, above.get(name, distance))
                    kind = type(self.modules[name]).__name__
                    types[kind] = min(distance, types.get(kind, distance))
            self._around[fqn] = above, types
        return self._around[fqn]

    def _nearest_first(self, fqn: str, distances: Mapping[str, int], rules: Mapping[str, Any]) -> list[str]:
        """Return the keys in order of distance; raise if the nearest ones contradict each other, which can only
        happen for a shared layer.

        Raises:
            SettingsError: they do.
        """
        keys = sorted(distances, key=distances.__getitem__)
        for other in keys[1:]:
            if distances[other] == distances[keys[0]] and rules[other] != rules[keys[0]]:
                raise SettingsError(
                    f"{self.argument}[{keys[0]!r}] and [{other!r}] contradict each other: both are for the "
                    f"layer {fqn!r}, which is shared, and neither is nearer. Keep one of the two."
                )
        return keys


def is_within(fqn: str, ancestor: str) -> bool:
    """Return whether a module is ``ancestor`` or inside it."""
    return fqn == ancestor or ancestor == "" or fqn.startswith(ancestor + ".")


def _ancestors(fqn: str) -> list[str]:
    parts = fqn.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, -1, -1)] if fqn else []


def _is_pattern(key: str) -> bool:
    return key.startswith("re:") or any(c in key for c in "*?[")


def _pattern_matches(key: str, fqn: str) -> bool:
    if key.startswith("re:"):
        return re.fullmatch(key[3:], fqn) is not None
    return _is_pattern(key) and fnmatch.fnmatchcase(fqn, key)


def _check_matches(key: str, names: LayerNames) -> None:
    modules = names.modules
    if key.startswith("re:"):
        try:
            re.compile(key[3:])
        except re.error as error:
            raise SettingsError(
                f"{names.argument}[{key!r}] is not a valid regular expression: {error}. "
                "Correct it; for a glob, leave out 're:'."
            ) from error
    if key in modules or key in names.types or (_is_pattern(key) and names.matched_by(key)):
        return
    types = names.types
    near = difflib.get_close_matches(key, [*filter(None, modules), *sorted(types)], n=3, cutoff=0.4)
    layers = [fqn for fqn, one in modules.items() if isinstance(one, torch.Tensor) or is_quantizable(one)]
    hint = f"Nearest: {', '.join(map(repr, near))}." if near else f"Layers: {', '.join(layers[:8])}."
    raise SettingsError(
        f"{names.argument}[{key!r}] matches no module. {hint} "
        "A key is a module name, a glob such as 'blocks.*', 're:' and a regular expression, or a class name."
    )


def _check_until(key: str, rule: LayerQuantizationSettings, modules: Mapping[str, object]) -> None:
    for name in rule.skip_quantization_until:
        if name not in modules:
            near = difflib.get_close_matches(name, list(filter(None, modules)), n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(map(repr, near))}." if near else "Names are those of named_modules()."
            raise SettingsError(
                f"layer_quantization_settings[{key!r}].skip_quantization_until names {name!r}, which the model does "
                f"not have. {hint}"
            )
