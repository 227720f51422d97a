"""Which rule decides for which layer."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from prepbench._display import view
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
        overruled: other keys that match the layer, which ``rule`` outranks.
        until: where skipping ends that begins at this layer: FQNs.
        downstream: whether all layers behind this one are skipped with it.
    """

    fqn: str
    type: str
    rule: str
    settings: QuantizationSettings | None
    overruled: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    downstream: bool = False

    @property
    def summary(self) -> str:
        """What applies, in a few words."""
        if self.settings is None:
            return "float"
        bits = self.settings.weights_num_bits
        weights = f"int{bits}" if isinstance(bits, int) else " or ".join(f"int{number}" for number in bits)
        if self.settings.prefer_weights_only_quantization:
            return f"{weights} weights"
        return f"{weights} weights, int{self.settings.activations_num_bits} activations"


class Explanation(list[ExplainedLayer]):
    """The decisions for all layers; a list that shows itself as a table."""

    def table(self) -> Any:
        """A pandas ``DataFrame`` with a row for each layer."""
        return view("views.tables", "explanation_table", self)

    def _repr_html_(self) -> str:
        html: str = self.table().to_html()
        return html

    def __repr__(self) -> str:
        if not self:
            return "No layer can be quantized: none has a weight matrix."
        rows = [(row.fqn or "(the model)", row.summary, row.rule, ", ".join(row.overruled)) for row in self]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            f"{fqn:<{widths[0]}}  {summary:<{widths[1]}}  rule {rule!r}"
            + (f", which outranks {overruled}" if overruled else "")
            for fqn, summary, rule, overruled in rows
        )


def quantizable_layers(model: nn.Module) -> list[str]:
    """FQNs of the layers that can be quantized, in the order of ``named_modules()``; a shared layer once.

    Example:
        >>> quantizable_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        ['0']
    """
    return [fqn for fqn, module in model.named_modules() if _is_quantizable(module)]


def explain_settings(
    model: nn.Module, settings: QuantizationSettings, layer_quantization_settings: LayerRules | None = None
) -> Explanation:
    """Say for each quantizable layer which rule decides and what applies.

    A key of ``layer_quantization_settings`` is the FQN of a layer or of a module around it, a glob over FQNs
    (``"encoder.*.attention"``), a regular expression with prefix ``re:`` (it must match the whole FQN), or a module's
    class name. The nearest FQN wins over globs and regular expressions, of which the last that matches wins; these win
    over types (the layer's own, then that of the nearest module around it), and types over the global settings.

    Raises:
        SettingsError: a key that matches no module of the model, or a value of another type; two keys that name the
            same module and say different things; settings under which no layer would be quantized, or which no layer
            heeds.

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
        _check_until(key, value, modules)
    rows = Explanation(_explained(fqn, modules, rules, settings) for fqn in quantizable_layers(model))
    _check_use(rows, settings)
    return rows


def _explained(
    fqn: str, modules: Mapping[str, nn.Module], rules: LayerRules, settings: QuantizationSettings
) -> ExplainedLayer:
    kind = type(modules[fqn]).__name__
    matching = _matching_rules(fqn, modules, rules)
    if not matching:
        return ExplainedLayer(fqn, kind, "global", settings)
    key, *overruled = matching
    rule = rules[key]
    try:
        applied = rule.applied_to(settings)
    except SettingsError as error:
        raise SettingsError(
            f"layer_quantization_settings[{key!r}] together with quantization_settings: {error}"
        ) from error
    until = tuple(rule.skip_quantization_until)
    return ExplainedLayer(fqn, kind, key, applied, tuple(overruled), until, rule.skip_quantization_downstream)


def _check_until(key: str, rule: LayerQuantizationSettings, modules: Mapping[str, nn.Module]) -> None:
    for name in rule.skip_quantization_until:
        if name not in modules:
            near = difflib.get_close_matches(name, list(filter(None, modules)), n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(map(repr, near))}." if near else "Names are those of named_modules()."
            raise SettingsError(
                f"layer_quantization_settings[{key!r}].skip_quantization_until names {name!r}, which the model does "
                f"not have. {hint}"
            )


def _check_use(rows: Iterable[ExplainedLayer], settings: QuantizationSettings) -> None:
    """Refuse a global block size that no layer heeds."""
    if settings.weights_only_quantization_block_size == 0:
        return
    if not any(row.settings is not None and row.settings.prefer_weights_only_quantization for row in rows):
        raise SettingsError(
            "QuantizationSettings.weights_only_quantization_block_size="
            f"{settings.weights_only_quantization_block_size!r} changes nothing, because no layer is quantized in its "
            "weights only. Add prefer_weights_only_quantization=True, for the model or for layers."
        )


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


def _matching_rules(fqn: str, modules: Mapping[str, nn.Module], rules: LayerRules) -> list[str]:
    """The keys that match a layer, the one that decides first."""
    aliases = [name for name, module in modules.items() if module is modules[fqn]]
    enclosing = [key for key in rules if key in modules and any(_is_within(alias, key) for alias in aliases)]
    enclosing.sort(key=len, reverse=True)
    _check_agree(fqn, enclosing, modules, rules)
    names = list(dict.fromkeys(name for alias in aliases for name in (alias, *_ancestors(alias))))
    patterns = [key for key in rules if key not in modules and any(_pattern_matches(key, name) for name in names)]
    types = dict.fromkeys(type(modules[name]).__name__ for name in names)
    return [*enclosing, *reversed(patterns), *(name for name in types if name in rules and name not in modules)]


def _check_agree(fqn: str, enclosing: list[str], modules: Mapping[str, nn.Module], rules: LayerRules) -> None:
    """Two names of one module, as a shared layer has, must not say different things: neither is nearer."""
    if not enclosing:
        return
    first = enclosing[0]
    for other in enclosing[1:]:
        if modules[other] is modules[first] and rules[other] != rules[first]:
            raise SettingsError(
                f"layer_quantization_settings[{first!r}] and [{other!r}] name the same module ({fqn!r} is shared) and "
                "contradict each other. Keep one of the two."
            )


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
