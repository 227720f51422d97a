"""The conditions of a captured graph on its input sizes, in words, with the line of the model that made each."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, MappingProxyType, ModuleType
from typing import Any

import torch

from prepbench._torch_compat.sizes import SizeCallback, asking_python
from prepbench.capture.sizes.dynamic_axes import condition_text, size_key, value_at
from prepbench.capture.sizes.size_formulas import UNDEFINED, formula_text, size_function
from prepbench.document.model import SourceLine
from prepbench.objects.parts import is_user_code
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
        formula: the condition, over ``s0``, ``s1``, ... for ``sizes``, as :mod:`size_formulas` reads it; "" where
            only the words are known.
        places: for each of ``sizes`` the number of the leaf of a call, and the dim.
        is_own: whether the model's own Python asked, so that it goes another way where the condition does not hold.
            What torch asks may make no difference to the result.
    """

    text: str
    sizes: tuple[str, ...]
    source: SourceLine | None
    formula: str = ""
    places: tuple[tuple[int, int], ...] = ()
    is_own: bool = True

    def __str__(self) -> str:
        return f"{self.text} ({self.source.file}:{self.source.line}: {self.source.code})" if self.source else self.text

    def holds(self, sizes: Sequence[int]) -> bool | None:
        """Return whether it holds for these sizes; None if it is undefined, as in a division by zero."""
        try:
            return bool(size_function(self.formula, len(self.sizes))(*sizes))
        except UNDEFINED:
            return None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, without the fields that decide whether the condition is kept."""
        source = None if self.source is None else [self.source.file, self.source.line, self.source.code]
        return {
            "text": self.text,
            "sizes": list(self.sizes),
            "source": source,
            "formula": self.formula,
            "places": [list(place) for place in self.places],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SizeCondition:
        """Read the data that :meth:`to_dict` wrote."""
        source = None if data["source"] is None else SourceLine(*data["source"])
        places = tuple((leaf, dim) for leaf, dim in data["places"])
        return cls(data["text"], tuple(data["sizes"]), source, data["formula"], places)


@dataclass(frozen=True)
class Asked:
    """A sympy condition that tracing assumed, the size behind each of its symbols in order, and its origin."""

    expression: Any
    names: Mapping[Any, str]
    source: SourceLine | None
    is_own: bool

    def condition(self, places: Mapping[tuple[str, ...], tuple[int, int]]) -> SizeCondition:
        """Return the condition with its formula, still without words.

        Args:
            places: of the sizes of inputs, by the words of their names.
        """
        symbols, sizes = list(self.names), tuple(self.names.values())
        where = tuple(places[size_key(size)] for size in sizes)
        formula = formula_text(self.expression, symbols) or ""
        return SizeCondition("", sizes, self.source, formula, where, self.is_own)

    @property
    def words(self) -> str:
        """The condition in plain words."""
        return condition_in_words(self.expression, dict(self.names))


class SizeConditions:
    """Collects conditions while a model is exported."""

    def __init__(self) -> None:
        self._noted: list[tuple[Any, dict[Any, str], SourceLine | None]] = []
        self._own: list[bool] = []
        self._numbers: list[tuple[Any, dict[Any, str], SourceLine | None]] = []
        self._conditions: list[SizeCondition] | None = None

    def __deepcopy__(self, memo: Any) -> SizeConditions:
        return self

    def note(self, expression: Any, names: dict[Any, str]) -> None:
        """Record a sympy condition that tracing has just assumed."""
        frame = sys._getframe(1)
        self.add(expression, names, source_of_frame(frame), is_own=_asks_itself(frame))

    def add(self, expression: Any, names: dict[Any, str], source: SourceLine | None, *, is_own: bool) -> None:
        """Record a sympy condition from another source."""
        self._noted.append((expression, names, source))
        self._own.append(is_own)

    def note_text(self, expression: Any, names: dict[Any, str], frame: FrameType) -> None:
        """Record that code made a text of a size: tracing does not see what it compares that text with.

        So the size may have to differ from each number in the texts that this code knows.
        """
        if is_user_code(frame.f_code) and expression.free_symbols:
            self.note_numbers(expression, names, frame, _numbers_in_texts(frame))

    def note_numbers(self, expression: Any, names: dict[Any, str], frame: FrameType, numbers: Collection[int]) -> None:
        """Record that a size may have to differ from numbers, as far as that makes a difference."""
        import sympy

        source = source_of_frame(frame)
        self._numbers += [(sympy.Ne(expression, number), names, source) for number in sorted(numbers)]

    def asked(self) -> list[Asked]:
        """Return all conditions on input sizes, each once; the model's own first."""
        found: dict[str, Asked] = {}
        noted = sorted(zip(self._noted, self._own, strict=True), key=lambda one: not one[1])
        noted += [(one, False) for one in self._numbers]
        for (expression, names, source), is_own in noted:
            symbols = sorted(expression.free_symbols, key=lambda symbol: names[symbol])
            if symbols:
                key = f"{expression}, {[names[symbol] for symbol in symbols]}"
                found.setdefault(key, Asked(expression, {s: names[s] for s in symbols}, source, is_own))
        return list(found.values())

    def in_words(self) -> list[SizeCondition]:
        """Return the non-trivial conditions in words, each once, in the order of tracing."""
        if self._conditions is None:
            self._conditions = self._described()
        return self._conditions

    def broken_by(self, name: str, size: int) -> list[SizeCondition]:
        """Return the conditions on the size ``name`` alone, e.g. ``"x.shape[0]"``, that this size breaks."""
        found: dict[str, SizeCondition] = {}
        for expression, names, source in self._noted:
            if {size_key(other) for other in names.values()} != {size_key(name)}:
                continue
            if value_at(expression, dict.fromkeys(names, size)) == False:  # noqa: E712 - sympy's
                text = condition_in_words(expression, names)
                found.setdefault(text, SizeCondition(text, (name,), source))
        return list(found.values())

    def limits(self, symbol: Any, size: int) -> bool:
        """Return whether some size breaks a condition on this symbol alone."""
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
            # most other conditions follow from the divisors
            if not is_always_true(expression, multiples_of=divisors):
                text = condition_in_words(expression, names)
                found.setdefault(text, SizeCondition(text, tuple(sorted(names.values())), source))
        return list(found.values())


