"""Observe and resolve symbolic sizes during export (``torch.fx.experimental``)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here

with needed_for("watching what tracing assumes about sizes"):
    from torch.fx.experimental import _config
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _ = ShapeEnv._set_replacement, ShapeEnv._maybe_evaluate_static, ShapeEnv.evaluate_expr


@contextmanager
def watched_specialisation(on_constant: Callable[[str, int], None]) -> Iterator[None]:
    """Call ``on_constant("x.shape[0]", 4)`` when tracing is about to fix the size of an input; it may raise.

    Its exception appears at the line of the model that asked for the number.
    """
    original = ShapeEnv._set_replacement

    def set_replacement(self: ShapeEnv, symbol: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(target, "is_Integer", False) and symbol in self.backed_var_to_val:
            on_constant(_size_name(self, symbol), int(target))
        return original(self, symbol, target, *args, **kwargs)

    with patched_here(ShapeEnv, "_set_replacement", set_replacement):
        yield


def _size_name(shape_env: ShapeEnv, symbol: Any) -> str:
    sources = getattr(shape_env, "var_to_sources", {}).get(symbol) or [None]
    name = getattr(sources[0], "name", "")
    text = str(name() if callable(name) else name) or str(symbol)
    return re.sub(r"^L\['(\w+)'\]", r"\1", text).replace(".size()", ".shape")


def named_expression(size: torch.SymInt) -> tuple[Any, dict[Any, str]]:
    """Return a symbolic size as an expression, and the input size of each symbol in it, e.g. ``"x.shape[0]"``."""
    with needed_for("seeing what a size is made of"):
        shape_env, expression = size.node.shape_env, size.node.expr
    return expression, {symbol: _size_name(shape_env, symbol) for symbol in expression.free_symbols}


def forget_pending_sizes(values: Any) -> None:
    """Drop unknown sizes and numbers that an abandoned computation left behind on the fake mode of ``values``."""
    with needed_for("forgetting sizes of an abandoned computation"):
        from torch._guards import detect_fake_mode
    mode = detect_fake_mode(values)
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def sizes_from_values(values: Any) -> set[Any]:
    """Return the symbols in fake values and sizes that stand for sizes which tensors' values decide."""
    with needed_for("sizes that values decide"):
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    known = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor | torch.SymInt)]
    return set(free_unbacked_symbols(known))


def exact_zero_one() -> Any:
    """A context in which tracing assumes nothing about sizes 0 and 1 and records what the model asks about them."""
    with needed_for("tracing without assumptions about sizes 0 and 1"):
        _ = _config.backed_size_oblivious
    return _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]


def smallest(size: torch.SymInt) -> int:
    """Return the smallest value that tracing allows for a symbolic size."""
    with needed_for("asking for the range of a size"):
        bound = size.node.shape_env.bound_sympy(size.node.expr).lower
    return int(bound) if bound.is_Integer else 0


SizeCallback = Callable[[Any, dict[Any, str]], None]


@contextmanager
def watched_sizes(on_guard: SizeCallback, on_question: SizeCallback | None = None) -> Iterator[None]:
    """Call ``on_guard(expression, names)`` when tracing assumes something about sizes.

    That includes questions of the model's own Python which tracing answers from its assumption that sizes are 2 or
    more.

    ``on_question`` is called before an open question is answered; it may raise, and then nothing is assumed.
    Exceptions appear at the line of the model that asked. ``names`` gives each symbol's size, such as
    ``"x.shape[0]"``.
    """
    original = ShapeEnv.evaluate_expr

    def evaluate_expr(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        def names(expression: Any) -> dict[Any, str]:
            return {symbol: _size_name(self, symbol) for symbol in expression.free_symbols}

        expression, before = args[0], len(self.guards)
        is_open = on_question and getattr(expression, "free_symbols", None)
        if on_question and is_open and self._maybe_evaluate_static(expression) is None:
            on_question(expression, names(expression))
        result = original(self, *args, **kwargs)
        for guard in self.guards[before:]:
            on_guard(guard.expr, names(guard.expr))
        is_truth = result in (True, False) and getattr(expression, "free_symbols", None)
        if is_truth and len(self.guards) == before and asking_python() is not None:
            on_guard(answered(expression, bool(result)), names(expression))
        return result

    with patched_here(ShapeEnv, "evaluate_expr", evaluate_expr):
        yield


@contextmanager
def watched_texts(on_text: Callable[[Any, dict[Any, str], FrameType], None]) -> Iterator[None]:
    """Call ``on_text(expression, names, frame)`` when Python makes a text of a symbolic size, as ``str`` does."""
    with ExitStack() as stack:
        for name in ("__str__", "__repr__"):
            stack.enter_context(patched_here(torch.SymInt, name, _telling_text(getattr(torch.SymInt, name), on_text)))
        yield


_HASH = "_prepbench_hash"


@contextmanager
def watched_keys(
    numbers: Callable[[FrameType, str], Collection[int] | None],
    on_key: Callable[[Any, dict[Any, str], FrameType, Collection[int]], None],
) -> Iterator[None]:
    """Let dicts and sets be asked with a symbolic size, which no number in them equals.

    Args:
        numbers: returns those that a size, given as text, could equal where a frame asks; None where it cannot be
            asked for.
        on_key: called with the size, the names of its symbols as in :func:`watched_sizes`, the frame and its numbers.
    """
    original = torch.SymInt.__hash__

    def key(size: torch.SymInt) -> int:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
            frame = frame.f_back
        # of a size that data decides, no trial call could tell whether the numbers matter
        is_of_inputs = getattr(size.node, "shape_env", None) is not None and size.node.has_hint()
        found = numbers(frame, str(size.node.expr)) if frame is not None and is_of_inputs else None
        if frame is None or found is None:
            # one that is a key already is asked for again when the dict is restored
            return vars(size)[_HASH] if _HASH in vars(size) else original(size)
        expression, names = named_expression(size)
        if not names:
            return hash(int(expression))
        on_key(expression, names, frame, found)
        # of this trace alone: what another one left in a dict has sizes of its own
        value = vars(size)[_HASH] = hash((id(size.node.shape_env), str(expression)))
        return value

    with patched_here(torch.SymInt, "__hash__", key):
        yield


def _telling_text(original: Callable[[Any], str], on_text: Callable[[Any, dict[Any, str], FrameType], None]) -> Any:
    def text(size: torch.SymInt) -> str:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_MACHINERY):
            frame = frame.f_back
        if frame is not None and getattr(size.node, "shape_env", None) is not None:
            on_text(*named_expression(size), frame)
        return original(size)

    return text


