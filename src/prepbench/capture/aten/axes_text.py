"""What verification found, in few lines: axes that behave alike are one line, and each reason is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    for (symbol, said), members in alike.items():
        places = ", ".join(counted_places(f"{axis.path}.shape[{axis.dim}]" for axis in members))
        lines.append(f"  {places} ({symbol}): {said}")
        reasons = condition_lines([condition for axis in members for condition in axis.conditions])
        lines += [f"    {reason}" for reason in reasons if reason not in told]
        told.update(reasons)
    return lines


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
    texts = [f"{', '.join(counted_places(paths))} ({symbol})" for symbol, paths in places.items()]
    return ("; " if any(len(paths) > 1 for paths in places.values()) else ", ").join(texts)
