"""The planned settings of layers, and their outcome in a run, for the table of layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from prepbench.bench.layer_rules import NOTHING, STAYS, percent, pruning_label
from prepbench.bench.state import EVERYTHING, EXPLANATIONS, LABELS, PRECISIONS, display_name
from prepbench.bench.summary import (
    Decision,
    LayerColumn,
    LayerFacts,
    Outcome,
    PrecisionChoice,
    RuleSummary,
    SettingField,
)
from prepbench.quantize import Placement
from prepbench.quantize.report import LayerReport
from prepbench.settings import (
    DeploymentSettings,
    ExplainedLayer,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PrunableLayer,
    PruningSettings,
    QuantizationSettings,
    activation_format,
    module_of_layer,
    tensors_of_layer,
    weight_formats,
)
from prepbench.settings.numbers import FLOAT32, format_named
from prepbench.settings.pruning import CHANNELS, SCORES
from prepbench.settings.quantization import ACTIVATION_BITS, BITS, BLOCK_SIZES, OBSERVERS, WEIGHT_ALGORITHMS
from prepbench.settings.rules import layer_named, module_named
from prepbench.targets import target_for


@dataclass(frozen=True)
class ColumnOfNumbers:
    """A column of numbers in the table of layers; a new one is one entry in :data:`COLUMNS`."""

    key: str
    title: str
    unit: str
    help: str
    value: Callable[[LayerReport], float | None]


COLUMNS = (
    ColumnOfNumbers(
        "sqnr",
        "Own SQNR",
        "dB",
        "signal to quantization noise of the layer's output on calibration samples, with inputs in float up to it",
        lambda row: row.sqnr,
    ),
)

# what an editor shows for no quantization
_FLOAT = str(FLOAT32.bits)


def _listed(value: int | str | Sequence[int | str]) -> str:
    if isinstance(value, int | str):
        return str(value)
    return ", ".join(map(str, sorted(value, key=lambda one: (isinstance(one, str), one))))


_SETTINGS = (
    SettingField(
        "weights",
        "Weights",
        f"bits of the weights; {_FLOAT} leaves the layer in float",
        "choice",
        (_FLOAT, *map(str, reversed(BITS)), _listed(BITS)),
    ),
    SettingField(
        "activations",
        "Activations",
        f"bits of the layer's inputs and outputs; {_FLOAT} quantizes its weights only",
        "choice",
        (_FLOAT, *map(str, reversed(ACTIVATION_BITS))),
    ),
    SettingField(
        "block",
        "Block",
        "how many inputs share a scale, in weight-only layers; per channel is one scale for all of them",
        "choice",
        tuple(map(str, BLOCK_SIZES)),
    ),
    SettingField(
        "algorithm",
        "Algorithm",
        "how weights become integers: nearest rounds each; gptq compensates each error by the inputs after it; awq "
        "weights errors by the power of the inputs; hqq takes the range that suits most weights; adaround learns "
        "which are rounded up or down, and is the slowest; auto takes the best of the others in our benchmark",
        "choice",
        WEIGHT_ALGORITHMS,
    ),
    SettingField("observer", "Observer", "how the range of activations is learned", "choice", OBSERVERS),
    SettingField(
        "equalised",
        "Equalise channels",
        "scale channels between this layer and its neighbours, so that all have similar ranges; float stays the same",
        "switch",
        (),
    ),
    SettingField(
        "mask",
        "Pruning",
        "the unit of pruning: single weights (1:1), two of each four inputs (2:4), or whole channels, which makes the "
        "model smaller and faster",
        "choice",
        (NOTHING, "1:1", "2:4", CHANNELS),
    ),
    SettingField(
        "amount",
        "Pruned",
        "the share of weights or channels to remove, in percent; 2:4 fixes it at 50",
        "choice",
        ("10", "25", "50", "75", "90"),
    ),
    SettingField(
        "score",
        "Pruned first",
        "the smallest weights, or the smallest products of weights and inputs of the layer on calibration samples",
        "choice",
        SCORES,
    ),
)
_PRUNING = ("mask", "amount", "score")
"""The fields of the editor that say how layers are pruned."""


def setting_fields(targets: Sequence[DeploymentSettings]) -> tuple[SettingField, ...]:
    """Return the fields of the editor of layers, and the values that each chosen target does not support."""
    placements = [(display_name(settings), target_for(settings).placement) for settings in targets]

    def refusal(field: SettingField, choice: str) -> str:
        lacking = [name for name, placement in placements if not _takes(placement, field.name, choice)]
        return f"{', '.join(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} it" if lacking else ""

    return tuple(
        replace(field, refused=tuple(refusal(field, choice) for choice in field.choices)) for field in _SETTINGS
    )


def _takes(placement: Placement, field: str, choice: str) -> bool:
    formats = {"weights": placement.weights + placement.weights_only, "activations": placement.activations}
    if field in formats:
        return any(format_named(part.strip()) in (*formats[field], FLOAT32) for part in choice.split(","))
    return field != "block" or choice == "0" or placement.block_sizes


def layer_facts(model: nn.Module, layers: Sequence[str]) -> tuple[LayerFacts, ...]:
    """Return the fixed facts of each layer, such as its class and shape."""
    found = []
    for fqn in layers:
        module = module_named(model, module_of_layer(model, fqn))
        parameters = module.parameters() if layer_named(model, fqn) is module else tensors_of_layer(model, fqn)
        found.append(LayerFacts(fqn, type(module).__name__, sum(value.numel() for value in parameters)))
    return tuple(found)


def is_of_pruning(field: str) -> bool:
    """Return whether a field of the editor belongs to pruning."""
    return field in _PRUNING


def change_of_pruning(field: str, value: str) -> tuple[str, object]:
    """Return the field of :class:`PruningSettings` and its value for a choice in the editor."""
    if field == "mask":
        return "mask_type", value
    return (field, float(value) / 100) if field == "amount" else (field, value)


def change_of(field: str, value: str) -> tuple[str, object]:
    """Return the field of :class:`QuantizationSettings` and its value for a choice in the editor."""
    if field == "weights":
        if value == _FLOAT:
            return "skip_quantization", True
        bits = tuple(int(part) if part.isdigit() else part for part in map(str.strip, value.split(",")))
        return "weights_num_bits", bits[0] if len(bits) == 1 else bits
    if field == "activations":
        return ("prefer_weights_only_quantization", True) if value == _FLOAT else ("activations_num_bits", int(value))
    if field == "block":
        return "weights_only_quantization_block_size", int(value)
    if field == "algorithm":
        return "weights_algorithm", value
    if field == "equalised":
        return "cross_layer_equalization", value == "true"
    return field, value


_Kind = tuple[str, QuantizationSettings | None, str, PruningSettings | None]


def decisions(
    explained: Sequence[ExplainedLayer], pruning: Mapping[str, PrunableLayer]
) -> tuple[tuple[Decision, ...], tuple[int, ...]]:
    """Return the distinct decisions, of quantization and pruning, and the index of each layer's decision."""
    kinds: dict[_Kind, int] = {}

    def kind_of(layer: ExplainedLayer) -> _Kind:
        row = pruning.get(layer.fqn)
        return (layer.rule, layer.settings, *(("", None) if row is None else (row.rule, row.settings)))

    planned = tuple(kinds.setdefault(kind_of(layer), len(kinds)) for layer in explained)
    return tuple(_with_pruning(_decision(kind[0], kind[1]), kind[2], kind[3]) for kind in kinds), planned


