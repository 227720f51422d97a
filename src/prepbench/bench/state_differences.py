"""In what the choices of two runs differ, setting by setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from prepbench.bench.layer_summaries import base_label, default_pruning, pruning_rule_summaries, settings_label
from prepbench.bench.state import EVERYTHING, BenchState
from prepbench.bench.summary import DifferenceRow
from prepbench.capture.sizes.axis import Axis

_NONE = "–"


def setting_rows(first: BenchState, second: BenchState) -> tuple[DifferenceRow, ...]:
    """Each choice that differs, with what it was on both sides; the target itself is left out.

    Example:
        >>> row = setting_rows(state, state_with_a_rule)[0]  # doctest: +SKIP
        >>> row.what, row.first, row.second  # doctest: +SKIP
        ('layers.*.q_proj', '–', 'int4 weights')
    """
    found = [
        ("All layers", *(base_label(state.quantization, state.rules) for state in (first, second))),
        *_pairs(_rules(first), _rules(second)),
        *_pairs(_axes(first), _axes(second)),
        *_pairs(_fields(first.options), _fields(second.options)),
        *_target_options(first, second),
        ("Leaves", _leaves(first), _leaves(second)),
        ("Fixes", _listed(first.fixes), _listed(second.fixes)),
        ("Pruning", *(default_pruning(state.pruning, state.pruning_rules) or _NONE for state in (first, second))),
        *_pairs(_pruning_rules(first), _pruning_rules(second)),
        ("Training back", _training(first), _training(second)),
    ]
    return tuple(DifferenceRow(what, one, other) for what, one, other in found if one != other)


def _pairs(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(key, first.get(key, _NONE), second.get(key, _NONE)) for key in {**first, **second}]


def _rules(state: BenchState) -> dict[str, str]:
    base = state.quantization
    return {key: settings_label(rule.applied_to(base)) for key, rule in state.rules.items() if key != EVERYTHING}


def _pruning_rules(state: BenchState) -> dict[str, str]:
    rules = pruning_rule_summaries(state.pruning, state.pruning_rules, {})
    return {f"{rule.pattern} (pruning)": rule.label for rule in rules}


def _training(state: BenchState) -> str:
    return _NONE if state.recovery is None else state.recovery.summary


def _axes(state: BenchState) -> dict[str, str]:
    return {f"{axis.path} dim {axis.dim}": _axis(axis) for axis in state.axes.axes}


def _axis(axis: Axis) -> str:
    if not axis.dynamic:
        return "static"
    return f"dynamic, {axis.limits}" if axis.limits else "dynamic"


def _target_options(first: BenchState, second: BenchState) -> list[tuple[str, str, str]]:
    one, other = first.targets[0], second.targets[0]
    return _pairs(_fields(one), _fields(other)) if type(one) is type(other) else []


def _fields(settings: Any) -> dict[str, str]:
    names = [each.name for each in fields(settings)]
    return {name.replace("_", " "): str(getattr(settings, name)) for name in names}


def _leaves(state: BenchState) -> str:
    if state.fullgraph:
        return "off"
    return f"on: {', '.join(state.leaves)}" if state.leaves else "on"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(name or "the model" for name in names) or _NONE