def answered(question: Any, answer: bool) -> Any:
    """Return the sympy condition that a question has this answer."""
    import sympy

    return question if answer else sympy.Not(question)


_MACHINERY = (str(Path(torch.__file__).parent / "fx" / "experimental"), str(Path(__file__).parent.parent))
_CONVERSIONS = frozenset({"__bool__", "__int__", "__index__", "__float__"})


def asking_python(frame: FrameType | None = None) -> FrameType | None:
    """Return the frame whose own line turns a symbolic size into a truth value or a number, as ``if`` does.

    Return None where one of torch's functions asks, also from C++.

    Args:
        frame: below it; the caller's when not given.
    """
    found: FrameType | None = sys._getframe(1) if frame is None else frame
    while found is not None and found.f_code.co_filename.startswith(_MACHINERY):
        found = found.f_back
    if not _converts(found):
        return None
    while _converts(found):  # a number is compared with 0 first
        found = found.f_back  # type: ignore[union-attr]
    return found


def _converts(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename == torch.__file__ and frame.f_code.co_name in _CONVERSIONS


def noted_guards(program: torch.export.ExportedProgram) -> list[tuple[Any, dict[Any, str], str, bool]]:
    """Return dynamo's assumptions about sizes from the trace of a program.

    Returns:
        For each condition the expression, the sizes behind its symbols, the line that asked as dynamo writes it
        (``"if x.shape[0] > 3:  # model.py:12 in forward"``), and whether the model's own Python asked.
    """
    sizes = [
        size
        for node in program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    ]
    if not sizes:
        return []
    with needed_for("reading what dynamo assumed about sizes"):
        shape_env = sizes[0].node.shape_env
        guards = [(guard.expr, guard.sloc) for guard in shape_env.guards]
    return [
        (
            expression,
            {symbol: _size_name(shape_env, symbol) for symbol in expression.free_symbols},
            str(getattr(place, "maybe_user_loc", None) or ""),
            "/_dynamo/variables/" in str(getattr(place, "framework_loc", "")),
        )
        for expression, place in guards
    ]


def assume(condition: Any) -> None:
    """Add a condition on sizes to the facts of tracing; a graph checks it when it runs."""
    with needed_for("sizes that depend on data"):
        torch._check(condition)


# Evaluate symbolic numbers as Python would.


# the originals, before tracing replaces them
_FLOOR, _CEIL, _TRUNC = math.floor, math.ceil, math.trunc

with needed_for("square roots of symbolic sizes"):
    SQRT: Any = getattr(torch, "sym_sqrt", None) or torch._sym_sqrt  # type: ignore[attr-defined]


def symbolic_value(expression: Any, known: Mapping[Any, Any], call: Callable[..., Any]) -> Any:
    """Evaluate a sympy expression over sizes for known values of its symbols; proxies write it into their graph."""
    with needed_for("computing sizes in a graph"):
        from torch.utils._sympy.interp import sympy_interp
    return sympy_interp(number_analysis(call), dict(known), expression)


def is_unbounded(size: Any) -> bool:
    """Return whether a bound of a symbolic size is infinity."""
    with needed_for("the largest values of sizes"):
        from torch.utils._sympy.numbers import int_oo
    return bool(size == int_oo)


def number_analysis(call: Callable[..., Any]) -> Any:
    """Return the analysis with which a graph computes sympy expressions over sizes.

    Args:
        call: calls a function on numbers, some of which may be proxies.
    """
    with needed_for("computing sizes in a graph"):
        from torch.utils._sympy.reference import PythonReferenceAnalysis

    class Numbers(PythonReferenceAnalysis):
        """Torch's own analysis, with replacements for the functions that accept no proxies."""

        @staticmethod
        def int_truediv(a: Any, b: Any) -> Any:
            return a / b

        @staticmethod
        def sqrt(x: Any) -> Any:
            return call(SQRT, x)

        @staticmethod
        def to_dtype(x: Any, dtype: torch.dtype) -> Any:
            return call(torch.sym_float, x) if dtype.is_floating_point else x

        @staticmethod
        def floor(x: Any) -> Any:
            return call(torch.sym_float, call(_FLOOR, x))

        @staticmethod
        def ceil(x: Any) -> Any:
            return call(torch.sym_float, call(_CEIL, x))

        @staticmethod
        def floor_to_int(x: Any, dtype: Any) -> Any:
            return call(_FLOOR, x)

        @staticmethod
        def ceil_to_int(x: Any, dtype: Any) -> Any:
            return call(_CEIL, x)

        @staticmethod
        def trunc_to_int(x: Any, dtype: Any) -> Any:
            return call(_TRUNC, x)

        @staticmethod
        def round_to_int(a: Any, dtype: Any) -> Any:
            return call(round, a)

        @staticmethod
        def round_decimal(a: Any, b: Any) -> Any:
            return call(round, a, b)

    return Numbers
