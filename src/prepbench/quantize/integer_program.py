"""Choose one option for each layer at the least cost within limits, as an integer program."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# how far a sum may be above its limit, relative to the limit: sums are rounded
_SLACK = 1e-9
# HiGHS stops at an absolute gap of 1e-6 and accepts rows that are exceeded by 1e-6 (its options mip_abs_gap and
# mip_feasibility_tolerance, which scipy.optimize.milp does not pass on), so costs and limits are scaled to that
_LARGEST_COST = 1e4
_TIGHTENED = 5


def cheapest(
    costs: Sequence[Sequence[float]],
    limits: Sequence[Limit] = (),
    borders: Sequence[Border] = (),
    groups: Sequence[Sequence[int]] = (),
    shared: Sequence[Shared] = (),
    *,
    seconds: float = 20.0,
) -> tuple[int, ...] | None:
    """Choose an option for each item with the least sum of costs that keeps all limits.

    Solved exactly by HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018), which needs
    milliseconds for some hundred layers with a few choices each. The same arguments give the same choices.

    Args:
        costs: ``costs[item][choice]``, in any unit; infinite where a choice is impossible. Items may have different
            numbers of choices.
        limits: sums that must stay within something.
        borders: the costs of pairs of choices, for items that are neighbours.
        groups: items that take the choice of the same index; they have the same number of choices.
        shared: costs that several items have in common, and that count once.
        seconds: after which the best choices found so far are taken.

    Returns:
        The index of the choice for each item; None where no choices keep all limits.

    Raises:
        ValueError: a number is NaN, rows have another length than those of ``costs``, or a limit is minus infinity.
        TimeoutError: nothing was found in time.

    Example:
        >>> cheapest([[0, 5], [0, 3]], [Limit([[2, 0], [2, 0]], at_most=2)])
        (0, 1)
    """
    count = len(costs)
    if shared:
        costs, limits, borders = _with_shared(costs, limits, borders, shared)
    _check(costs, limits, borders, groups)
    program = _Program(costs, limits, borders, units_of(len(costs), groups))
    if not program.discard_impossible():
        return None
    found = program.cheapest_alone()
    found = program.solve(seconds) if found is None else found
    return None if found is None else tuple(found[unit] for unit in program.units[:count])


def _with_shared(
    costs: Sequence[Sequence[float]], limits: Sequence[Limit], borders: Sequence[Border], shared: Sequence[Shared]
) -> tuple[list[Sequence[float]], list[Limit], list[Border]]:
    """Turn shared costs into further items with the choices "present" and "absent"; absent is only allowed if no
    item needs it.
    """
    more = []
    for item, one in enumerate(shared, start=len(costs)):
        for needing, choices in sorted(one.needed_by.items()):
            rows = [[0.0, math.inf if choice in choices else 0.0] for choice in range(len(costs[needing]))]
            # Choice 0 of the new item is "present", choice 1 "absent"; absent is impossible beside a choice that needs
            # it.
            more.append(Border(needing, item, rows))
    return (
        [*costs, *([one.cost, 0.0] for one in shared)],
        [
            Limit([*limit.values, *([one.values[at], 0.0] for one in shared)], limit.at_most)
            for at, limit in enumerate(limits)
        ],
        [*borders, *more],
    )


class _Program:
    """Costs and limits of units: items that are chosen together."""

    def __init__(
        self,
        costs: Sequence[Sequence[float]],
        limits: Sequence[Limit],
        borders: Sequence[Border],
        units: Sequence[int],
    ) -> None:
        self.units = units
        self.costs = added(costs, units)
        self.borders = pairs_of(borders, units, self.costs, lambda border: border.cost)
        self.limits = [bound_of(at, limit, borders, units) for at, limit in enumerate(limits)]
        self.possible = [
            [
                math.isfinite(cost) and all(math.isfinite(limit.values[unit][choice]) for limit in self.limits)
                for choice, cost in enumerate(each)
            ]
            for unit, each in enumerate(self.costs)
        ]
        # Only after `possible` was computed: a limit of infinity bounds nothing, but its infinite values still forbid
        # choices.
        self.limits = [limit for limit in self.limits if limit.at_most < math.inf]

    def discard_impossible(self) -> bool:
        """Drop choices that exceed a limit even if all other units take their least; return False if none is left."""
        # To a fixed point: a dropped choice can raise the least of its unit, which takes room from all others.
        changed = True
        while changed:
            changed = False
            for limit in self.limits:
                if not all(map(any, self.possible)):
                    return False
                least = self.least(limit)
                room = self.room(limit, least)
                if room < 0:
                    return False
                for unit, values in enumerate(limit.values):
                    for choice in self.choices_of(unit):
                        # Even with the least everywhere else this choice exceeds the limit. The entries of the matrix
                        # are then within [0, 1] (see _Matrix._limit), which keeps it well scaled.
                        if values[choice] > room + least[unit]:
                            self.possible[unit][choice], changed = False, True
        return all(map(any, self.possible))

    def cheapest_alone(self) -> list[int] | None:
        """Return the cheapest choice of each unit, if these keep all limits and there are no borders; else None."""
        chosen = [min(self.choices_of(unit), key=each.__getitem__) for unit, each in enumerate(self.costs)]
        # A cost of a border may make a dearer choice the better one.
        return chosen if not self.borders and self._keeps_limits(chosen) else None

    def solve(self, seconds: float) -> list[int] | None:
        """Solve with HiGHS; tighten the limits if a rounding error makes the solution exceed one."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp

        matrix = _Matrix(self)
        # Exact at first. HiGHS accepts rows that are exceeded by 1e-6, so a solution may be just above a limit: then
        # ask for a little less than the limit, and solve again.
        tightened = 1.0
        for _ in range(_TIGHTENED):
            lower, upper = matrix.bounds(tightened)
            result = milp(
                matrix.costs(),
                integrality=np.array(matrix.integer),
                bounds=Bounds(0, np.array(matrix.at_most_one, dtype=float)),
                constraints=LinearConstraint(matrix.sparse(), lower, upper),
                options={"time_limit": seconds, "mip_rel_gap": 0.0},
            )
            # 2: infeasible. 1, the time limit, may come with a feasible solution, which is taken.
            if result.status == 2:
                return None
            if result.x is None:
                raise TimeoutError(f"No choices within all limits were found in {seconds:g} seconds: {result.message}")
            found = matrix.choices(result.x)
            if self._keeps_limits(found):
                return found
            tightened -= 2e-6
        return None

    def choices_of(self, unit: int) -> list[int]:
        """Return the choices that a unit still has."""
        return [choice for choice, is_possible in enumerate(self.possible[unit]) if is_possible]

    def least(self, limit: Bound) -> list[float]:
        """Return the least value of each unit."""
        return [min(values[choice] for choice in self.choices_of(unit)) for unit, values in enumerate(limit.values)]

    def least_of_pairs(self, limit: Bound) -> dict[tuple[int, int], float]:
        """Return the least value of each border."""
        return {
            (one, other): min(values[pair] for pair in self._pairs(one, other))
            for (one, other), values in limit.pairs.items()
        }

    def room(self, limit: Bound, least: Sequence[float]) -> float:
        """Return how much of a limit remains when all units and borders take their least."""
        taken = [*least, *self.least_of_pairs(limit).values()]
        return limit.at_most - math.fsum(taken) + _rounding(limit, taken)

    def _pairs(self, one: int, other: int) -> list[tuple[int, int]]:
        return [(choice, second) for choice in self.choices_of(one) for second in self.choices_of(other)]

    def _keeps_limits(self, chosen: Sequence[int]) -> bool:
        for limit in self.limits:
            values = [each[choice] for each, choice in zip(limit.values, chosen, strict=True)]
            values += [values_of[chosen[one], chosen[other]] for (one, other), values_of in limit.pairs.items()]
            if math.fsum(values) > limit.at_most + _rounding(limit, values):
                return False
        return True