def _with_pruning(decision: Decision, rule: str, settings: PruningSettings | None) -> Decision:
    if settings is None:
        return replace(decision, pruned_by="" if rule == EVERYTHING else rule)
    amount = percent(settings) if settings.pattern is None else ""
    said = replace(decision, mask=settings.mask_type, amount=amount, score=settings.score)
    return replace(said, pruning=pruning_label(settings), pruned_by=rule)


def _decision(rule: str, settings: QuantizationSettings | None) -> Decision:
    if settings is None:
        return Decision("float", rule, _FLOAT, _FLOAT, "false", "0", "", "", quantized=False)
    only = settings.prefer_weights_only_quantization
    block = settings.weights_only_quantization_block_size if only else 0
    return Decision(
        settings_label(settings),
        rule,
        _listed(settings.weights_num_bits),
        str(activation_format(settings).bits),
        str(only).lower(),
        _listed(block),
        settings.observer,
        settings.weights_algorithm,
        quantized=True,
        formats=_formats_label(settings),
        equalised=str(settings.cross_layer_equalization).lower(),
    )


def settings_label(settings: QuantizationSettings | None) -> str:
    """Return a short text of settings, e.g. ``"int8"`` or ``"int4 weights, blocks of 32"``."""
    if settings is None:
        return "float"
    by = "" if settings.weights_algorithm == "auto" else f", {settings.weights_algorithm}"
    by += ", channels equalised" if settings.cross_layer_equalization else ""
    return _formats_label(settings) + by


