"""Merge two graphs of one model, for training and for evaluation, into one whose settings follow the mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from prepbench.capture.modules.trace_result import TraceResult
from prepbench.objects.flatten import Applied, Rebuild
from prepbench.prepare.modules import ByMode
from prepbench.prepare.operations import function_name
from prepbench.prepare.passes.graph_edits import OtherStructure, mapped_together, parts
from prepbench.prepare.steps import Step, TensorSource


class _Differs(Exception):
    """Raised if two graphs differ in more than settings."""


def merge_modes(graph: fx.Graph, other: TraceResult, training: bool) -> fx.Node | None:
    """Make the settings of ``graph`` follow the mode where ``other``, the graph of the other mode, differs.

    If some node is another operation in the other mode, nothing is changed and the first such node is returned.
    Otherwise the result is ``None``.
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
    """Return ``value`` with ``None`` in place of each node, because passes replace nodes."""
    return fx.node.map_aggregate(value, lambda part: None if isinstance(part, fx.Node) else part)


def with_modes(value: Any, modes: Any) -> Any:
    """Return ``value`` with the mode-dependent settings in their places.

    Raises:
        OtherStructure: ``modes`` was made from other arguments.
    """
    return mapped_together(value, modes, lambda part, mode: mode if isinstance(mode, ByMode) else part)


def _same(one: Any, two: Any) -> bool:
    """Return whether two targets are equivalent; each trace makes its own objects for building outputs."""
    if isinstance(one, Rebuild) and isinstance(two, Rebuild):
        return one.__name__ == two.__name__
    if isinstance(one, Applied) and isinstance(two, Applied):
        return bool(one.kind is two.kind)
    return bool(one == two)


def _merged(one: Any, two: Any, partner: dict[fx.Node, fx.Node], training: bool) -> Any:
    """Return the arguments of one call in the two modes, with :class:`ByMode` where they differ.

    Raises:
        _Differs: the call takes other tensors, or other arguments.
    """

    def merged(a: Any, b: Any) -> Any:
        if isinstance(a, fx.Node) or isinstance(b, fx.Node):
            if not isinstance(a, fx.Node) or partner.get(a) is not b:
                raise _Differs
            return a
        if isinstance(a, TensorSource) or isinstance(b, TensorSource):
            if a != b:
                raise _Differs
            return None
        if type(a) is type(b) and (a is b or a == b or (a != a and b != b)):
            return a
        return ByMode(a, b) if training else ByMode(b, a)

    try:
        return mapped_together(one, two, merged)
    except OtherStructure as error:
        raise _Differs from error


def _holds_modes(value: Any) -> bool:
    return any(isinstance(part, ByMode) for part in parts(value))


@dataclass
class Modes:
    """The differences between the modes of a model on one sample.

    Attributes:
        settings: the arguments of an operation with :class:`ByMode` in them, by its owner, its name and its number.
        differing: names of modules whose own code calls other operations, or the same ones on other tensors.
    """

    settings: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


def compare_modes(here: Sequence[Step], there: Sequence[Step], training: bool) -> Modes:
    """Compare a model's calls in its present mode with those in the other one."""
    one, two = _by_caller(here), _by_caller(there)
    found = Modes()
    for owner in dict.fromkeys([*one, *two]):
        mine, theirs = one.get(owner, []), two.get(owner, [])
        if [(step.owner, step.name) for step in mine] != [(step.owner, step.name) for step in theirs]:
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


def _by_caller(steps: Sequence[Step]) -> dict[str, list[Step]]:
    result: dict[str, list[Step]] = {}
    for step in steps:
        result.setdefault(step.caller, []).append(step)
    return result


def apply_modes(graph: fx.Graph, modes: Modes) -> bool:
    """Make the settings of a graph that was traced with samples follow the mode.

    Returns whether all of them were found in the graph.
    """
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
            except OtherStructure:  # the graph has another form of this call
                return False
            node.meta["by_mode"] = settings
    return not rest
