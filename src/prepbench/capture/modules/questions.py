"""Guards on sizes and numbers during value tracing: which become assumptions, and which are refused."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from prepbench._torch_compat.fake_tensors import FakeTensorMode, is_open_question, symbolic_fake_mode
from prepbench.capture.modules.assumptions import size_names
from prepbench.capture.modules.fake_inputs import InputSize
from prepbench.capture.modules.trace_result import Assumption, values_on_samples
from prepbench.capture.sizes.sample_sizes import NumbersDecide, SizesDecide, condition_text, disagreement, value_at
from prepbench.running.source_lines import source_of_frame

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