_BOUND = re.compile(r"(.+) (?:is|must be) (at least|more than|at most|less than) (\d+)")
_EXCEPTION = re.compile(r"(.+) (?:is not|must not be) (\d+)")


def strongest(conditions: Iterable[SizeCondition]) -> list[SizeCondition]:
    """Return conditions without those on one size that follow from another one on it: of several bounds the narrowest,
    and no exceptions outside of it.

    Example:
        >>> texts = ["n must be more than 2", "n must be at least 5", "n must not be 4", "n must not be 9"]
        >>> [one.text for one in strongest(SizeCondition(text, ("n",), None) for text in texts)]
        ['n must be at least 5', 'n must not be 9']
    """
    given = list(conditions)
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for condition in given:
        if match := _BOUND.fullmatch(condition.text):
            size, number = match[1], int(match[3])
            if match[2] in ("at least", "more than"):
                lowest[size] = max(lowest.get(size, 0), number + (match[2] == "more than"))
            else:
                highest[size] = min(highest.get(size, sys.maxsize), number - (match[2] == "less than"))
    told: set[tuple[str, bool]] = set()

    def says_more(condition: SizeCondition) -> bool:
        if match := _EXCEPTION.fullmatch(condition.text):
            return lowest.get(match[1], 0) <= int(match[2]) <= highest.get(match[1], sys.maxsize)
        if not (match := _BOUND.fullmatch(condition.text)):
            return True
        size, number, is_least = match[1], int(match[3]), match[2] in ("at least", "more than")
        own = number + (match[2] == "more than") - (match[2] == "less than")
        if own != (lowest if is_least else highest)[size] or (size, is_least) in told:
            return False
        told.add((size, is_least))
        return True

    return [condition for condition in given if says_more(condition)]


_MOST_NUMBERS = 8


