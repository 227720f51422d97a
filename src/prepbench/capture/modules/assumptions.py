"""The assumptions of a graph about its input sizes: in words, and as a check at run time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import fx

from prepbench._torch_compat.fake_tensors import FakeTensorMode, is_open_question, symbolic_fake_mode, symbols_of
from prepbench.capture.failures.describe import describe_failure
from prepbench.capture.modules.fake_inputs import InputSize
from prepbench.capture.modules.trace_result import Assumption, Granted, TraceResult, values_on_samples
from prepbench.capture.sizes.conditions import condition_in_words, is_always_true
from prepbench.capture.sizes.dynamic_axes import NumbersDecide, SizesDecide, condition_text, disagreement, value_at
from prepbench.document.model import Failure, Finding
from prepbench.errors import InputError
from prepbench.objects.flatten import collect
from prepbench.running.source_lines import frame_of, source_of_frame


def readable(trace: TraceResult) -> list[str]:
    """Return one line per assumption on sizes, e.g. ``"x.size(1) == 4, from model.py:12: range(x.shape[1])"``."""
    told = [
        a
        for a in trace.assumptions
        if not _on_numbers(a, trace.sizes)
        and not _shown_by_samples(a, trace.sizes)
        and not is_always_true(a.expression, 1)
    ]
    return list(dict.fromkeys(_line(assumption, trace.sizes) for assumption in told))


def granted(trace: TraceResult) -> list[Granted]:
    """Return the numbers that the graph treats as constants, because they are the same on all samples."""
    names = size_names(trace.sizes)
    read = [
        Granted(a.fqn, condition_in_words(a.expression, names), a.source)
        for a in trace.assumptions
        if _on_numbers(a, trace.sizes)
    ]
    return list(dict.fromkeys([*read, *trace.returned]))


def number_findings(
    trace: TraceResult, samples: int, prefix: str, type_name: Callable[[str], str]
) -> Iterator[Finding]:
    """Yield a finding for each number that the graph of a module treats as a constant."""
    for found in granted(trace):
        fqn = ".".join(part for part in (prefix, found.fqn) if part)
        text = f"The graph takes for granted that {found.text}, as in all {samples} samples."
        frame = frame_of(found.source) if found.source else ""
        yield Finding(fqn, type_name(fqn), NUMBER_FIXED, text, found.source, frame, _REMEDY)


def contradiction(trace: TraceResult, prefix: str, type_name: Callable[[str], str]) -> Failure | None:
    """Return why no single graph fits all samples: the first assumption of a trace that a sample breaks."""
    for found in trace.contradicted:
        values = dict(enumerate(values_on_samples(found.expression, trace.sizes)))
        text = disagreement(found.expression, size_names(trace.sizes), values, "sizes")
        if text is None:  # false for all samples: none of them is like the one that was traced
            text = f"The graph was traced for {_line(found, trace.sizes)}, which no sample has."
        return describe_failure(SizesDecide(text), fqn=prefix, module_type=type_name(prefix), source=found.source)
    return None


NUMBER_FIXED = "number from a tensor fixed"
_REMEDY = (
    "Trace once for each value, with samples that have it, or keep the number as a tensor: torch.where, index_select "
    "or a mask in place of Python's range(), if and [...]."
)


def _on_numbers(assumption: Assumption, sizes: dict[Any, InputSize]) -> bool:
    return any(sizes[symbol].dim is None for symbol in assumption.expression.free_symbols)


def size_names(sizes: dict[Any, InputSize]) -> dict[Any, str]:
    """Return ``"x.size(1)"`` or ``"n.item()"`` for each symbol."""
    return {symbol: size.text for symbol, size in sizes.items()}


def _shown_by_samples(assumption: Assumption, sizes: dict[Any, InputSize]) -> bool:
    """Return whether it follows from equalities of sizes that hold in every sample."""
    first: dict[tuple[int, ...], Any] = {}
    equal = {symbol: first.setdefault(sizes[symbol].sizes, symbol) for symbol in _in_order(assumption, sizes)}
    return len(set(equal.values())) < len(equal) and assumption.expression.xreplace(equal) == True  # noqa: E712


def _in_order(assumption: Assumption, sizes: dict[Any, InputSize]) -> list[Any]:
    return [symbol for symbol in sizes if symbol in assumption.expression.free_symbols]


def _line(assumption: Assumption, sizes: dict[Any, InputSize]) -> str:
    text = condition_in_words(assumption.expression, size_names(sizes))
    source = assumption.source
    return f"{text}, from {source.file}:{source.line}: {source.code}" if source else text


@dataclass(frozen=True)
class SizeCheck:
    """A forward pre-hook that refuses input sizes for which the graph and the model differ."""

    names: tuple[str, ...]
    places: tuple[tuple[Any, int], ...]
    assumptions: tuple[Assumption, ...]
    sizes: dict[Any, InputSize]

    @classmethod
    def of(cls, trace: TraceResult) -> SizeCheck | None:
        """Return the check for a trace; ``None`` if it holds for every size."""
        if not trace.assumptions:
            return None
        names, places, index = [], [], 0
        for node in trace.graph.nodes:
            if node.op == "placeholder":
                names.append(str(node.target))
                for value in collect(node.meta["val"]):
                    places += [(symbol, index) for symbol in symbols_of(value) if symbol in trace.sizes]
                    index += 1
        return cls(tuple(names), tuple(places), tuple(trace.assumptions), trace.sizes)

    def __call__(self, module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = collect([*args, *(kwargs[name] for name in self.names[len(args) :] if name in kwargs)])
        # reading a number from a tensor may synchronise a device, so only needed ones are read
        asked = set().union(*(assumption.expression.free_symbols for assumption in self.assumptions))
        given = {s: self.sizes[s].of(tensors[index]) for s, index in self.places if s in asked and index < len(tensors)}
        values = {symbol: value for symbol, value in given.items() if value is not None}
        for assumption in self.assumptions:
            if value_at(assumption.expression, values) == False:  # noqa: E712 - sympy's false, or a relation not decided
                got = ", ".join(f"{self.sizes[s].text} = {v}" for s, v in values.items())
                raise InputError(
                    f"This graph of {type(module).__name__} was traced for {_line(assumption, self.sizes)}; got {got}. "
                    "Trace again with such samples, or change that line so that it does not fix this."
                )


# Guards on sizes and numbers during value tracing: which become assumptions, and which are refused.


READS = frozenset({"__bool__", "__int__", "__index__", "__float__", "__complex__", "is_nonzero"})
"""Functions by which Python reads a number from a tensor; their guards belong to the model's line."""


