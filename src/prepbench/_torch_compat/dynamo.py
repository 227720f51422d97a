"""Dynamo: its graph breaks and its caches (``torch._dynamo``)."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import logs_dropped_here, patched_here, undoing


def forget_compiled() -> None:
    """Make ``torch.cond`` and similar functions compile again at their next call; keep the user's compiled
    functions.
    """
    with needed_for("forgetting compiled branches"):
        eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
    reset_code = getattr(eval_frame, "reset_code", None)
    if reset_code is None:
        torch._dynamo.reset()
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._higher_order_ops."):
            for function in [value for value in vars(module).values() if isinstance(value, types.FunctionType)]:
                for code in _codes_in(function.__code__):
                    reset_code(code)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


@contextmanager
def graph_breaks_noted() -> Iterator[list[Exception]]:
    """Append every graph break of dynamo inside the block to the list, as its exception."""
    found: list[Exception] = []
    with needed_for("noting graph breaks"):
        from torch._dynamo import symbolic_convert

        extract_stack = torch._guards.TracingContext.extract_stack
        base = _class_with(symbolic_convert, "log_graph_break")

    def log_graph_break(self: Any, code_options: Any, reason: Any, exc: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(exc, "real_stack", None) is None:
            exc.real_stack = extract_stack()
        found.append(exc)

    with patched_here(base, "log_graph_break", log_graph_break):
        yield found


def _class_with(module: types.ModuleType, name: str) -> Any:
    """Return the class of a module that defines a method."""
    for kind in vars(module).values():
        if isinstance(kind, type) and name in vars(kind):
            return kind
    raise AttributeError(f"no class of {module.__name__} has a method {name!r}")


@contextmanager
def compiled_by_dynamo(model: Callable[..., Any], *, fullgraph: bool) -> Iterator[Callable[..., Any]]:
    """Run ``model`` through dynamo with dynamic shapes, and with a backend that runs each graph unchanged.

    What was compiled is dropped afterwards; other compiled functions stay. With ``fullgraph`` a call raises dynamo's
    error where the graph breaks.
    """
    with needed_for("finding graph breaks"):
        from torch._C._dynamo import eval_frame
        from torch._dynamo import convert_frame

        reset_code, seen = eval_frame.reset_code, convert_frame.input_codes.seen
    before = {id(reference()) for reference in seen}

    def forget() -> None:
        for reference in seen:
            code = reference()
            if code is not None and id(code) not in before:
                reset_code(code)

    limits = torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=100_000)
    with undoing() as undo, logs_dropped_here("torch._dynamo", "torch.fx.experimental.symbolic_shapes"), limits:
        undo.add(forget)
        yield torch.compile(model, backend=lambda graph, inputs: graph.forward, fullgraph=fullgraph, dynamic=True)