def _rounding(limit: Bound, values: Sequence[float]) -> float:
    return _SLACK * max([abs(limit.at_most), *map(abs, values)])


class _Matrix:
    """The program in HiGHS's form: a binary variable for each possible choice, and one for each pair of a border."""

    def __init__(self, program: _Program) -> None:
        self.of: list[dict[int, int]] = []
        self._costs: list[float] = []
        self.integer: list[int] = []
        self.at_most_one: list[int] = []
        self._entries: list[tuple[int, int, float]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        for unit, each in enumerate(program.costs):
            choices = program.choices_of(unit)
            # Relative to the cheapest choice, because HiGHS stops at an absolute gap: a common offset would only take
            # digits.
            least = min(each[choice] for choice in choices)
            self.of.append({choice: self._variable(each[choice] - least) for choice in choices})
            # Exactly one choice for each unit.
            self._row([(variable, 1.0) for variable in self.of[unit].values()], 1.0, 1.0)
        # Borders that neither cost nor count would only add variables.
        counted = {border for limit in program.limits for border in limit.pairs}
        self.pairs = {
            (one, other): self._border(self.of[one], self.of[other], cost)
            for (one, other), cost in program.borders.items()
            if (one, other) in counted or any(cost[c, d] for c in self.of[one] for d in self.of[other])
        }
        first = len(self._lower)
        for limit in program.limits:
            self._limit(program, limit)
        self._limits = range(first, len(self._lower))

    def costs(self) -> Any:
        """Return the cost of each variable, scaled to a moderate maximum."""
        import numpy as np

        costs = np.array(self._costs)
        largest = np.abs(costs).max(initial=0.0)
        return costs / largest * _LARGEST_COST if largest > 0 else costs

    def bounds(self, tightened: float) -> tuple[Any, Any]:
        """Return the lower and upper bound of each row; those of limits times ``tightened``."""
        import numpy as np

        upper = np.array(self._upper)
        upper[self._limits.start : self._limits.stop] *= tightened
        return np.array(self._lower), upper

    def sparse(self) -> Any:
        """Return the rows as a sparse matrix."""
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self._entries, strict=True)
        return csr_array((values, (rows, columns)), shape=(len(self._lower), len(self._costs)))

    def choices(self, found: Sequence[float]) -> list[int]:
        """Return the choice of each unit."""
        return [max(variables, key=lambda choice: found[variables[choice]]) for variables in self.of]

    def _variable(self, cost: float, is_integer: bool = True, at_most: int = 1) -> int:
        self._costs.append(cost)
        self.integer.append(int(is_integer))
        self.at_most_one.append(at_most)
        return len(self._costs) - 1

    def _row(self, entries: Sequence[tuple[int, float]], lower: float, upper: float) -> None:
        self._entries += [(len(self._lower), variable, value) for variable, value in entries]
        self._lower.append(lower)
        self._upper.append(upper)

    def _limit(self, program: _Program, limit: Bound) -> None:
        least = program.least(limit)
        room = program.room(limit, least)
        scale = 1 / room if room > 0 else 0.0
        # within [0, 1], because choices that exceed the room alone are not possible
        entries = [
            (variable, scale * (values[choice] - least[unit]))
            for unit, values in enumerate(limit.values)
            for choice, variable in self.of[unit].items()
        ]
        least_of_pairs = program.least_of_pairs(limit)
        for border, values_of in limit.pairs.items():
            entries += [
                (variable, scale * (values_of[pair] - least_of_pairs[border]))
                for pair, variable in self.pairs[border].items()
            ]
        self._row(entries, -math.inf, 1.0)

    def _border(
        self, one: Mapping[int, int], other: Mapping[int, int], cost: Mapping[tuple[int, int], float]
    ) -> dict[tuple[int, int], int]:
        """Return a variable for each pair; their sums over either choice equal the variables of the other.

        This formulation is exact, and its relaxation is tighter than with one inequality for each pair. Pairs need
        not be integers: binary choices make them so.
        """
        pairs = {}
        for choice in one:
            for second in other:
                each = cost[choice, second]
                is_possible = math.isfinite(each)
                # An impossible pair is a variable with an upper bound of 0.
                pairs[choice, second] = self._variable(each if is_possible else 0.0, False, int(is_possible))
        for choice, variable in one.items():
            self._row([(variable, -1.0), *((pairs[choice, second], 1.0) for second in other)], 0.0, 0.0)
        for second, variable in other.items():
            self._row([(variable, -1.0), *((pairs[choice, second], 1.0) for choice in one)], 0.0, 0.0)
        return pairs


