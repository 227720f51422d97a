"""Modules whose forward takes derivatives with ``torch.func``: the graph contains the operations of the derivatives."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.function_transforms import CALL_OF_MODULES, plain_operations, transforms_noticed
from prepbench.capture.aten.chosen_leaves import outermost
from prepbench.running.replaced_forward import part_named, replaced_forward


@contextmanager
def transforming_modules(model: torch.nn.Module) -> Iterator[set[str]]:
    """Collect the names of the modules in whose own forward ``torch.func`` takes derivatives."""
    names = {id(module): fqn for fqn, module in model.named_modules()}
    found: set[str] = set()

    def note() -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self") if frame.f_code is CALL_OF_MODULES else None
            if owner is not None and id(owner) in names:
                found.add(names[id(owner)])
                return
            frame = frame.f_back

    with transforms_noticed(note):
        yield found


@contextmanager
def transforms_computed(model: torch.nn.Module, fqns: Iterable[str]) -> Iterator[None]:
    """Trace the named modules as plain operations during the block."""
    with ExitStack() as stack:
        for fqn in outermost(fqns):
            module = part_named(model, fqn)
            if not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(replaced_forward(model, fqn, _computed(module.forward)))
        yield


def _computed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        returned: list[Any] = []

        def of_tensors(*tensors: torch.Tensor) -> list[torch.Tensor]:
            given = dict(zip(places, tensors, strict=True))
            arguments = [given.get(place, leaf) for place, leaf in enumerate(leaves)]
            own_args, own_kwargs = pytree.tree_unflatten(arguments, spec)
            results, form = pytree.tree_flatten(forward(*own_args, **own_kwargs))
            returned[:] = [results, form]
            return [result for result in results if isinstance(result, torch.Tensor)]

        tensors = [leaves[place] for place in places]
        values = iter(plain_operations(of_tensors, tensors)(*tensors))
        results, form = returned
        return pytree.tree_unflatten(
            [next(values) if isinstance(result, torch.Tensor) else result for result in results], form
        )

    return computed
