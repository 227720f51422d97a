"""The steps of one real run as a trace, and two graphs of one model, for training and evaluation, merged into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from prepbench.capture.modules.graph_builder import spell
from prepbench.capture.modules.trace_result import TraceResult
from prepbench.inputs import Sample
from prepbench.objects.flatten import Applied, Rebuild, collect, map_values
from prepbench.patching import patched_here
from prepbench.prepare.modules import ByMode
from prepbench.prepare.operations import function_name
from prepbench.prepare.passes.graph_edits import OtherStructure, mapped_together, parts


@dataclass(frozen=True)
class TensorSource:
    """The source of a tensor: a parameter, an input, or one result of the ``number``-th step with this key."""

    key: tuple[str, str]
    number: int = 0
    part: int = 0


@dataclass(frozen=True)
class Step:
    """One operation in the code of a module, or one call of a leaf module.

    Attributes:
        caller: the module whose code it is in.
        owner: the same module for an operation; for a module call, the leaf module.
        name: the operation's name; "" for a module call.
        args: its arguments, with a :class:`TensorSource` in the place of each tensor.
        kwargs: the same by name.
        result: its result.
    """

    caller: str
    owner: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def record_steps(
    model: torch.nn.Module,
    sample: Sample,
    is_leaf: Callable[[torch.nn.Module, str], bool],
    note: Callable[[Step], None],
) -> None:
    """Run ``model`` on ``sample`` and record each step outside of leaf modules that returns a tensor."""
    recorder = _Recorder(model, sample, is_leaf, note)
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.module_call(original, module, args, kwargs)

    with ExitStack() as stack:
        stack.enter_context(patched_here(torch.nn.Module, "__call__", call))
        stack.enter_context(recorder)
        output = sample.call(model)
    note(Step("", "", "output", recorder.sources.of((output,)), {}, None))


class _Recorder(TorchFunctionMode):
    """Records the steps of one run."""

    def __init__(
        self,
        model: torch.nn.Module,
        sample: Sample,
        is_leaf: Callable[[torch.nn.Module, str], bool],
        note: Callable[[Step], None],
    ) -> None:
        super().__init__()
        self.sources = _Sources(model, sample)
        self._model, self._is_leaf, self._note = model, is_leaf, note
        self._names = {id(module): name for name, module in model.named_modules()}
        self._scope: list[str] = []
        self._in_leaf = False

    def module_call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Run one call of a module, and record it if the module is a leaf."""
        name = self._names.get(id(module))
        if name is None or self._in_leaf:
            return original(module, *args, **kwargs)
        leaf = module is not self._model and self._is_leaf(module, name)
        given = self.sources.of((args, kwargs)) if leaf else ((), {})
        self._scope.append(name)
        self._in_leaf = leaf
        try:
            output = original(module, *args, **kwargs)
            if leaf:
                output = _told_apart(output, args)
        finally:
            self._scope.pop()
            self._in_leaf = False
        if leaf:
            self.sources.add((name, ""), output)
            self._note(Step(self._owner(), name, "", given[0], given[1], output))
        return output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._in_leaf:
            return func(*args, **(kwargs or {}))
        # a mode is off inside its own handler
        _, target, own, named = spell(func, tuple(args), kwargs or {})
        given = self.sources.of((own, named))
        result = _told_apart(func(*args, **(kwargs or {})), args)
        if any(isinstance(leaf, torch.Tensor) for leaf in _leaves(result)):
            owner, name = self._owner(), function_name(target)
            self.sources.add((owner, name), result)
            self._note(Step(owner, owner, name, given[0], given[1], result))
        return result

    def _owner(self) -> str:
        return self._scope[-1] if self._scope else ""


class _Sources:
    """Records the source of each tensor in one run, by weak reference."""

    def __init__(self, model: torch.nn.Module, sample: Sample) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self._count: Counter[tuple[str, str]] = Counter()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._known[tensor] = TensorSource((name, "attribute"))
        for number, leaf in enumerate(collect((sample.args, sample.kwargs))):
            if isinstance(leaf, torch.Tensor):
                self._known[leaf] = TensorSource(("", "input"), number)

    def of(self, value: Any) -> Any:
        """Return ``value`` with the source of each tensor in its place."""
        return map_values(value, lambda leaf: self._known.get(leaf, _ELSEWHERE))

    def add(self, key: tuple[str, str], result: Any) -> None:
        """Record ``result`` as the result of a step with this key."""
        number = self._count[key]
        self._count[key] += 1
        for part, leaf in enumerate(_leaves(result)):
            if isinstance(leaf, torch.Tensor):
                self._known[leaf] = TensorSource(key, number, part)


_ELSEWHERE = TensorSource(("", "elsewhere"))


def _told_apart(result: Any, args: Any) -> Any:
    """Return the result; where it is one of the inputs itself, an alias of it, as dropout in training gives one."""
    if isinstance(result, torch.Tensor) and any(result is arg for arg in args):
        return torch.ops.aten.alias.default(result)
    return result


def _leaves(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else collect(result)


# Merge two graphs of one model, for training and for evaluation, into one whose settings follow the mode.


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
