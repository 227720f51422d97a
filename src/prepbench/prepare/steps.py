"""Record every operation and module call of one real run of a model, in the form of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from prepbench.capture.modules.graph_builder import spell
from prepbench.inputs import Sample
from prepbench.objects.flatten import collect, map_values
from prepbench.patching import patched_here
from prepbench.prepare.operations import function_name


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