def _check(
    costs: Sequence[Sequence[float]],
    limits: Sequence[Limit],
    borders: Sequence[Border],
    groups: Sequence[Sequence[int]],
) -> None:
    lengths = [len(each) for each in costs]
    for limit in limits:
        if [len(each) for each in limit.values] != lengths:
            raise ValueError("A limit needs one value for each choice of each item, as costs has.")
        if limit.at_most == -math.inf or any(value == -math.inf for each in limit.values for value in each):
            raise ValueError("Minus infinity is neither a limit nor a value.")
    for border in borders:
        wanted = [lengths[border.other]] * lengths[border.one]
        matrices = (border.cost, *border.values.values())
        if border.one == border.other or any([len(row) for row in each] != wanted for each in matrices):
            raise ValueError(
                f"The border of items {border.one} and {border.other} needs {lengths[border.one]} rows of "
                f"{lengths[border.other]} costs, for two items."
            )
    for group in groups:
        if len({lengths[item] for item in group}) > 1:
            raise ValueError(f"The items {tuple(group)} are chosen together, but have different numbers of choices.")
    numbers = [*costs, *(each for limit in limits for each in limit.values), [limit.at_most for limit in limits]]
    if any(math.isnan(value) for each in (*numbers, *_rows(borders)) for value in each):
        raise ValueError("A cost, a value or a limit is NaN.")


