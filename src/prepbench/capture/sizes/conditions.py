"""What a captured graph asks of the sizes of its inputs, in words, with the line of the model that asked."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from prepbench.capture.sizes.sample_sizes import condition_text, size_key, value_at
from prepbench.document.model import SourceLine
from prepbench.running.source_lines import source_of_frame

CONDITIONS = "prepbench_size_conditions"
"""Key in ``GraphModule.meta`` of an exported program: its :class:`SizeConditions`."""


@dataclass(frozen=True)
class SizeCondition:
    """One condition on input sizes.

    Attributes:
        text: e.g. ``"x.shape[2] must be a multiple of 4"``.
        sizes: the sizes it is about, e.g. ``("x.shape[2]",)``.
        source: the user's line that asked.
    """

    text: str
    sizes: tuple[str, ...]
    source: SourceLine | None

    def __str__(self) -> str:
        return f"{self.text} ({self.source.file}:{self.source.line}: {self.source.code})" if self.source else self.text


class SizeConditions:
    """Collects conditions while a model is exported."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, dict[Any, str], SourceLine | None]] = []
        self._conditions: list[SizeCondition] | None = None

    def __deepcopy__(self, memo: Any) -> SizeConditions:
        return self

    def note(self, expression: Any, names: dict[Any, str]) -> None:
        """Remember a sympy condition that tracing has just assumed."""
        self._noted.append((expression, names, source_of_frame(sys._getframe(1))))

    def in_words(self) -> list[SizeCondition]:
        """The conditions that not every size fulfils, each once, in the order in which they were asked."""
        if self._conditions is None:
            self._conditions = self._described()
        return self._conditions

    def broken_by(self, name: str, size: int) -> list[SizeCondition]:
        """The conditions on the size ``name`` alone, e.g. ``"x.shape[0]"``, that this size does not fulfil."""
        found: dict[str, SizeCondition] = {}
        for expression, names, source in self._noted:
            if {size_key(other) for other in names.values()} != {size_key(name)}:
                continue
            if value_at(expression, dict.fromkeys(names, size)) == False:  # noqa: E712 - sympy's
                text = condition_in_words(expression, names)
                found.setdefault(text, SizeCondition(text, (name,), source))
        return list(found.values())

    def limits(self, symbol: Any, size: int) -> bool:
        """Whether a condition on this symbol alone is not fulfilled by a size."""
        return any(
            set(names) == {symbol} and value_at(expression, {symbol: size}) == False  # noqa: E712 - sympy's
            for expression, names, _ in self._noted
        )

    def _described(self) -> list[SizeCondition]:
        found: dict[str, SizeCondition] = {}
        open_ones = [noted for noted in self._noted if not is_always_true(noted[0])]
        divisors: dict[Any, int] = {}
        for expression, names, source in open_ones:
            for symbol in sorted(names, key=lambda symbol: names[symbol]):
                divisor = _divisor(expression, symbol)
                if divisor is not None and divisors.get(symbol, 1) % divisor:
                    divisors[symbol] = math.lcm(divisors.get(symbol, 1), divisor)
                    text = f"{names[symbol]} must be a multiple of {divisor}"
                    found[text] = SizeCondition(text, (names[symbol],), source)
        for expression, names, source in open_ones:
            # most of what is left follows from the divisors
            if not is_always_true(expression, multiples_of=divisors):
                text = condition_in_words(expression, names)
                found.setdefault(text, SizeCondition(text, tuple(sorted(names.values())), source))
        return list(found.values())


