"""Decide the settings of each layer, and say which rule decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from prepbench._display import view
from prepbench.checks import check_table, check_type, described
from prepbench.errors import InputError, SettingsError
from prepbench.settings.lora import LoraSettings, layers_with_adapters
from prepbench.settings.pruning import LayerPruningSettings, PruningSettings
from prepbench.settings.quantization import (
    LayerQuantizationSettings,
    QuantizationSettings,
    activation_format,
    weight_formats,
)
from prepbench.settings.rules import (
    LayerNames,
    LayerRules,
    check_layer_rules,
    check_rule,
    is_quantizable,
    is_table,
    layers_to_quantize,
    quantizable_layers,
)
from prepbench.strict_pages import for_strict_pages

# of tables of embeddings where no rule names their bits
_TABLE_BITS = 8


@dataclass(frozen=True)
class ExplainedLayer:
    """The decision for one layer.

    Attributes:
        fqn: the layer.
        type: its class name.
        rule: the key of ``layer_quantization_settings`` that decided, or ``"global"``.
        settings: the settings that apply, or None if the layer stays in float.
        overruled: other keys that match the layer, which ``rule`` outranks.
        until: FQNs of the layers that are quantized again, where this layer skips those behind it until them.
        downstream: whether all layers that its output reaches are skipped with it.
        note: a choice for this kind of layer that no setting makes.
        pruning: the pruning in words; empty for none.
        adapter: the low-rank adapter beside it, in words; empty for none.
        is_assumed: whether it is a layer only if the graph multiplies by it: a tensor whose name does not show it.
    """

    fqn: str
    type: str
    rule: str
    settings: QuantizationSettings | None
    overruled: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    downstream: bool = False
    note: str = ""
    pruning: str = ""
    adapter: str = ""
    is_assumed: bool = False

    @property
    def summary(self) -> str:
        """Return a short text of the settings that apply."""
        assumed = "if the graph multiplies by it" if self.is_assumed else ""
        return ", ".join(filter(None, (self._precision, self.pruning, self.adapter, assumed)))

    @property
    def _precision(self) -> str:
        if self.settings is None:
            return "float"
        weights, activations = weight_formats(self.settings), activation_format(self.settings)
        said = f"{' or '.join(one.name for one in weights)} weights"
        return said if activations.is_float else f"{said}, {activations.name} activations"


class Explanation(list[ExplainedLayer]):
    """The decisions for all layers; a list that displays itself as a table."""

    def table(self) -> Any:
        """Return a pandas ``DataFrame`` with a row for each layer."""
        return view("views.display", "explanation_table", self)

    def _repr_html_(self) -> str:
        return for_strict_pages(self.table().to_html())

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


def explain_settings(
    model: nn.Module,
    settings: QuantizationSettings,
    layer_quantization_settings: LayerRules | None = None,
    *,
    pruning_settings: PruningSettings | None = None,
    layer_pruning_settings: PruningRules | None = None,
    lora_settings: LoraSettings | None = None,
) -> Explanation:
    """Say for each quantizable layer which rule decides and what applies.

    A key of ``layer_quantization_settings`` is the FQN of a layer or of a module around it, a glob over FQNs
    (``"encoder.*.attention"``), a regular expression with prefix ``re:`` (it must match the whole FQN), or a module's
    class name. Where several keys match a layer, the first of these decides:

    1. the FQN of the layer, or of the nearest module around it;
    2. the last glob or regular expression that matches;
    3. the class name of the layer, then that of the nearest module around it;
    4. the global settings.

    Args:
        model: the model that the keys name modules of.
        settings: the global settings.
        layer_quantization_settings: overrides by key; None for none.
        pruning_settings: of the model, which are listed beside; None for none.
        layer_pruning_settings: overrides by the same kinds of keys.
        lora_settings: adapters; shown beside the layers that get one.

    Returns:
        One entry for each layer, in the order of the model.

    Raises:
        InputError: ``model`` is no module.
        SettingsError: a key that matches no layer that can be quantized, or a value of another type; two keys of one
            rank that say different things about a shared layer; or a global setting that changes nothing.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> rules = {"0": LayerQuantizationSettings(skip_quantization=True)}
        >>> [layer.rule for layer in explain_settings(net, QuantizationSettings(), rules)]
        ['0', 'global']
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give the module to quantize.")
    check_type("settings", settings, QuantizationSettings, "Give pb.QuantizationSettings().")
    check_layer_rules(layer_quantization_settings)
    check_pruning_settings(pruning_settings, layer_pruning_settings)
    rows = explain_layers(LayerNames(model), layers_to_quantize(model), settings, layer_quantization_settings or {})
    check_type("lora_settings", lora_settings, LoraSettings, "Write lora_settings=pb.LoraSettings().", optional=True)
    if lora_settings is not None:
        adapted, adapter = set(layers_with_adapters(model, lora_settings)), f"adapter of rank {lora_settings.rank}"
        rows = Explanation(replace(row, adapter=adapter) if row.fqn in adapted else row for row in rows)
    if pruning_settings is None:
        return rows
    pruned = prunable_layers(model, pruning_settings, layer_pruning_settings)
    words = {row.fqn: f"{row.settings.summary} by rule {row.rule!r}" for row in pruned if row.settings is not None}
    return Explanation(replace(row, pruning=words.get(row.fqn, "")) for row in rows)