def _rows(borders: Sequence[Border]) -> list[Sequence[float]]:
    return [row for border in borders for each in (border.cost, *border.values.values()) for row in each]


# The parts of an integer program: limits, borders, and what is shared; and these by units of items chosen together.


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
    """A cost of a pair of choices of two items, beyond the cost of each.

    Attributes:
        one: an item.
        other: another item.
        cost: ``cost[choice of one][choice of other]``, in the unit of the costs; infinite where a pair is impossible.
        values: the values of pairs in limits, in the same form, by the index of the limit.
    """

    one: int
    other: int
    cost: Sequence[Sequence[float]]
    values: Mapping[int, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """A cost that is counted once, as soon as one of several items takes one of some choices."""

    needed_by: Mapping[int, Collection[int]]
    values: Sequence[float]
    cost: float = 0.0


@dataclass(frozen=True)
class Bound:
    """A limit by units, with the values of pairs of neighbours."""

    values: list[list[float]]
    at_most: float
    pairs: dict[tuple[int, int], dict[tuple[int, int], float]]


def bound_of(at: int, limit: Limit, borders: Sequence[Border], units: Sequence[int]) -> Bound:
    values = added(limit.values, units)
    return Bound(values, limit.at_most, pairs_of(borders, units, values, lambda border: border.values.get(at)))


def units_of(count: int, groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the unit of each item; groups that share an item form one unit."""
    # A union-find without ranks: groups are few and small.
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
    """Return the sum of the values of each unit's items, by choice."""
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
    """Return the cost of each pair of choices on both sides of a border between two units, by pair of units.

    A border inside one unit adds its cost to the unit's own, in ``alone``.
    """
    result: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for border in borders:
        one, other, table = units[border.one], units[border.other], of(border)
        if table is None:
            continue
        if one == other:
            # Both items take the same choice, so only the diagonal of the table can occur.
            alone[one] = [value + table[choice][choice] for choice, value in enumerate(alone[one])]
            continue
        pairs = result.setdefault((min(one, other), max(one, other)), {})
        for choice, row in enumerate(table):
            for second, value in enumerate(row):
                pair = (choice, second) if one < other else (second, choice)
                pairs[pair] = pairs.get(pair, 0.0) + value
    return result
