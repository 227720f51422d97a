"""Dynamo: its graph breaks and its caches (``torch._dynamo``)."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import logs_dropped_here, patched, patched_here, undoing


def forget_compiled() -> None:
    """Make ``torch.cond`` and similar functions compile anew at their next call; keep the user's compiled functions."""
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


# The call of ``torch.compile`` that is being traced, and its options (``torch._dynamo``).


@dataclasses.dataclass(frozen=True)
class OptimizedCall:
    """A running call of a compiled function, for which dynamo compiles.

    Attributes:
        function: the argument of ``torch.compile``.
        args: of the call.
        kwargs: of the call.
        place: the code whose graph dynamo has just traced: its file, name and first line.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: tuple[str, str, int]


def optimized_call() -> OptimizedCall | None:
    """Return the innermost call of a ``torch.compile``d function on this thread's stack; None if there is none.

    Call this from a backend, or from the function that a backend returned: dynamo passes neither the function nor
    the call.
    """
    with needed_for("finding the call that torch.compile works for"):
        from torch._dynamo import eval_frame
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals if frame.f_code.co_filename == eval_frame.__file__ else {}
        # a disabled function has no callback, or from torch 2.14 on one that is None
        if {"fn", "args", "kwargs", "callback"} <= set(found) and callable(found["callback"]):
            return OptimizedCall(_compiled_callable(found["fn"]), found["args"], found["kwargs"], _traced_place())
        frame = frame.f_back
    return None


def _compiled_callable(function: Any) -> Callable[..., Any]:
    """Return the user's module or function without ``torch.compile``'s wrappers."""
    inner = vars(function).get("__wrapped__") if isinstance(function, types.FunctionType) else None
    if isinstance(inner, torch.nn.Module):  # torch's own layers get a frame of their own
        return inner
    owner = getattr(function, "__self__", None)
    own = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")
    if isinstance(owner, torch.nn.Module) and getattr(function, "__name__", "") in own:
        return owner
    return function  # type: ignore[no-any-return]


def _traced_place() -> tuple[str, str, int]:
    with needed_for("finding the call that torch.compile works for"):
        from torch._dynamo.symbolic_convert import InstructionTranslator
    try:
        code = InstructionTranslator.current_tx().output.root_tx.f_code
    except Exception:  # outside of dynamo there is no such thing
        return ("", "", 0)
    return (code.co_filename, code.co_name, code.co_firstlineno)


@dataclasses.dataclass(frozen=True)
class GraphInput:
    """One input of a dynamo graph.

    Attributes:
        name: dynamo's name for where it comes from, such as ``"L_x_"``.
        is_tensor: a tensor that was one before; a Python number may come as a tensor, too.
        size_of: for a number that is the size of another input: the place of that input, and the dim.
        symbolic: for a tensor the dims that may vary.
    """

    name: str
    is_tensor: bool
    size_of: tuple[int, int] | None = None
    symbolic: tuple[int, ...] = ()


def graph_inputs(graph: torch.fx.GraphModule) -> tuple[GraphInput, ...]:
    """Return the inputs of a dynamo graph, in the order of its arguments."""
    nodes = graph.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in nodes]
    sizes: dict[Any, tuple[int, int]] = {}
    for place, value in enumerate(values):
        shape: tuple[Any, ...] = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(shape):
            if _may_vary(size):
                sizes.setdefault(size.node.expr, (place, dim))
    result = []
    for node, value in zip(nodes, values, strict=True):
        name = str(node.target)
        if isinstance(value, torch.Tensor):
            is_number = bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))
            dims = tuple(dim for dim, size in enumerate(value.shape) if _may_vary(size))
            result.append(GraphInput(name, not is_number, symbolic=dims))
        else:
            expression = value.node.expr if isinstance(value, torch.SymInt) else None
            result.append(GraphInput(name, False, sizes.get(expression)))
    return tuple(result)


def _may_vary(size: Any) -> bool:
    # a size that tracing has fixed is still a SymInt, with a number
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def with_backend_options(options: Any, kind: Callable[[Any], Any]) -> Any:
    """Return ``kind(options)``, and put it in place of ``options`` in the backend that dynamo compares with others.

    Call this from the backend; comparing dicts that hold tensors raises.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        wrapper = frame.f_locals.get("self")
        kept = getattr(wrapper, "kwargs", None)
        if type(wrapper).__name__ == "_TorchCompileWrapper" and kept and kept.get("options") is options:
            kept["options"] = kind(options)
            return kept["options"]
        frame = frame.f_back
    return options


def compiled_apart(function: Callable[..., Any], backend: Callable[..., Any], *, dynamic: bool | None) -> Any:
    """Return ``torch.compile`` of a function, counted apart from other compiles of the same code where torch
    supports that.

    Numbers that are no sizes are constants of its graphs.
    """
    apart = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    keywords: dict[str, Any] = {"isolate_recompiles": True} if apart else {}
    optimized = torch.compile(function, backend=backend, dynamic=dynamic, **keywords)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(
            recompile_limit=10_000,
            accumulated_recompile_limit=100_000,
            specialize_int=True,
            specialize_float=True,
        ):
            return optimized(*args, **kwargs)

    return call


@contextmanager
def compiled_calls_off(root: torch.nn.Module) -> Iterator[None]:
    """Disable earlier calls of ``module.compile()`` inside the block."""
    found = [module for module in root.modules() if vars(module).get("_compiled_call_impl") is not None]
    with ExitStack() as stack:
        for module in found:
            stack.enter_context(patched(module, "_compiled_call_impl", None))
        yield