def explain_layers(
    names: LayerNames, layers: Iterable[str], settings: QuantizationSettings, rules: LayerRules
) -> Explanation:
    """Return the decisions for ``layers``, as :func:`explain_settings` does, for known names of modules."""
    rules = dict(rules)
    for key, value in rules.items():
        check_rule(key, value, names)
    applied = {key: _applied(key, rule, settings) for key, rule in rules.items()}
    patterns = names.patterns(rules)
    layers = list(layers)
    explained = (_explained(fqn, names, rules, settings, applied, patterns) for fqn in layers)
    meant = [
        replace(row, is_assumed=row.fqn not in names.recurrent and not _is_named_layer(names.modules[row.fqn]))
        for row in explained
        if _is_meant(row, names, settings, applied)
    ]
    multiplying = {id(value): row for row in meant for value in _weights_that_multiply(names.modules[row.fqn])}
    rows = Explanation(_with_table(row, names, rules, multiplying) for row in meant)
    remedy = "Give the layers themselves, as explain_settings(model, settings) lists them"
    _check_rules_matter(rows, rules, "layer_quantization_settings", "quantized", remedy)
    _check_use(rows, settings, rules)
    return rows


def _is_named_layer(module: nn.Module | torch.Tensor) -> bool:
    return isinstance(module, nn.Module) and (is_table(module) or is_quantizable(module))


def _is_meant(
    row: ExplainedLayer,
    names: LayerNames,
    settings: QuantizationSettings,
    applied: Mapping[str, QuantizationSettings | None],
) -> bool:
    """Return whether settings concern a layer: embeddings are concerned if only weights are quantized.

    An embedding that its rule keeps in float is concerned if it were under the rules that this one overrides.
    """
    if not is_table(names.modules[row.fqn]):
        return True
    outranked = (*(applied[key] for key in row.overruled), settings)
    here = outranked if row.settings is None else (row.settings,)
    return any(each is not None and each.prefer_weights_only_quantization for each in here)


def _weights_that_multiply(module: nn.Module | torch.Tensor) -> Iterable[torch.Tensor]:
    if isinstance(module, torch.Tensor):
        return (module,)
    return () if is_table(module) else (value for value in module._parameters.values() if value is not None)


def _with_table(
    row: ExplainedLayer, names: LayerNames, rules: LayerRules, multiplying: Mapping[int, ExplainedLayer]
) -> ExplainedLayer:
    """Decide an embedding table: 8 bits with a scale for each row, where no rule sets its bits.

    All later layers receive its errors, and only the looked-up rows are read. A table that a layer also multiplies
    by is stored once, with that layer's settings, unless a rule for the embedding says otherwise.
    """
    module, settings, rule = names.modules[row.fqn], row.settings, rules.get(row.rule)
    if not is_table(module):
        return row
    is_named = rule is not None and (rule.skip_quantization or rule.weights_num_bits is not None)
    sharing = multiplying.get(id(module.weight))
    if sharing is not None and sharing.settings == settings:
        return row
    if sharing is not None and (is_named or not _is_by_weights(sharing.settings)):
        return replace(row, note=f"stored apart from the table of {sharing.fqn}, which it shares in the model")
    if sharing is not None:
        return replace(row, settings=sharing.settings, rule=sharing.rule, note=f"one table with {sharing.fqn}")
    if settings is None or is_named:
        return row
    bits = settings.weights_num_bits
    if not isinstance(bits, int) or bits >= _TABLE_BITS:
        return row
    wide = replace(settings, weights_num_bits=_TABLE_BITS, weights_only_quantization_block_size=0)
    note = f"{_TABLE_BITS} bits with a scale for each row, because all layers read its errors and few of its rows"
    return replace(row, settings=wide, note=f"{note} are read; a rule with its weights_num_bits gives {bits}")


