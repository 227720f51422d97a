"""Every operation and module call of one real run of a model, as tracing would write them down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from prepbench.capture.modules.operations import spell
from prepbench.inputs import Sample
from prepbench.prepare.operations import function_name
from prepbench.running.nested_values import collect, map_values
from prepbench.running.patching import patched


@dataclass(frozen=True)
class Wire:
    """Where a tensor comes from: a parameter, an input, or one result of the ``number``-th call of something."""

    source: tuple[str, str]
    number: int = 0
    part: int = 0


@dataclass(frozen=True)
class Call:
    """One operation in the code of the module ``owner``, or (``name`` is "") one call of the leaf module ``owner``.

    ``caller`` is the module whose code it is in; in ``args`` and ``kwargs`` a :class:`Wire` stands for each tensor.
    """

    caller: str
    owner: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def watch(
    model: torch.nn.Module,
    sample: Sample,
    is_leaf: Callable[[torch.nn.Module, str], bool],
    note: Callable[[Call], None],
) -> None:
    """Run ``model`` on ``sample`` and note what it calls, outside of leaf modules; what gives no tensor is left out."""
    wires = _Wires(model, sample)
    names = {id(module): name for name, module in model.named_modules()}
    original = torch.nn.Module.__call__
    scope: list[str] = []
    inside = 0

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        name = names.get(id(module))
        if name is None or inside:
            return original(module, *args, **kwargs)
        leaf = module is not model and is_leaf(module, name)
        given = wires.of((args, kwargs)) if leaf else ((), {})
        scope.append(name)
        inside += leaf
        try:
            output = original(module, *args, **kwargs)
            if leaf:
                output = wires.told_apart(output, args)
        finally:
            scope.pop()
            inside -= leaf
        if leaf:
            wires.add((name, ""), output)
            note(Call(scope[-1] if scope else "", name, "", given[0], given[1], output))
        return output

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if inside:
                return func(*args, **(kwargs or {}))
            # a mode is off inside its own handler
            _, target, own, named = spell(func, tuple(args), kwargs or {})
            given = wires.of((own, named))
            result = wires.told_apart(func(*args, **(kwargs or {})), args)
            if any(isinstance(leaf, torch.Tensor) for leaf in _leaves(result)):
                owner, name = scope[-1] if scope else "", function_name(target)
                wires.add((owner, name), result)
                note(Call(owner, owner, name, given[0], given[1], result))
            return result

    with ExitStack() as stack:
        stack.enter_context(patched(torch.nn.Module, "__call__", call))
        stack.enter_context(Functions())
        output = sample.call(model)
    note(Call("", "", "output", wires.of((output,)), {}, None))


class _Wires:
    """Which tensor came from where in one run; no tensor is kept alive for it."""

    def __init__(self, model: torch.nn.Module, sample: Sample) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self._count: Counter[tuple[str, str]] = Counter()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._known[tensor] = Wire((name, "attribute"))
        for number, leaf in enumerate(collect((sample.args, sample.kwargs))):
            if isinstance(leaf, torch.Tensor):
                self._known[leaf] = Wire(("", "input"), number)

    def of(self, value: Any) -> Any:
        """``value`` with a wire for each tensor."""
        return map_values(value, lambda leaf: self._known.get(leaf, _ELSEWHERE))

    def add(self, source: tuple[str, str], result: Any) -> None:
        """Say that a call gave ``result``."""
        number = self._count[source]
        self._count[source] += 1
        for part, leaf in enumerate(_leaves(result)):
            if isinstance(leaf, torch.Tensor):
                self._known[leaf] = Wire(source, number, part)

    @staticmethod
    def told_apart(result: Any, args: Any) -> Any:
        """A result that is one of the inputs as an object of its own, as dropout gives it in training."""
        if isinstance(result, torch.Tensor) and any(result is arg for arg in args):
            return torch.ops.aten.alias.default(result)
        return result


_ELSEWHERE = Wire(("", "elsewhere"))


def _leaves(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else collect(result)
