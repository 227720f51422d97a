"""What the choices of two layers do together, for the integer program: conversions, and channels that go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from prepbench.quantize.integer_program import Border
from prepbench.search.tables import Tables

Pairs = list[list[float]]


def borders_of(tables: Tables, goal: str, limited: Mapping[str, int]) -> list[Border]:
    """The borders between layers.

    Args:
        tables: what is known.
        goal: what is to be small: ``"latency"``, ``"size"`` or ``"drop"``.
        limited: what is within a limit, with the place of the limit.
    """
    place = {fqn: at for at, fqn in enumerate(tables.layers)}

    def border(one: str, other: str, adds: Mapping[str, Pairs]) -> Border:
        cost = adds.get(goal) or _pairs(tables, lambda first, second: 0.0)
        values = {at: adds[name] for name, at in limited.items() if name in adds}
        return Border(place[one], place[other], cost, values)

    found = [
        border(
            each.one,
            each.other,
            {"latency": _pairs(tables, lambda one, other: tables.times.total(tables.conversion(each, one, other)))},  # noqa: B023
        )
        for each in tables.neighbours
        if each.one != each.other and "latency" in (goal, *limited)
    ]
    for reading in tables.shrinking.readings:
        adds = {}
        for name, known in (("latency", tables.times), ("size", tables.sizes)):
            own = {choice: known.size(tables.part(reading.reader, choice)) for choice in tables.choices}
            adds[name] = _pairs(tables, lambda one, other: own[other] * reading.more.get((one, other), 0.0))  # noqa: B023
        found.append(border(reading.maker, reading.reader, adds))
    for group in tables.shrinking.together:
        members = sorted(group, key=place.__getitem__)
        for first, second in itertools.pairwise(members):
            cost = _pairs(tables, lambda one, other: 0.0 if tables.shrinking.fits(one, other) else math.inf)
            found.append(Border(place[first], place[second], cost))
    return found


def _pairs(tables: Tables, of: Callable[[str, str], float]) -> Pairs:
    return [[of(one, other) for other in tables.choices] for one in tables.choices]
