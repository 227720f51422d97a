"""Finding the submodules that cannot be exported, and exporting the rest with each of them as one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.exporting import mark_module_stack
from prepbench._torch_compat.sizes import forget_pending_sizes
from prepbench.capture.aten.chosen_leaves import is_inside_any
from prepbench.capture.aten.leaf_operators import LeafOperators
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError
from prepbench.running.replaced_forward import part_named, replaceable_modules, replaced_forward


@contextmanager
def leaves_replaced(model: torch.nn.Module, fqns: Iterable[str], operators: LeafOperators) -> Iterator[None]:
    """Inside the block, the forward of each named submodule is a call of its operator."""
    with ExitStack() as stack:
        for fqn in fqns:
            module = part_named(model, fqn)
            stack.enter_context(replaced_forward(model, fqn, _calling(fqn, module, operators)))
        yield


def _calling(fqn: str, module: Any, operators: LeafOperators) -> Callable[..., Any]:
    def leaf(*args: Any, **kwargs: Any) -> Any:
        return operators.call(fqn, args, kwargs)

    leaf.__wrapped__ = module.forward  # type: ignore[attr-defined]
    return leaf


@contextmanager
def failures_collected(
    model: torch.nn.Module,
    known: Iterable[str],
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
    whole: Iterable[str] = (),
) -> Iterator[None]:
    """Inside the block, a submodule whose forward raises goes to ``found``, and its operator takes its place.

    One that cannot be an operator goes to ``inside``, and the module that called it is replaced.

    Modules inside of those in ``whole`` are not looked at. Only the innermost module that raises counts. Its callers go
    on with fake outputs, so one pass finds all failures.
    """
    leaves = set(known)
    with ExitStack() as stack:
        for fqn, module in replaceable_modules(model):
            if is_inside_any(fqn, whole):
                continue
            attempt = _attempting(fqn, module, operators, found, inside)
            forward = _calling(fqn, module, operators) if fqn in leaves else attempt
            stack.enter_context(replaced_forward(model, fqn, forward))
        yield


def _attempting(
    fqn: str,
    module: Any,
    operators: LeafOperators,
    found: dict[str, Exception],
    inside: dict[str, Exception],
) -> Callable[..., Any]:
    forward = module.forward

    def attempt(*args: Any, **kwargs: Any) -> Any:
        leave_inner_modules = mark_module_stack()
        try:
            return forward(*args, **kwargs)
        except _Undescribable as inner:
            # the module inside cannot be one operator, so this one, which called it, has to be
            error: Exception = inner
        except Exception as raised:
            error = raised
        leave_inner_modules()
        forget_pending_sizes((args, kwargs))
        try:
            output = operators.call(fqn, args, kwargs)
        except UnknownOutputsError as reason:
            inside.setdefault(fqn, error)
            raise _Undescribable(error, str(reason)) from reason
        found.setdefault(fqn, error)
        return output

    attempt.__wrapped__ = forward  # type: ignore[attr-defined]
    return attempt


class _Undescribable(RuntimeError):
    """A module failed and its outputs cannot be described; ``error`` is why it failed, ``reason`` why it is no leaf."""

    def __init__(self, error: Exception, reason: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.reason = reason


def original_error(error: Exception) -> Exception:
    """The error of the model itself."""
    while isinstance(error, _Undescribable):
        error = error.error
    return error


def undescribable_reasons(error: Exception) -> list[str]:
    """Why the modules inside the one that failed could not be operators by themselves, innermost first."""
    reasons: list[str] = []
    while isinstance(error, _Undescribable):
        reasons.insert(0, error.reason)
        error = error.error
    return reasons