def is_always_true(expression: Any, smallest: int = 2, multiples_of: Mapping[Any, int] = MappingProxyType({})) -> bool:
    """Whether a condition holds at many sizes from ``smallest`` on.

    Sizes are tried because solvers cannot simplify every rounding.

    Args:
        multiples_of: for some symbols a number that divides them.
    """
    symbols = sorted(expression.free_symbols, key=str)
    factors = [multiples_of.get(symbol, 1) for symbol in symbols]
    answers = [
        value_at(
            expression,
            {
                s: f * (smallest + (step * (7 + 4 * i)) % 131)
                for i, (s, f) in enumerate(zip(symbols, factors, strict=True))
            },
        )
        for step in range(131)
    ]
    return all(answer in (True, None) for answer in answers)


def condition_in_words(expression: Any, names: dict[Any, str]) -> str:
    """A sympy condition on sizes in plain words.

    Example:
        >>> import sympy
        >>> s = sympy.Symbol("s", integer=True, positive=True)
        >>> condition_in_words(sympy.Eq(sympy.Mod(s, 4), 0), {s: "x.shape[2]"})
        'x.shape[2] must be a multiple of 4'
    """
    import sympy

    for symbol in expression.free_symbols:
        divisor = _divisor(expression, symbol) if len(expression.free_symbols) == 1 else None
        if divisor is not None:
            return f"{names[symbol]} must be a multiple of {divisor}"
    if not isinstance(expression, sympy.Rel):
        return condition_text(expression, names)
    bound = _bound(expression)
    if bound is not None:
        symbol, relation, number = bound
        return f"{names[symbol]} {_WORDS[relation]} {number}"
    difference = expression.lhs - expression.rhs
    if isinstance(expression, sympy.Eq) and len(expression.free_symbols) == 2 and difference.is_polynomial():
        for symbol in sorted(expression.free_symbols, key=lambda s: names[s]):
            slope = difference.coeff(symbol, 1)
            rest = sympy.expand(difference - slope * symbol)
            if slope in (1, -1) and symbol not in rest.free_symbols:
                return f"{names[symbol]} always equals {_said(-rest / slope, names)}"
    return condition_text(expression, names)


_WORDS = {
    "GreaterThan": "is at least",
    "LessThan": "is at most",
    "StrictGreaterThan": "is more than",
    "StrictLessThan": "is less than",
    "Unequality": "is not",
    "Equality": "==",
}


_TURNED = {
    "GreaterThan": "LessThan",
    "LessThan": "GreaterThan",
    "StrictGreaterThan": "StrictLessThan",
    "StrictLessThan": "StrictGreaterThan",
}


def _bound(expression: Any) -> tuple[Any, str, Any] | None:
    """``(s, relation, number)`` of a condition that is linear in one size."""
    difference, symbols = expression.lhs - expression.rhs, list(expression.free_symbols)
    kind = type(expression).__name__
    if len(symbols) != 1 or kind not in _WORDS or not difference.is_polynomial():
        return None
    slope = difference.coeff(symbols[0], 1)
    rest = difference - slope * symbols[0]
    if not slope.is_Integer or slope == 0 or rest.free_symbols or rest % slope:
        return None
    return symbols[0], _TURNED.get(kind, kind) if slope < 0 else kind, -rest / slope


# divisible by every number up to 8 and by 10, 12, 14, 15, 16: no obstacle to what another size has to be
_ROUND = 1680


def _divisor(expression: Any, symbol: Any) -> int | None:
    """The number that must divide a size to fulfil the condition, found by trying sizes."""
    others = {other: _ROUND for other in expression.free_symbols if other != symbol}
    allowed = [size for size in range(1, 257) if value_at(expression, {**others, symbol: size}) == True]  # noqa: E712
    steps = {later - earlier for earlier, later in itertools.pairwise(allowed)}
    if len(allowed) > 3 and len(steps) == 1:
        step = steps.pop()
        return step if step > 1 and allowed[0] % step == 0 else None
    return None


def _said(expression: Any, names: dict[Any, str]) -> str:
    text = str(expression)
    for symbol in sorted(names, key=lambda symbol: -len(str(symbol))):
        text = re.sub(rf"\b{re.escape(str(symbol))}\b", names[symbol], text)
    return text
