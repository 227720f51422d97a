"""Which rule decides for which layer."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from prepbench.errors import SettingsError
from prepbench.prepare.modules import Operator
from prepbench.settings.quantization import LayerQuantizationSettings, QuantizationSettings

LayerRules = Mapping[str, LayerQuantizationSettings]

# Their weights are looked up, not multiplied.
_TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class ExplainedLayer:
    """The decision for one layer.

    Attributes:
        fqn: the layer.
        type: its class name.
        rule: the key of ``layer_quantization_settings`` that decided, or ``"global"``.
        settings: what applies, or None if the layer stays in float.
    """

    fqn: str
    type: str
    rule: str
    settings: QuantizationSettings | None


def quantizable_layers(model: nn.Module) -> list[str]:
    """FQNs of the layers that can be quantized, in the order of ``named_modules()``; a shared layer once.

    Example:
        >>> quantizable_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        ['0']
    """
    return [fqn for fqn, module in model.named_modules() if _is_quantizable(module)]


def explain_settings(
    model: nn.Module, settings: QuantizationSettings, layer_quantization_settings: LayerRules | None = None
) -> list[ExplainedLayer]:
    """Say for each quantizable layer which rule decides and what applies.

    A key of ``layer_quantization_settings`` is the FQN of a layer or of a module around it, a glob over FQNs
    (``"encoder.*.attention"``), a regular expression with prefix ``re:`` (it must match the whole FQN), or a module's
    class name. The nearest FQN wins over globs and regular expressions, of which the last that matches wins; these win
    over types (the layer's own, then that of the nearest module around it), and types over the global settings.

    Raises:
        SettingsError: a key that matches no module of the model, or a value of another type.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> rules = {"0": LayerQuantizationSettings(skip_quantization=True)}
        >>> [layer.rule for layer in explain_settings(net, QuantizationSettings(), rules)]
        ['0', 'global']
    """
    rules = dict(layer_quantization_settings or {})
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared layer answers to each of its names
    for key, value in rules.items():
        if not isinstance(value, LayerQuantizationSettings):
            raise SettingsError(
                f"layer_quantization_settings[{key!r}] must be a LayerQuantizationSettings, got {type(value).__name__}."
            )
        _check_matches(key, modules)
    rows = []
    for fqn in quantizable_layers(model):
        rule = _deciding_rule(fqn, modules, rules)
        applied = settings if rule is None else rules[rule].applied_to(settings)
        rows.append(ExplainedLayer(fqn, type(modules[fqn]).__name__, rule or "global", applied))
    return rows


_WEIGHTED = ("conv1d", "conv2d", "conv3d", "linear")


def _is_quantizable(module: nn.Module) -> bool:
    """Whether it has a matrix or kernel under a usual name, as users' own linear layers, attention and LSTMs do."""
    if isinstance(module, _TABLES):
        return False
    if isinstance(module, Operator):
        # a prepared function that takes a weight, which is a parameter of the module around it
        return module.operation is not None and module.operation.name in _WEIGHTED
    return any(
        value is not None and value.ndim >= 2 and (name.startswith("weight") or name.endswith("_weight"))
        for name, value in module._parameters.items()
    )


def _deciding_rule(fqn: str, modules: Mapping[str, nn.Module], rules: LayerRules) -> str | None:
    aliases = [name for name, module in modules.items() if module is modules[fqn]]
    enclosing = [key for key in rules if key in modules and any(_is_within(alias, key) for alias in aliases)]
    if enclosing:
        return max(enclosing, key=len)
    names = [name for alias in aliases for name in (alias, *_ancestors(alias))]
    patterns = [key for key in rules if key not in modules and any(_pattern_matches(key, name) for name in names)]
    if patterns:
        return patterns[-1]
    types = (type(modules[name]).__name__ for name in names)
    return next((name for name in types if name in rules and name not in modules), None)


def _is_within(fqn: str, ancestor: str) -> bool:
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
                f"layer_quantization_settings[{key!r}] is no valid regular expression: {error}."
            ) from error
    types = {type(module).__name__ for module in modules.values()}
    if key in modules or key in types or any(_pattern_matches(key, fqn) for fqn in modules):
        return
    near = difflib.get_close_matches(key, [*filter(None, modules), *sorted(types)], n=3, cutoff=0.4)
    hint = f"Nearest: {', '.join(map(repr, near))}." if near else f"Layers: {', '.join(quantizable_in(modules)[:8])}."
    raise SettingsError(
        f"layer_quantization_settings[{key!r}] matches no module. {hint} "
        "A key is a module name, a glob such as 'blocks.*', 're:' and a regular expression, or a class name."
    )


def quantizable_in(modules: Mapping[str, nn.Module]) -> list[str]:
    """FQNs of the quantizable layers among ``modules``."""
    return [fqn for fqn, module in modules.items() if _is_quantizable(module)]