def _numbers_in_texts(frame: FrameType) -> list[int]:
    """Return numbers in the texts of a function: its constants, and keys and entries of containers at hand."""
    texts: list[str] = []
    rest: list[Any] = [frame.f_code]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, CodeType):
            rest += value.co_consts
        elif isinstance(value, tuple | frozenset):
            rest += value
    held = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in frame.f_code.co_names)]
    held = [value for value in held if not isinstance(value, ModuleType | type)]
    held += [part for value in held if hasattr(value, "__dict__") for part in list(vars(value).values())]
    held += [part for value in held if isinstance(value, dict) for part in itertools.islice(value.values(), 100)]
    for value in held:
        if isinstance(value, dict | set | list | tuple | torch.nn.ModuleDict | torch.nn.ParameterDict):
            texts += [entry for entry in itertools.islice(value, _MOST_NUMBERS) if isinstance(entry, str)]
    numbers = {int(digits) for text in texts for digits in re.findall(r"(?<!\d)\d{1,5}(?!\d)", text)}
    return sorted(numbers)[:_MOST_NUMBERS]


def if_own(question: SizeCallback) -> SizeCallback:
    """Call ``question`` for the guards of the model's own Python during tracing, and for no others."""

    def asked(expression: Any, names: dict[Any, str]) -> None:
        if _asks_itself(sys._getframe(1)):
            question(expression, names)

    return asked


def _asks_itself(frame: FrameType) -> bool:
    asking = asking_python(frame)
    return asking is not None and is_user_code(asking.f_code)