class Run(Protocol):
    """The interface of a tracing run for guards."""

    @property
    def active(self) -> bool: ...
    @property
    def reading(self) -> bool: ...
    @property
    def inside(self) -> str: ...


class Questions:
    """The guards of one run.

    Attributes:
        mode: the fake mode in which the model runs.
        sizes: the known facts on the inputs' symbols.
        strict: refuse what sizes decide differently for different samples; for numbers that is always so.
        assumptions: the answers that the graph depends on.
        known: guards of the model's lines that tracing decided, because it assumes sizes of 0 and 1 impossible.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.sizes: dict[Any, InputSize] = {}
        self.strict = False
        self.assumptions: list[Assumption] = []
        self.known: list[Assumption] = []
        self.mode: FakeTensorMode = symbolic_fake_mode(self._assume, self._ask, self._know)

    def is_number(self, value: Any) -> bool:
        """Return whether a symbolic value depends on an integer inside an input, and not on sizes alone."""
        return any(map(self._is_of_number, getattr(value.node.expr, "free_symbols", ())))

    def _is_of_number(self, symbol: Any) -> bool:
        return symbol in self.sizes and self.sizes[symbol].dim is None

    def _assume(self, expression: Any) -> None:
        # inside torch, inequalities only choose between ways of computing the same (contiguity, broadcasting)
        run = self._run
        if run.active or run.reading or type(expression).__name__ == "Equality":
            self.assumptions.append(
                Assumption(expression, source_of_frame(sys._getframe(2)), not run.active, run.inside)
            )

    def _know(self, expression: Any) -> None:
        self.known.append(Assumption(expression, source_of_frame(sys._getframe(2)), False, self._run.inside))

    def _ask(self, expression: Any) -> None:
        symbols = getattr(expression, "free_symbols", ())
        if any(map(self._is_of_number, symbols)):
            self._refuse_numbers(expression)
        elif self.strict and symbols:
            watched = self._run.active or type(expression).__name__ == "Equality" or not expression.is_Relational
            text = self._disagreement(expression, "sizes")
            if text is not None and watched and is_open_question(self.mode, expression):
                raise SizesDecide(text)

    def _refuse_numbers(self, expression: Any) -> None:
        """Raise if samples have different answers, or other ones than the traced number."""
        values = values_on_samples(expression, self.sizes)
        if not values or not is_open_question(self.mode, expression):
            return
        traced = value_at(expression, {symbol: self.sizes[symbol].hint for symbol in expression.free_symbols})
        by_user = self._run.active or self._run.reading or not expression.is_Relational
        # torch asks whether a size is 1 even where nothing follows from the answer that it is not
        if not by_user and not (type(expression).__name__ == "Equality" and traced == True):  # noqa: E712 - sympy's
            return
        text = self._disagreement(expression, "numbers")
        if text is None and traced != value_at(expression, values[0]):
            text = (
                f"The numbers of the inputs decide the way here: {condition_text(expression, size_names(self.sizes))}. "
                "Samples that have only 0 and 1 there do not show which way others go."
            )
        if text is not None:
            raise NumbersDecide(text)

    def _disagreement(self, expression: Any, what: str) -> str | None:
        values = dict(enumerate(values_on_samples(expression, self.sizes)))
        return disagreement(expression, size_names(self.sizes), values, what) if values else None