def _formats_label(settings: QuantizationSettings) -> str:
    """Return the formats that settings ask for, as :attr:`LayerReport.summary` has those that became of them."""
    weights = " or ".join(one.name for one in sorted(weight_formats(settings), key=lambda one: one.bits))
    activations = activation_format(settings)
    if not activations.is_float:
        return weights if weights == activations.name else f"{weights}, {activations.name} activations"
    block = settings.weights_only_quantization_block_size
    return f"{weights} weights" + (f", blocks of {_listed(block)}" if block != 0 else "")


def outcomes(
    layers: Sequence[str],
    report: Mapping[str, LayerReport],
    tables: Collection[str] = (),
    pruned: Mapping[str, str] | None = None,
) -> tuple[tuple[Outcome, ...], tuple[int, ...]]:
    """Return the distinct outcomes, and the index of each layer's outcome; empty without a report.

    Args:
        layers: FQNs.
        report: the layers of a run.
        tables: those that are embeddings, which a report lists where they could be quantized.
        pruned: the outcome of pruning in the run, in words.
    """
    kinds: dict[Outcome, int] = {}
    words = pruned or {}
    is_float = bool(words) and not report  # pruned alone
    found = []
    for fqn in layers if report or words else ():
        outcome = Outcome("float", "") if is_float else _outcome(report.get(fqn), is_table=fqn in tables)
        found.append(replace(outcome, pruned=words.get(fqn, "")))
    applied = tuple(kinds.setdefault(outcome, len(kinds)) for outcome in found)
    return tuple(kinds), applied


def _outcome(row: LayerReport | None, *, is_table: bool) -> Outcome:
    if row is None:
        return Outcome("float", "") if is_table else Outcome("–", "not part of the compiled graph")
    if not row.quantized:
        return Outcome("float", row.reason)
    block = f", blocks of {row.block_size}" if row.block_size else ""
    return Outcome(f"{row.summary}{block}", row.reason, note=row.note)


def columns(
    layers: Sequence[str], report: Mapping[str, LayerReport], run: str, target: str = ""
) -> tuple[LayerColumn, ...]:
    """Return the columns of numbers for layers, of the run of this name; a column without any number is omitted.

    The target stands in their heads, where runs of several can be shown.
    """
    of = f", {target}" if target else ""
    found = []
    for column in COLUMNS:
        values = tuple(_finite(column.value(report[fqn])) if fqn in report else None for fqn in layers)
        if any(value is not None for value in values):
            help_ = f"{column.help}, in the run {run}"
            found.append(LayerColumn(column.key, f"{column.title}{of}", column.unit, help_, values))
    return tuple(found)


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def rule_summaries(
    rules: Mapping[str, LayerQuantizationSettings], base: QuantizationSettings, explained: Sequence[ExplainedLayer]
) -> tuple[RuleSummary, ...]:
    """Return each rule with the number of layers for which it decides."""
    counts = dict.fromkeys(rules, 0)
    for layer in explained:
        if layer.rule in counts:
            counts[layer.rule] += 1
    return tuple(RuleSummary(key, settings_label(rule.applied_to(base)), counts[key]) for key, rule in rules.items())


def pruning_rule_summaries(
    base: PruningSettings | None, rules: Mapping[str, LayerPruningSettings], planned: Mapping[str, PrunableLayer]
) -> tuple[RuleSummary, ...]:
    """Return each pruning rule with the number of layers for which it decides; the default of no pruning is omitted."""
    if base is None:
        return ()
    counts = Counter(row.rule for row in planned.values())
    shown = {key: rule for key, rule in rules.items() if (key, rule) != (EVERYTHING, STAYS)}
    labels = {key: pruning_label(rule.applied_to(base)) or "not pruned" for key, rule in shown.items()}
    return tuple(RuleSummary(key, label, counts[key], prunes=True) for key, label in labels.items())


def default_pruning(base: PruningSettings | None, rules: Mapping[str, LayerPruningSettings]) -> str:
    """Return a short text of the pruning where no other rule decides; "" for none."""
    everything = rules.get(EVERYTHING)
    return "" if base is None else pruning_label(base if everything is None else everything.applied_to(base))


def base_label(base: QuantizationSettings, rules: Mapping[str, LayerQuantizationSettings]) -> str:
    """Return a short text of what applies where no other rule does."""
    everything = rules.get(EVERYTHING)
    return settings_label(base if everything is None else everything.applied_to(base))


def precision_choices(*, calibrated: bool) -> tuple[PrecisionChoice, ...]:
    """Return all precisions; without calibration inputs only float32 is enabled."""
    return tuple(PrecisionChoice(p, LABELS[p], EXPLANATIONS[p], calibrated or p == FLOAT32.name) for p in PRECISIONS)
