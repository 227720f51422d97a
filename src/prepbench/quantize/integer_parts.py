"""The parts of an integer program: limits, borders, and what is shared; and these by units of items chosen together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limit:
    """A sum over all items that must stay within a limit.

    Attributes:
        values: ``values[item][choice]``; infinite where a choice is impossible.
        at_most: the limit, in the unit of the values.
    """

    values: Sequence[Sequence[float]]
    at_most: float


@dataclass(frozen=True)
class Border:
    """What the choices of two items cost together, beyond what each costs.

    Attributes:
        one: an item.
        other: another item.
        cost: ``cost[choice of one][choice of other]``, in the unit of the costs; infinite where a pair is impossible.
        values: what pairs add to limits, in the same form, by the index of the limit.
    """

    one: int
    other: int
    cost: Sequence[Sequence[float]]
    values: Mapping[int, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What is there once, as soon as one of several items takes one of some choices.

    Attributes:
        needed_by: these choices, by item.
        values: what it adds to each limit, in their order.
        cost: what it adds to the costs.
    """

    needed_by: Mapping[int, Collection[int]]
    values: Sequence[float]
    cost: float = 0.0


@dataclass(frozen=True)
class Bound:
    """A limit in units, with what pairs of neighbours add to it."""

    values: list[list[float]]
    at_most: float
    pairs: dict[tuple[int, int], dict[tuple[int, int], float]]


def bound_of(at: int, limit: Limit, borders: Sequence[Border], units: Sequence[int]) -> Bound:
    values = added(limit.values, units)
    return Bound(values, limit.at_most, pairs_of(borders, units, values, lambda border: border.values.get(at)))


def units_of(count: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """The unit of each item; groups that share an item are one unit."""
    leader = list(range(count))

    def find(item: int) -> int:
        while leader[item] != item:
            item = leader[item]
        return item

    for group in groups:
        for item in group:
            first, second = sorted((find(group[0]), find(item)))
            leader[second] = first
    numbers = {item: number for number, item in enumerate(dict.fromkeys(map(find, range(count))))}
    return [numbers[find(item)] for item in range(count)]


def added(values: Sequence[Sequence[float]], units: Sequence[int]) -> list[list[float]]:
    """The sum of the values of each unit's items, by choice."""
    result: dict[int, list[float]] = {}
    for unit, each in zip(units, values, strict=True):
        result[unit] = [a + b for a, b in zip(result[unit], each, strict=True)] if unit in result else list(each)
    return [result[unit] for unit in range(len(result))]


def pairs_of(
    borders: Sequence[Border],
    units: Sequence[int],
    alone: list[list[float]],
    of: Callable[[Border], Sequence[Sequence[float]] | None],
) -> dict[tuple[int, int], dict[tuple[int, int], float]]:
    """What pairs of choices add, by pair of units; within a unit it is added to what the unit takes alone."""
    result: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for border in borders:
        one, other, table = units[border.one], units[border.other], of(border)
        if table is None:
            continue
        if one == other:
            alone[one] = [value + table[choice][choice] for choice, value in enumerate(alone[one])]
            continue
        pairs = result.setdefault((min(one, other), max(one, other)), {})
        for choice, row in enumerate(table):
            for second, value in enumerate(row):
                pair = (choice, second) if one < other else (second, choice)
                pairs[pair] = pairs.get(pair, 0.0) + value
    return result
