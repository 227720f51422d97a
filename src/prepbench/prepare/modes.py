"""Two graphs of one model, one for training and one for evaluation, become one whose settings follow the mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from prepbench.capture.modules.trace_result import TraceResult
from prepbench.prepare.modules import ByMode
from prepbench.prepare.operations import function_name
from prepbench.prepare.watch import Call, Wire
from prepbench.running.nested_values import Applied, Rebuild


class _Differs(Exception):
    """Two graphs are not the same up to settings."""


def merge_modes(graph: fx.Graph, other: TraceResult, training: bool) -> fx.Node | None:
    """Make settings of ``graph`` that differ in ``other``, the graph of the other mode, follow the mode.

    Returns the first node that is another operation there, and then changes nothing; ``None`` if there is none.
    """
    merged: list[tuple[fx.Node, Any]] = []
    partner: dict[fx.Node, fx.Node] = {}
    ours: list[fx.Node] = list(graph.nodes)
    theirs: list[fx.Node] = list(other.graph.nodes)
    for index, node in enumerate(ours):
        if index >= len(theirs):
            return node
        twin = theirs[index]
        try:
            if node.op != twin.op or not _same(node.target, twin.target):
                raise _Differs
            found = _merged((node.args, node.kwargs), (twin.args, twin.kwargs), partner, training)
        except _Differs:
            return node
        partner[node] = twin
        if _holds_modes(found) and node.op not in ("call_function", "call_method"):
            return node
        merged.append((node, found))
    if len(theirs) > len(merged):
        return merged[-1][0]
    for node, found in merged:
        if _holds_modes(found):
            node.meta["by_mode"] = _without_nodes(found)
    return None


def _without_nodes(value: Any) -> Any:
    """``value`` with ``None`` for each node: passes replace nodes."""
    return fx.node.map_aggregate(value, lambda part: None if isinstance(part, fx.Node) else part)


def with_modes(value: Any, modes: Any) -> Any:
    """``value`` with the settings that follow the mode in their places."""
    if modes is None:
        return value
    if isinstance(modes, ByMode):
        return modes
    if isinstance(value, tuple | list):
        items = [with_modes(one, two) for one, two in zip(value, modes, strict=True)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: with_modes(part, modes[key]) for key, part in value.items()}
    if isinstance(value, slice) and isinstance(modes, slice):
        parts = [(value.start, modes.start), (value.stop, modes.stop), (value.step, modes.step)]
        return slice(*[with_modes(one, two) for one, two in parts])
    return value


def _same(one: Any, two: Any) -> bool:
    """Whether two traces mean the same by their targets: what builds an output is made anew in each."""
    if isinstance(one, Rebuild) and isinstance(two, Rebuild):
        return one.__name__ == two.__name__
    if isinstance(one, Applied) and isinstance(two, Applied):
        return bool(one.kind is two.kind)
    return bool(one == two)


def _merged(one: Any, two: Any, partner: dict[fx.Node, fx.Node], training: bool) -> Any:
    if isinstance(one, fx.Node) or isinstance(two, fx.Node):
        if not isinstance(one, fx.Node) or partner.get(one) is not two:
            raise _Differs
        return one
    if isinstance(one, Wire) or isinstance(two, Wire):
        if one != two:
            raise _Differs
        return None
    if isinstance(one, tuple | list) and isinstance(two, tuple | list):
        if len(one) != len(two):
            raise _Differs
        items = [_merged(a, b, partner, training) for a, b in zip(one, two, strict=True)]
        return tuple(items) if isinstance(one, tuple) else items
    if isinstance(one, dict) and isinstance(two, dict):
        if set(one) != set(two):
            raise _Differs
        return {key: _merged(one[key], two[key], partner, training) for key in one}
    if isinstance(one, slice) and isinstance(two, slice):
        parts = [(one.start, two.start), (one.stop, two.stop), (one.step, two.step)]
        return slice(*[_merged(a, b, partner, training) for a, b in parts])
    if type(one) is type(two) and (one is two or one == two or (one != one and two != two)):
        return one
    return ByMode(one, two) if training else ByMode(two, one)


def _holds_modes(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_modes, value))
    if isinstance(value, dict):
        return any(map(_holds_modes, value.values()))
    if isinstance(value, slice):
        return any(map(_holds_modes, (value.start, value.stop, value.step)))
    return isinstance(value, ByMode)


@dataclass
class Modes:
    """What differs between the modes of a model on one sample.

    Attributes:
        settings: by owner and name of an operation and its number there: its arguments with :class:`ByMode` in them.
        differing: modules whose own code calls other operations, or the same ones on other tensors, by name.
    """

    settings: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


def compare_modes(here: Sequence[Call], there: Sequence[Call], training: bool) -> Modes:
    """Compare what a model calls in its present mode with what it calls in the other one."""
    one, two = _by_caller(here), _by_caller(there)
    found = Modes()
    for owner in dict.fromkeys([*one, *two]):
        mine, theirs = one.get(owner, []), two.get(owner, [])
        if [(call.owner, call.name) for call in mine] != [(call.owner, call.name) for call in theirs]:
            found.differing.append(owner)
            continue
        count: Counter[tuple[str, str]] = Counter()
        for a, b in zip(mine, theirs, strict=True):
            key = a.owner, a.name, count[a.owner, a.name]
            count[a.owner, a.name] += 1
            try:
                merged = _merged((a.args, a.kwargs), (b.args, b.kwargs), {}, training)
            except _Differs:
                found.differing.append(owner)
                break
            if _holds_modes(merged):
                found.settings[key] = merged
    return found


def _by_caller(calls: Sequence[Call]) -> dict[str, list[Call]]:
    result: dict[str, list[Call]] = {}
    for call in calls:
        result.setdefault(call.caller, []).append(call)
    return result


def apply_modes(graph: fx.Graph, modes: Modes) -> bool:
    """Make the settings of a graph that was traced by value follow the mode; whether all of them were found."""
    count: Counter[tuple[str, str]] = Counter()
    rest = dict(modes.settings)
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or "val" not in node.meta:
            continue
        key = str(node.meta.get("fqn", "")), function_name(node.target)
        settings = rest.pop((*key, count[key]), None)
        count[key] += 1
        if settings is not None:
            try:
                with_modes((node.args, node.kwargs), settings)
            except (KeyError, ValueError):  # the graph writes this call in another way
                return False
            node.meta["by_mode"] = settings
    return not rest
