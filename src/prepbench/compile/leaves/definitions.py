"""Leaf operators as JSON: how their arguments become a call, and the calls from which their results were learned.

The rules for the sizes of results are not written: they are learned again from the same calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from prepbench.capture.aten.leaf_operators import LeafDefinition
from prepbench.capture.aten.leaf_outputs import LeafOutputs
from prepbench.capture.aten.leaf_signature import Signature
from prepbench.capture.sizes.learned_outputs import sizes_of
from prepbench.compile.leaves.values import (
    MAX_LEAVES,
    NoJson,
    spec_from_json,
    spec_to_json,
    value_from_json,
    value_to_json,
)
from prepbench.running.recorded_calls import Given, RecordedCall

MAX_CALLS = 64
_MAX_WORK = 60_000
"""The limit on tried formulas for sizes: more than any known model needs, and a few seconds of work."""

_KINDS = ("", "Tensor", "SymInt", "float")


def definition_to_json(made: LeafDefinition, names: dict[int, str], *, are_statements: bool) -> dict[str, Any]:
    """Return an operator as JSON.

    Args:
        made: the operator.
        names: of the model's modules, by their ids.
        are_statements: whether it stands for statements.

    Raises:
        NoJson: something in it has no such form.
    """
    (variant,) = made.outputs.learned.variants
    signature, first = made.signature, variant.calls[0]
    rows: dict[str, dict[str, Any]] = {}
    for call in variant.calls:
        row = {
            "inputs": [value_to_json(leaf, names) for leaf in call.inputs],
            "outputs": [value_to_json(leaf, names) for leaf in call.outputs],
            "changed": sorted(call.changed),
        }
        rows.setdefault(json.dumps(row), row)
    data = {
        "arguments": spec_to_json(signature.spec),
        "kinds": list(signature.kinds),
        "fixed": [value_to_json(value, names) for value in signature.fixed],
        "repeats": [list(pair) for pair in signature.repeats],
        "results": spec_to_json(first.output_spec),
        "restructured": first.restructured,
        "calls": list(rows.values()),
        "strict": made.strict,
    }
    _check_same(made, data, names, are_statements=are_statements)
    return data


def _check_same(made: LeafDefinition, data: dict[str, Any], names: dict[int, str], *, are_statements: bool) -> None:
    """Check that reading returns what was written."""
    modules = _Named(names)
    again = definition_from_json(made.fqn, made.outputs.name, data, modules, are_statements=are_statements)
    (before,), (after,) = made.outputs.learned.variants, again.outputs.learned.variants
    if again.signature.spec != made.signature.spec or after.calls[0].output_spec != before.calls[0].output_spec:
        raise NoJson("values inside of objects that differ once they are read back")
    if list(after.describe()) != list(before.describe()) or after.unknown != before.unknown:
        raise NoJson(f"results of sizes that more than {MAX_CALLS} calls decide")


class _Named(torch.nn.Module):
    """A model that only maps modules to the names they have elsewhere."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._known = {name: torch.nn.Module() for name in names.values()}

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return iter(self._known.items())