def is_always_true(expression: Any, smallest: int = 2, multiples_of: Mapping[Any, int] = MappingProxyType({})) -> bool:
    """Return whether a condition holds at many sizes from ``smallest`` on.

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
    """Return a sympy condition on sizes in plain words.

    Example:
        >>> import sympy
        >>> s = sympy.Symbol("s", integer=True, positive=True)
        >>> condition_in_words(sympy.Eq(sympy.Mod(s, 4), 0), {s: "x.shape[2]"})
        'x.shape[2] must be a multiple of 4'
    """
    import sympy

    if isinstance(expression, sympy.Rel) and (bound := _bound(expression)) is not None:
        symbol, relation, number = bound
        return f"{names[symbol]} {_WORDS[relation]} {number}"
    for symbol in expression.free_symbols:
        divisor = _divisor(expression, symbol) if len(expression.free_symbols) == 1 else None
        if divisor is not None:
            return f"{names[symbol]} must be a multiple of {divisor}"
    if not isinstance(expression, sympy.Rel):
        return condition_text(expression, names)
    if (remainder := _remainder(expression, names)) is not None:
        return remainder
    if len(expression.free_symbols) == 1 and (limit := _limit(expression)) is not None:
        return f"{names[next(iter(expression.free_symbols))]} {limit}"
    difference = expression.lhs - expression.rhs
    if isinstance(expression, sympy.Eq) and len(expression.free_symbols) == 2 and difference.is_polynomial():
        for symbol in sorted(expression.free_symbols, key=lambda s: names[s]):
            slope = difference.coeff(symbol, 1)
            rest = sympy.expand(difference - slope * symbol)
            if slope in (1, -1) and symbol not in rest.free_symbols:
                return f"{names[symbol]} always equals {_said(-rest / slope, names)}"
    return _compared(difference, type(expression).__name__, names) or condition_text(expression, names)


def _compared(difference: Any, relation: str, names: dict[Any, str]) -> str | None:
    """Return the comparison of two sums of sizes, each with what is added on its side; None for other terms."""
    import sympy

    terms = sympy.expand(difference).as_coefficients_dict()
    if relation not in _COMPARED or not all(
        factor.is_Integer and (term.is_Symbol or term == 1) for term, factor in terms.items()
    ):
        return None
    # the constant where it is positive; without sizes on the left, the sides change places
    left = sympy.Add(*(factor * term for term, factor in terms.items() if factor > 0))
    right = left - sympy.expand(difference)
    if not left.free_symbols:
        left, right, relation = right, left, _TURNED.get(relation, relation)
    return f"{_said(left, names)} {_COMPARED[relation]} {_said(right, names)}" if left.free_symbols else None


_WORDS = {
    "GreaterThan": "is at least",
    "LessThan": "is at most",
    "StrictGreaterThan": "is more than",
    "StrictLessThan": "is less than",
    "Unequality": "is not",
    "Equality": "==",
}


_COMPARED = _WORDS | {"Equality": "always equals"}


_TURNED = {
    "GreaterThan": "LessThan",
    "LessThan": "GreaterThan",
    "StrictGreaterThan": "StrictLessThan",
    "StrictLessThan": "StrictGreaterThan",
}


def _bound(expression: Any) -> tuple[Any, str, Any] | None:
    """Return ``(s, relation, number)`` of a condition that is linear in one size."""
    difference, symbols = expression.lhs - expression.rhs, list(expression.free_symbols)
    kind = type(expression).__name__
    if len(symbols) != 1 or kind not in _WORDS or not difference.is_polynomial():
        return None
    slope = difference.coeff(symbols[0], 1)
    rest = difference - slope * symbols[0]
    if not slope.is_Integer or slope == 0 or rest.free_symbols or rest % slope:
        return None
    return symbols[0], _TURNED.get(kind, kind) if slope < 0 else kind, -rest / slope


def _limit(expression: Any) -> str | None:
    """Return the sizes that meet a condition on one size, e.g. ``"is at least 5"`` or ``"is 4, 7 or at least 10"``.

    None where they are more than a few ranges.
    """
    (symbol,) = expression.free_symbols
    holds = _at_sizes(expression, symbol, range(2, _ROUND))
    if not holds or None in holds:
        return None
    if all(holds):
        return "is at least 2" if _at_sizes(expression, symbol, range(1, 2)) == [False] else None
    wrong = [size for size, is_met in enumerate(holds, 2) if not is_met]
    if len(wrong) == 1 and 2 < wrong[0] < _ROUND - 1:
        return f"is not {wrong[0]}"
    grouped = itertools.groupby(enumerate(holds, 2), key=lambda pair: pair[1])
    spans = [[size for size, _ in span] for is_met, span in grouped if is_met]
    if not 0 < len(spans) <= _MOST_RANGES:
        return None
    *before, last = [text for span in spans for text in _span_texts(span[0], span[-1])]
    return f"is {', '.join(before)} or {last}" if before else f"is {last}"


def _span_texts(first: int, last: int) -> list[str]:
    if first == 2:
        return [f"at most {last}"]
    if last == _ROUND - 1:
        return [f"at least {first}"]
    return [f"{first} to {last}"] if last > first + 1 else list(map(str, range(first, last + 1)))


_MOST_RANGES = 4
# divisible by every number up to 8 and by 10, 12, 14, 15, 16, so that divisibility conditions on other sizes hold
_ROUND = 1680


def _remainder(expression: Any, names: dict[Any, str]) -> str | None:
    """A condition on what is left when a size is divided, in words."""
    import sympy

    if not isinstance(expression, sympy.Eq | sympy.Ne):
        return None
    for division, left in (expression.args, expression.args[::-1]):
        if type(division).__name__ not in ("Mod", "PythonMod"):
            continue
        size, divisor = (_said(part, names) for part in division.args)
        negation = "" if isinstance(expression, sympy.Eq) else "not "
        if left == 0:
            return f"{size} must {negation}be a multiple of {divisor}"
        return f"{size} must {negation}leave {_said(left, names)} when it is divided by {divisor}"
    return None


def _at_sizes(expression: Any, symbol: Any, sizes: range) -> list[bool | None]:
    """Return whether each size of a symbol meets a condition; None where it is undefined, empty without a formula."""
    formula = formula_text(expression, [symbol])
    if formula is None:
        return []
    holds = size_function(formula, 1)

    def at(size: int) -> bool | None:
        try:
            return bool(holds(size))
        except UNDEFINED:
            return None

    return list(map(at, sizes))


def _divisor(expression: Any, symbol: Any) -> int | None:
    """Return the number that must divide a size to meet the condition, found by trying sizes."""
    alone = value_at(expression, {other: _ROUND for other in expression.free_symbols if other != symbol})
    if alone is None or symbol not in alone.free_symbols:
        return None
    allowed = [size for size, is_met in enumerate(_at_sizes(alone, symbol, range(1, 257)), 1) if is_met]
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
