"""Every operation and module call of one real run of a model, as tracing would write them down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prepbench.capture.operations import spell
from prepbench.capture.patching import patched
from prepbench.capture.structures import collect
from prepbench.inputs import Sample
from prepbench.prepare.operations import function_name


@dataclass(frozen=True)
class Call:
    """One operation in the code of the module ``owner``, or (``name`` is "") one call of the leaf module ``owner``.

    ``caller`` is the module whose code it is in.
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
        scope.append(name)
        inside += leaf
        try:
            output = original(module, *args, **kwargs)
        finally:
            scope.pop()
            inside -= leaf
        if leaf:
            note(Call(scope[-1] if scope else "", name, "", args, kwargs, output))
        return output

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if not inside and any(isinstance(leaf, torch.Tensor) for leaf in _leaves(result)):
                _, target, own, named = spell(func, tuple(args), kwargs or {})
                # a mode is off inside its own handler
                owner = scope[-1] if scope else ""
                note(Call(owner, owner, function_name(target), own, named, result))
            return result

    with ExitStack() as stack:
        stack.enter_context(patched(torch.nn.Module, "__call__", call))
        stack.enter_context(Functions())
        sample.call(model)


def _leaves(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else collect(result)