def definition_from_json(
    fqn: str, name: str, data: Mapping[str, Any], model: torch.nn.Module | None, *, are_statements: bool
) -> LeafDefinition:
    """Read an operator from JSON of :func:`definition_to_json`; ``data`` is untrusted.

    Args:
        fqn: of the leaf.
        name: of the leaf, for error messages.
        data: the operator.
        model: has the modules among its fixed arguments.
        are_statements: whether it stands for statements.

    Raises:
        ValueError: it is something else.
        CaptureError: no operator can return what its calls returned.
    """
    spec, output_spec = spec_from_json(data["arguments"]), spec_from_json(data["results"])
    kinds, fixed, repeats = data["kinds"], data["fixed"], data["repeats"]
    for table in (kinds, fixed, repeats, data["calls"]):
        if not isinstance(table, list) or len(table) > MAX_LEAVES:
            raise NoJson("lists of another kind")
    if not len(kinds) == len(fixed) == spec.num_leaves or not all(kind in _KINDS for kind in kinds):
        raise NoJson("other arguments than it says")
    pairs = [tuple(pair) for pair in repeats if isinstance(pair, list)]
    if len(pairs) < len(repeats) or not all(_is_repeat(pair, kinds) for pair in pairs):
        raise NoJson("repeated arguments that are not there")
    if type(data["restructured"]) is not bool or type(data["strict"]) is not bool:
        raise NoJson("flags of another kind")
    if not 0 < len(data["calls"]) <= MAX_CALLS:
        raise NoJson(f"not between 1 and {MAX_CALLS} calls")
    calls = [_call(row, spec, output_spec, data["restructured"], model) for row in data["calls"]]
    for index, (kind, value) in enumerate(zip(kinds, calls[0].inputs, strict=True)):
        is_repeat = any(index == place for place, _ in pairs)
        if not _takes(kind, value) and not (is_repeat and isinstance(value, torch.Tensor)):
            raise NoJson("arguments of other kinds than those of its calls")
    _check_work(calls)
    signature = Signature(
        spec, tuple(kinds), tuple(value_from_json(value, model) for value in fixed), tuple((a, b) for a, b in pairs)
    )
    outputs = LeafOutputs.learn(calls, name, are_statements=are_statements).for_call(calls[0].inputs)
    if len(outputs.learned.variants[0].calls) != len(calls):
        raise NoJson("calls of several kinds")
    return LeafDefinition(fqn, signature, outputs, data["strict"])


def _takes(kind: str, value: Any) -> bool:
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind == "SymInt":
        return type(value) is int
    return type(value) is float if kind == "float" else not isinstance(value, torch.Tensor)


def _is_repeat(pair: tuple[Any, ...], kinds: Sequence[str]) -> bool:
    if len(pair) != 2 or not all(type(index) is int and 0 <= index < len(kinds) for index in pair):
        return False
    return bool(kinds[pair[0]] == "" and kinds[pair[1]] == "Tensor" and pair[1] < pair[0])


def _call(row: Any, spec: Any, output_spec: Any, restructured: bool, model: torch.nn.Module | None) -> RecordedCall:
    if not isinstance(row, dict) or set(row) != {"inputs", "outputs", "changed"}:
        raise NoJson("calls of another kind")
    tables = [row["inputs"], row["outputs"], row["changed"]]
    if not all(isinstance(table, list) and len(table) <= MAX_LEAVES for table in tables):
        raise NoJson("calls of another kind")
    inputs, outputs = (tuple(value_from_json(value, model) for value in table) for table in tables[:2])
    changed = row["changed"]
    if len(inputs) != spec.num_leaves or len(outputs) != output_spec.num_leaves:
        raise NoJson("calls with other numbers of values")
    if not all(type(i) is int and 0 <= i < len(inputs) and isinstance(inputs[i], torch.Tensor) for i in changed):
        raise NoJson("changed arguments that are not there")
    given = [leaf for leaf in outputs if isinstance(leaf, Given)]
    if any(leaf.index >= len(inputs) for leaf in given) or (given and not restructured):
        raise NoJson("results that are arguments which are not there")
    return RecordedCall(inputs, spec, outputs, output_spec, 0, frozenset(changed), restructured)


def _check_work(calls: Sequence[RecordedCall]) -> None:
    """Limit the work of learning rules, which tries formulas of each pair of sizes for each size of the results."""
    inputs = [tuple(column) for column in zip(*(sizes_of(call.inputs) for call in calls), strict=True)]
    outputs = [tuple(column) for column in zip(*(sizes_of(call.outputs) for call in calls), strict=True)]
    known = len({column for column in inputs if len(set(column)) > 1})
    wanted = sum(len(set(column)) > 1 for column in outputs)
    if known**2 * wanted > _MAX_WORK or known**3 > _MAX_WORK:
        raise NoJson(f"{wanted} sizes that depend on {known} others")
