"""Rules that give an unknown size as a function of known ones, learned from examples.

A rule explains every example. Two examples fit many formulas, so the cheapest one is taken: small constants cost less
than large ones, one size less than two, and the caller may give sizes a cost of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import torch

Column = tuple[int, ...]
"""The values of one size in all examples."""

Compute = Callable[[Sequence[Any]], Any]

LARGEST_DIVISOR = 64


@dataclass(frozen=True)
class SizeRule:
    """One formula: ``compute`` takes the known sizes, which may be symbolic; ``text`` reads ``"2*x.shape[0]+1"``.

    ``equal`` has the known sizes that a constant is equal to, which it follows where they are symbolic; it is None for
    what is no constant.
    """

    text: str
    compute: Compute = field(compare=False, repr=False)
    equal: tuple[int, ...] | None = None

    def allows(self, size: int, known: Sequence[int]) -> bool:
        """Whether a size is what the rule says for these known sizes."""
        return size == self.compute(known) or any(size == known[index] for index in self.equal or ())


@dataclass(frozen=True)
class Known:
    """A known size: its name, its value in each example, and what it costs to use it."""

    name: str
    values: Column
    cost: float = 0.0

    @property
    def varies(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class _Term:
    """One size, or a product of sizes, that varied."""

    name: str
    values: Column
    cost: float
    compute: Compute


def learn_rule(values: Column, known: Sequence[Known]) -> SizeRule | None:
    """The simplest rule for ``values`` over ``known`` sizes, or ``None`` when nothing explains them.

    Example:
        >>> learn_rule((4, 10), [Known("x.shape[0]", (2, 5))]).text
        '2*x.shape[0]'
    """
    if len(set(values)) == 1:
        return _constant(values[0], known)
    sizes = _distinct(known)
    candidates = [
        *_linear(values, [*sizes, *_products(sizes)]),
        *_divided(values, sizes),
        *_of_two(values, sizes),
        *_patches(values, sizes),
    ]
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _constant(value: int, known: Sequence[Known]) -> SizeRule:
    equal = [index for index, size in enumerate(known) if not size.varies and size.values[0] == value]

    def compute(sizes: Sequence[Any]) -> Any:
        # an input size that never varied in the examples but is symbolic now is what the output follows
        symbolic = [sizes[index] for index in equal if isinstance(sizes[index], torch.SymInt)]
        return symbolic[0] if symbolic else value

    return SizeRule(str(value), compute, tuple(equal))


def _distinct(known: Sequence[Known]) -> list[_Term]:
    """One term for all sizes that always vary together: the cheapest of them."""
    best: dict[Column, _Term] = {}
    for index, size in enumerate(known):
        if size.varies and (size.values not in best or size.cost < best[size.values].cost):
            best[size.values] = _Term(size.name, size.values, size.cost, lambda sizes, i=index: sizes[i])  # type: ignore[misc]
    return list(best.values())


def _products(sizes: Sequence[_Term]) -> Iterator[_Term]:
    for degree in (2, 3):
        for chosen in combinations_with_replacement(sizes, degree):
            values = tuple(math.prod(row) for row in zip(*(term.values for term in chosen), strict=True))
            name = "*".join(term.name for term in chosen)
            cost = 2.5 * (degree - 1) + sum(term.cost for term in chosen)
            yield _Term(name, values, cost, lambda known, c=chosen: _multiply([term.compute(known) for term in c]))  # type: ignore[misc]


def _multiply(values: Sequence[Any]) -> Any:
    # math.prod starts with the int 1, which a symbolic size does not need
    result = values[0]
    for value in values[1:]:
        result = result * value
    return result


Candidates = Iterator[tuple[float, SizeRule]]


def _linear(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``a*x + b`` with whole ``a``, and ``p*x//q``."""
    for term in terms:
        slope = _slope(values, term.values)
        if slope is None:
            continue
        if slope.denominator == 1:
            a, b = slope.numerator, values[0] - slope.numerator * term.values[0]
            if all(a * x + b == y for x, y in zip(term.values, values, strict=True)):
                text = _factor(a) + term.name + (f"{b:+d}" if b else "")
                cost = term.cost + math.log2(a) + (1 + math.log2(1 + abs(b)) if b else 0)
                yield cost, SizeRule(text, lambda sizes, t=term, a=a, b=b: a * t.compute(sizes) + b)  # type: ignore[misc]
        elif all(slope * x == y for x, y in zip(term.values, values, strict=True)):
            p, q = slope.numerator, slope.denominator
            cost = term.cost + 0.5 + math.log2(p) + math.log2(q) / 4
            text = f"{_factor(p)}{term.name}//{q}"
            yield cost, SizeRule(text, lambda sizes, t=term, p=p, q=q: p * t.compute(sizes) // q)  # type: ignore[misc]


def _divided(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``(x + c) // q``: convolutions and pooling with a stride."""
    for term in terms:
        for q in range(2, LARGEST_DIVISOR + 1):
            c = _shift_for(values, term.values, q)
            if c is not None:
                text = f"({term.name}{c:+d})//{q}" if c else f"{term.name}//{q}"
                cost = term.cost + 1.5 + math.log2(q) / 4 + math.log2(1 + abs(c)) / 2
                yield cost, SizeRule(text, lambda sizes, t=term, c=c, q=q: (t.compute(sizes) + c) // q)  # type: ignore[misc]


def _of_two(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``x + y + b`` (concatenation) and ``max(x, y)`` (broadcasting)."""
    for one, two in combinations_with_replacement(terms, 2):
        cost = 2 + one.cost + two.cost
        shifts = {value - x - y for value, x, y in zip(values, one.values, two.values, strict=True)}
        if one is not two and len(shifts) == 1:
            b = shifts.pop()
            text = f"{one.name}+{two.name}" + (f"{b:+d}" if b else "")
            yield (
                cost + math.log2(1 + abs(b)),
                SizeRule(text, lambda sizes, x=one, y=two, b=b: x.compute(sizes) + y.compute(sizes) + b),  # type: ignore[misc]
            )
        if tuple(map(max, one.values, two.values)) == values:
            text = f"max({one.name}, {two.name})"
            yield (
                cost + 1,
                SizeRule(text, lambda sizes, x=one, y=two: torch.sym_max(x.compute(sizes), y.compute(sizes))),  # type: ignore[misc]
            )


def _patches(values: Column, terms: Sequence[_Term]) -> Candidates:
    """``f * ((x + c) // q) * ((y + c) // q) + b``: patches of an image, with a class token."""
    for one, two in combinations_with_replacement(terms, 2):
        for q in range(2, LARGEST_DIVISOR + 1):
            for c in (0, q - 1):
                products = tuple(((x + c) // q) * ((y + c) // q) for x, y in zip(one.values, two.values, strict=True))
                for linear_cost, rule in _linear(values, [_Term("p", products, 0, lambda sizes: sizes[0])]):
                    name = f"(({one.name}+{c})//{q})*(({two.name}+{c})//{q})"
                    yield (
                        linear_cost + 4 + one.cost + two.cost + math.log2(q) / 4 + (0.5 if c else 0),
                        SizeRule(
                            rule.text.replace("p", name),
                            lambda sizes, x=one, y=two, q=q, c=c, r=rule: r.compute(  # type: ignore[misc]
                                [((x.compute(sizes) + c) // q) * ((y.compute(sizes) + c) // q)]
                            ),
                        ),
                    )


def _slope(values: Column, others: Column) -> Fraction | None:
    """The positive slope of the line through the first two examples that differ."""
    for value, other in zip(values[1:], others[1:], strict=True):
        if other != others[0]:
            slope = Fraction(value - values[0], other - others[0])
            return slope if slope > 0 else None
    return None


def _shift_for(values: Column, others: Column, divisor: int) -> int | None:
    """The ``c`` nearest to zero with ``(other + c) // divisor == value`` for all examples."""
    low = max(value * divisor - other for value, other in zip(values, others, strict=True))
    high = min(value * divisor + divisor - 1 - other for value, other in zip(values, others, strict=True))
    if low > high:
        return None
    return 0 if low <= 0 <= high else low if low > 0 else high


def _factor(factor: int) -> str:
    return "" if factor == 1 else f"{factor}*"
