"""The keys of ``layer_quantization_settings``: which layers they match, and which of them decides."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping

from torch import nn

from prepbench.checks import check_table
from prepbench.errors import SettingsError
from prepbench.settings.quantizable import is_quantizable
from prepbench.settings.quantization import LayerQuantizationSettings

LayerRules = Mapping[str, LayerQuantizationSettings]
"""Settings by key: an FQN, a glob, a regular expression with the prefix ``re:``, or a class name."""


def check_layer_rules(rules: object) -> None:
    """Raise ``SettingsError`` unless the value is None or a dict of settings by key."""
    example = '{"encoder.*": pb.LayerQuantizationSettings(skip_quantization=True)}'
    check_table("layer_quantization_settings", rules, example, optional=True)


def check_rule(key: str, rule: object, modules: Mapping[str, nn.Module]) -> None:
    """Raise ``SettingsError`` unless the key matches a module and the rule fits the model."""
    if not isinstance(rule, LayerQuantizationSettings):
        raise SettingsError(
            f"layer_quantization_settings[{key!r}] must be a LayerQuantizationSettings, got {type(rule).__name__}. "
            "Write LayerQuantizationSettings(...) with the settings to override."
        )
    _check_matches(key, modules)
    _check_until(key, rule, modules)


def matching_rules(fqn: str, modules: Mapping[str, nn.Module], rules: LayerRules) -> list[str]:
    """The keys that match a layer; the first one decides."""
    aliases = [name for name, module in modules.items() if module is modules[fqn]]
    enclosing = [key for key in rules if key in modules and any(is_within(alias, key) for alias in aliases)]
    enclosing.sort(key=len, reverse=True)
    _check_agree(fqn, enclosing, modules, rules)
    names = list(dict.fromkeys(name for alias in aliases for name in (alias, *_ancestors(alias))))
    patterns = [key for key in rules if key not in modules and any(_pattern_matches(key, name) for name in names)]
    types = dict.fromkeys(type(modules[name]).__name__ for name in names)
    return [*enclosing, *reversed(patterns), *(name for name in types if name in rules and name not in modules)]


def _check_agree(fqn: str, enclosing: list[str], modules: Mapping[str, nn.Module], rules: LayerRules) -> None:
    """Two names of one module, as a shared layer has, must not say different things: neither name is nearer."""
    if not enclosing:
        return
    first = enclosing[0]
    for other in enclosing[1:]:
        if modules[other] is modules[first] and rules[other] != rules[first]:
            raise SettingsError(
                f"layer_quantization_settings[{first!r}] and [{other!r}] name the same module ({fqn!r} is shared) and "
                "contradict each other. Keep one of the two."
            )


def is_within(fqn: str, ancestor: str) -> bool:
    """Whether a module is ``ancestor`` or inside it."""
    return fqn == ancestor or ancestor == "" or fqn.startswith(ancestor + ".")


def _ancestors(fqn: str) -> list[str]:
    parts = fqn.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, -1, -1)] if fqn else []


def _pattern_matches(key: str, fqn: str) -> bool:
    if key.startswith("re:"):
        return re.fullmatch(key[3:], fqn) is not None
    return any(c in key for c in "*?[") and fnmatch.fnmatchcase(fqn, key)


def _check_matches(key: str, modules: Mapping[str, nn.Module]) -> None:
    if key.startswith("re:"):
        try:
            re.compile(key[3:])
        except re.error as error:
            raise SettingsError(
                f"layer_quantization_settings[{key!r}] is no valid regular expression: {error}. "
                "Correct it; for a glob, leave out 're:'."
            ) from error
    types = {type(module).__name__ for module in modules.values()}
    if key in modules or key in types or any(_pattern_matches(key, fqn) for fqn in modules):
        return
    near = difflib.get_close_matches(key, [*filter(None, modules), *sorted(types)], n=3, cutoff=0.4)
    layers = [fqn for fqn, module in modules.items() if is_quantizable(module)]
    hint = f"Nearest: {', '.join(map(repr, near))}." if near else f"Layers: {', '.join(layers[:8])}."
    raise SettingsError(
        f"layer_quantization_settings[{key!r}] matches no module. {hint} "
        "A key is a module name, a glob such as 'blocks.*', 're:' and a regular expression, or a class name."
    )


def _check_until(key: str, rule: LayerQuantizationSettings, modules: Mapping[str, nn.Module]) -> None:
    for name in rule.skip_quantization_until:
        if name not in modules:
            near = difflib.get_close_matches(name, list(filter(None, modules)), n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(map(repr, near))}." if near else "Names are those of named_modules()."
            raise SettingsError(
                f"layer_quantization_settings[{key!r}].skip_quantization_until names {name!r}, which the model does "
                f"not have. {hint}"
            )
