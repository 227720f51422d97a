"""Verification results in few lines: axes with equal results are one line, and each reason is printed once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from prepbench.capture.sizes.axis import Axis, counted_places, pattern_of
from prepbench.capture.sizes.conditions import SizeCondition


class AxisFindings(Protocol):
    """The findings on one axis."""

    @property
    def path(self) -> str:
        """The path of the argument."""

    @property
    def dim(self) -> int:
        """The dim."""

    @property
    def symbol(self) -> str:
        """The name of the size."""

    @property
    def conditions(self) -> tuple[SizeCondition, ...]:
        """The conditions of the graph on the axis."""


A = TypeVar("A", bound=AxisFindings)


def axes_lines(axes: Iterable[A], text: Callable[[A], str]) -> list[str]:
    """Return one line for all axes of a symbol with the same ``text``, and below it each distinct reason."""
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
    """Return a condition with symbols in place of the dims of tensors in objects, which often agree.

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
    """Return ``"-total + past + new <= 0"`` as ``"past + new <= total"``; other conditions unchanged."""
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
    """Return whether both sides of a condition are the same, because sizes of one symbol always agree."""
    parts = _RELATION.split(text)
    return len(parts) == 3 and parts[0] == parts[2] and parts[1] in ("==", "<=", ">=", "always equals")


def condition_lines(conditions: Sequence[SizeCondition]) -> list[str]:
    """Return each reason once; those of one line of code that differ in indices only are one, with a count."""
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
    """Return the words of a condition without indices, sorted, because torch reorders sums and comparisons."""
    return tuple(sorted(pattern_of(text).split()))


def dynamic_text(axes: Iterable[Axis]) -> str:
    """Return the dynamic axes by symbol, e.g. ``"batch (x.shape[0]), past (past[*].key.shape[2] (6))"``."""
    places: dict[str, list[str]] = {}
    for axis in axes:
        places.setdefault(axis.symbol, []).append(f"{axis.path}.shape[{axis.dim}]")
    every = [path for paths in places.values() for path in paths]
    texts = [f"{', '.join(counted_places(paths, every))} ({symbol})" for symbol, paths in places.items()]
    return ("; " if any(len(paths) > 1 for paths in places.values()) else ", ").join(texts)