def _is_by_weights(settings: QuantizationSettings | None) -> bool:
    """Return whether tables can be looked up in the weights of these settings: float, or weight-only integers."""
    return settings is None or settings.prefer_weights_only_quantization


def _check_rules_matter(
    rows: Iterable[ExplainedLayer | PrunableLayer], rules: Iterable[str], argument: str, what: str, remedy: str
) -> None:
    """Raise for a rule that matches modules, but no layer that it is for."""
    matching = {key for row in rows for key in (row.rule, *row.overruled)}
    for key in rules:
        if key not in matching:
            raise SettingsError(
                f"{argument}[{key!r}] changes nothing: what it matches is not a layer that can be {what}, and holds "
                f"none. {remedy}, or leave the key out."
            )


def _applied(key: str, rule: LayerQuantizationSettings, settings: QuantizationSettings) -> QuantizationSettings | None:
    try:
        return rule.applied_to(settings)
    except SettingsError as error:
        raise SettingsError(
            f"layer_quantization_settings[{key!r}] together with quantization_settings: {error}"
        ) from error


def _explained(
    fqn: str,
    names: LayerNames,
    rules: LayerRules,
    settings: QuantizationSettings,
    applied: Mapping[str, QuantizationSettings | None],
    patterns: Sequence[str],
) -> ExplainedLayer:
    kind = names.type_of(fqn)
    matching = names.matching(fqn, rules, patterns)
    if not matching:
        return ExplainedLayer(fqn, kind, "global", settings)
    key, *overruled = matching
    until, downstream = tuple(rules[key].skip_quantization_until), rules[key].skip_quantization_downstream
    return ExplainedLayer(fqn, kind, key, applied[key], tuple(overruled), until, downstream)


def _check_use(rows: Iterable[ExplainedLayer], settings: QuantizationSettings, rules: LayerRules) -> None:
    """Raise for a block size, of the model or of a rule, that applies to no layer."""
    by_weights = [row for row in rows if row.settings is not None and row.settings.prefer_weights_only_quantization]
    size = settings.weights_only_quantization_block_size
    if size != 0 and not settings.prefer_weights_only_quantization and not by_weights:
        raise SettingsError(_no_blocks("QuantizationSettings", size, "no layer", "for the model or for layers"))
    for key, rule in rules.items():
        given = rule.weights_only_quantization_block_size
        decided = [row for row in rows if row.rule == key and row.settings is not None]
        if given is not None and given != 0 and decided and not any(row in by_weights for row in decided):
            what = f"layer_quantization_settings[{key!r}]"
            raise SettingsError(_no_blocks(what, given, "no layer of this rule", "for the model or in this rule"))


def _no_blocks(what: str, size: object, no_layer: str, where: str) -> str:
    return (
        f"{what}.weights_only_quantization_block_size={size!r} changes nothing, because {no_layer} is quantized in its "
        f"weights only. Add prefer_weights_only_quantization=True, {where}."
    )


# Decide the pruning of each layer, and say which rule decided.


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
    applied = {key: _pruning_applied(key, rule, settings) for key, rule in table.items()}
    patterns, rows = names.patterns(table), []
    for fqn in quantizable_layers(model, whole=True):
        key, *overruled = [*names.matching(fqn, table, patterns), "global"]
        kind = type(names.modules[fqn]).__name__
        chosen = settings if key == "global" else applied[key]
        rows.append(PrunableLayer(fqn, kind, key, chosen, tuple(each for each in overruled if each != "global")))
    remedy = "Layers with a weight matrix can be, but for embeddings. Give one of them"
    _check_rules_matter(rows, table, ARGUMENT, "pruned", remedy)
    _check_shared(rows, names)
    return rows


def _pruning_applied(key: str, rule: LayerPruningSettings, settings: PruningSettings) -> PruningSettings | None:
    try:
        return rule.applied_to(settings)
    except SettingsError as error:
        raise SettingsError(f"{ARGUMENT}[{key!r}] together with pruning_settings: {error}") from error


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
