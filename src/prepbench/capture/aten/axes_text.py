"""What verification found, in few lines: axes that behave alike are one line, and each reason is said once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from prepbench.capture.sizes.axis import Axis, counted_places, pattern_of
from prepbench.capture.sizes.conditions import SizeCondition


class AxisFindings(Protocol):
    """What is said about one axis."""

    @property
    def path(self) -> str:
        """The argument."""

    @property
    def dim(self) -> int:
        """The dim."""

    @property
    def symbol(self) -> str:
        """The name of the size."""

    @property
    def conditions(self) -> tuple[SizeCondition, ...]:
        """What the graph asks of it."""


A = TypeVar("A", bound=AxisFindings)


def axes_lines(axes: Iterable[A], text: Callable[[A], str]) -> list[str]:
    """A line for all axes of one symbol about which ``text`` says the same, and below it each distinct reason."""
    alike: dict[tuple[str, str], list[A]] = {}
    for axis in axes:
        alike.setdefault((axis.symbol, text(axis)), []).append(axis)
    lines: list[str] = []
    told: set[str] = set()
    places_of = {f"{axis.path}.shape[{axis.dim}]": axis.symbol for members in alike.values() for axis in members}
    for (symbol, said), members in alike.items():
        places = ", ".join(counted_places((f"{axis.path}.shape[{axis.dim}]" for axis in members), places_of))
        lines.append(f"  {places} ({symbol}): {said}")
        asked = [condition for axis in members for condition in axis.conditions]
        reasons = condition_lines(list(_told_by_role(asked, places_of, is_fulfilled=said.startswith("holds"))))
        lines += [f"    {reason}" for reason in reasons if reason not in told]
        told.update(reasons)
    return lines


def _told_by_role(
    conditions: Iterable[SizeCondition], symbols: Mapping[str, str], *, is_fulfilled: bool
) -> Iterator[SizeCondition]:
    for condition in conditions:
        told = by_role(condition, symbols)
        if not _says_nothing(told.text):
            yield told
        elif not is_fulfilled:
            yield condition


def by_role(condition: SizeCondition, symbols: Mapping[str, str]) -> SizeCondition:
    """A condition with symbols in place of the dims of tensors in objects, which many have alike.

    Args:
        condition: on sizes, e.g. ``past[0].key.shape[2] + x.shape[1] <= mask.shape[1]``.
        symbols: by size, e.g. ``{"past[0].key.shape[2]": "past"}``.
    """
    known = [place for place in symbols if place in condition.text and symbols[place]]
    if not any(re.search(r"[.\[]", place.rpartition(".shape")[0]) for place in known):
        return condition
    text = condition.text
    for place in sorted(known, key=len, reverse=True):
        text = text.replace(place, symbols[place])
    return replace(condition, text=_with_plain_sides(text))


_SUM = re.compile(r"-?\w+( [+-] \w+)*")
_RELATION = re.compile(r" (<=|>=|<|>|==|always equals) ")


def _with_plain_sides(text: str) -> str:
    """``"-total + past + new <= 0"`` as ``"past + new <= total"``; what is no sum stays as it is."""
    parts = _RELATION.split(text)
    if len(parts) != 3 or not (_SUM.fullmatch(parts[0]) and _SUM.fullmatch(parts[2])):
        return text
    left, right = _terms(parts[0]), _terms(parts[2])
    one = [*(term for sign, term in left if sign == "+"), *(term for sign, term in right if sign == "-")]
    other = [*(term for sign, term in right if sign == "+"), *(term for sign, term in left if sign == "-")]
    one, other = (sorted(term for term in side if term != "0") or ["0"] for side in (one, other))
    return f"{' + '.join(one)} {parts[1]} {' + '.join(other)}"


def _terms(side: str) -> list[tuple[str, str]]:
    return [(sign or "+", term) for sign, term in re.findall(r"([+-]?) ?(\w+)", side)]


def _says_nothing(text: str) -> bool:
    """Whether both sides of a condition are the same: sizes of one symbol always agree."""
    parts = _RELATION.split(text)
    return len(parts) == 3 and parts[0] == parts[2] and parts[1] in ("==", "<=", ">=", "always equals")


def condition_lines(conditions: Sequence[SizeCondition]) -> list[str]:
    """Each reason once; those that one line of code gave for places that differ in indices are one, with a count."""
    alike: dict[object, list[SizeCondition]] = {}
    for condition in dict.fromkeys(conditions):
        alike.setdefault((condition.source, _shape_of(condition.text)), []).append(condition)
    lines = []
    for first, *others in alike.values():
        if others:
            text = str(first).replace(first.text, pattern_of(first.text), 1)
            lines.append(f"{text}, {1 + len(others)} times")
        else:
            lines.append(str(first))
    return lines


def _shape_of(text: str) -> tuple[str, ...]:
    """The words of a condition without indices, in an order of their own: torch turns sums and comparisons round."""
    return tuple(sorted(pattern_of(text).split()))


def dynamic_text(axes: Iterable[Axis]) -> str:
    """The dynamic axes by symbol, e.g. ``"batch (x.shape[0]), past (past[*].key.shape[2] (6))"``."""
    places: dict[str, list[str]] = {}
    for axis in axes:
        places.setdefault(axis.symbol, []).append(f"{axis.path}.shape[{axis.dim}]")
    every = [path for paths in places.values() for path in paths]
    texts = [f"{', '.join(counted_places(paths, every))} ({symbol})" for symbol, paths in places.items()]
    return ("; " if any(len(paths) > 1 for paths in places.values()) else ", ").join(texts)
