"""The integer program against all combinations of choices."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from prepbench.quantize.integer_program import Border, Limit, Shared, cheapest


def cost_of(chosen: Any, costs: Any, borders: Any) -> float:
    alone = math.fsum(costs[item][choice] for item, choice in enumerate(chosen))
    return alone + math.fsum(border.cost[chosen[border.one]][chosen[border.other]] for border in borders)


def is_allowed(chosen: Any, costs: Any, limits: Any = (), borders: Any = (), groups: Any = ()) -> bool:
    return (
        math.isfinite(cost_of(chosen, costs, borders))
        and all(len({chosen[item] for item in group}) == 1 for group in groups)
        and all(
            math.fsum(each[choice] for each, choice in zip(limit.values, chosen, strict=True)) <= limit.at_most
            for limit in limits
        )
    )


def best_of_all(costs: Any, limits: Any = (), borders: Any = (), groups: Any = ()) -> float:
    combinations = itertools.product(*(range(len(each)) for each in costs))
    allowed = (chosen for chosen in combinations if is_allowed(chosen, costs, limits, borders, groups))
    return min((cost_of(chosen, costs, borders) for chosen in allowed), default=math.inf)


def instance(seed: int) -> tuple[Any, ...]:
    """Items with one to four choices, of any magnitude, and a limit that cuts some combinations off."""
    draw = random.Random(seed)
    sizes = [draw.choice((1, 2, 2, 3, 4)) for _ in range(draw.randint(1, 6))]
    unit, scale = 10.0 ** draw.randint(-20, 20), 10.0 ** draw.randint(-20, 20)
    spread = draw.choice((0, 3))

    def values(size: int, factor: float) -> list[float]:
        return [
            math.inf if draw.random() < 0.05 else factor * 10 ** draw.uniform(-spread, 0) * draw.choice((0, 1, 1, 1.5))
            for _ in range(size)
        ]

    costs = [values(size, scale) for size in sizes]
    limits = []
    for _ in range(draw.randint(0, 2)):
        rows = [values(size, unit) for size in sizes]
        total = sum(max((value for value in row if value < math.inf), default=0.0) for row in rows)
        limits.append(Limit(rows, total * draw.uniform(0.05, 1.1)))
    borders = []
    for one in range(len(sizes) - 1):
        if draw.random() < 0.4:
            signs = draw.choice(((1,), (1, -1)))
            table = [
                [draw.choice((0, 0, 1)) * draw.choice(signs) * scale * draw.random() for _ in range(sizes[one + 1])]
                for _ in range(sizes[one])
            ]
            is_reversed = sizes[one] == sizes[one + 1] and draw.random() < 0.5
            borders.append(Border(one + 1, one, table) if is_reversed else Border(one, one + 1, table))
    pairs = [pair for pair in itertools.combinations(range(len(sizes)), 2) if sizes[pair[0]] == sizes[pair[1]]]
    groups = draw.sample(pairs, min(len(pairs), draw.randint(0, 2)))
    return costs, limits, borders, groups


@pytest.mark.parametrize("seeds", [range(first, first + 40) for first in range(0, 240, 40)], ids=str)
def test_nothing_is_cheaper_than_what_is_found(seeds: range) -> None:
    infeasible = 0
    for seed in seeds:
        costs, limits, borders, groups = instance(seed)
        found, best = cheapest(costs, limits, borders, groups), best_of_all(costs, limits, borders, groups)
        if found is None:
            assert best == math.inf, seed
            infeasible += 1
            continue
        assert is_allowed(found, costs, limits, borders, groups), seed
        largest = max(abs(value) for each in costs for value in each if value < math.inf)
        assert cost_of(found, costs, borders) == pytest.approx(best, rel=1e-6, abs=1e-8 * largest), seed
        assert cheapest(costs, limits, borders, groups) == found
    assert 0 < infeasible < len(seeds) * 0.7


@pytest.mark.parametrize("seed", range(40))
def test_what_is_shared_costs_and_counts_once(seed: int) -> None:
    draw = random.Random(seed)
    costs = [[draw.random() for _ in range(draw.randint(2, 3))] for _ in range(5)]
    limit = Limit([[draw.random() for _ in each] for each in costs], draw.uniform(1.5, 3.0))
    shared = [
        Shared(
            {item: {draw.randrange(len(costs[item]))} for item in draw.sample(range(5), draw.randint(1, 3))},
            [draw.random()],
            draw.choice((0.0, draw.random())),
        )
        for _ in range(4)
    ]

    def there(chosen: tuple[int, ...]) -> list[Shared]:
        return [one for one in shared if any(chosen[item] in needs for item, needs in one.needed_by.items())]

    best = math.inf
    for chosen in itertools.product(*(range(len(each)) for each in costs)):
        values = [each[choice] for each, choice in zip(limit.values, chosen, strict=True)]
        if math.fsum([*values, *(one.values[0] for one in there(chosen))]) <= limit.at_most:
            best = min(best, cost_of(chosen, costs, ()) + math.fsum(one.cost for one in there(chosen)))
    found = cheapest(costs, [limit], shared=shared)
    if found is None:
        assert best == math.inf
    else:
        assert len(found) == 5
        assert cost_of(found, costs, ()) + math.fsum(one.cost for one in there(found)) == pytest.approx(best)


@pytest.mark.parametrize("seeds", [range(first, first + 40) for first in range(0, 160, 40)], ids=str)
def test_what_pairs_add_to_limits_counts(seeds: range) -> None:
    """Also below zero, and within items that are chosen together."""
    infeasible = 0
    for seed in seeds:
        draw = random.Random(seed)
        costs = [[draw.random() for _ in range(3)] for _ in range(5)]
        limits = [Limit([[draw.random() for _ in each] for each in costs], draw.uniform(1.0, 3.0)) for _ in range(2)]
        borders = []
        for one, other in draw.sample(list(itertools.permutations(range(5), 2)), 4):
            tables = [[[draw.uniform(-0.6, 0.6) for _ in range(3)] for _ in range(3)] for _ in range(3)]
            cost = draw.choice((tables[0], [[0.0] * 3] * 3, [[0.0, math.inf, 0.0]] * 3))
            borders.append(Border(one, other, cost, {at: tables[at + 1] for at in draw.choice(((0,), (1,), (0, 1)))}))
        groups = draw.choice(([], [(0, 1)], [(1, 3, 4)]))

        def is_within(chosen: tuple[int, ...], limits: list[Limit] = limits, borders: list[Border] = borders) -> bool:
            for at, limit in enumerate(limits):
                values = [each[choice] for each, choice in zip(limit.values, chosen, strict=True)]
                values += [
                    border.values[at][chosen[border.one]][chosen[border.other]]
                    for border in borders
                    if at in border.values
                ]
                if math.fsum(values) > limit.at_most:
                    return False
            return True

        best = min(
            (
                cost_of(chosen, costs, borders)
                for chosen in itertools.product(range(3), repeat=5)
                if is_allowed(chosen, costs, (), borders, groups) and is_within(chosen)
            ),
            default=math.inf,
        )
        found = cheapest(costs, limits, borders, groups)
        infeasible += found is None
        assert (found is None) == (best == math.inf), seed
        if found is not None:
            assert is_within(found), seed
            assert cost_of(found, costs, borders) == pytest.approx(best, rel=1e-6, abs=1e-8), seed
    assert 0 < infeasible < len(seeds) * 0.7


def test_what_is_empty_impossible_or_has_one_choice() -> None:
    assert cheapest([]) == ()
    assert cheapest([], [Limit([], -1.0)]) is None
    assert cheapest([[]]) is None
    assert cheapest([[3.0], [4.0]]) == (0, 0)
    assert cheapest([[3.0]], [Limit([[2.0]], 1.0)]) is None
    assert cheapest([[math.inf, math.inf]]) is None
    assert cheapest([[1.0, 2.0]], [Limit([[math.inf, 0.0]], math.inf)]) == (1,)
    assert cheapest([[0.0, 1.0]] * 2, borders=[Border(0, 1, [[math.inf, 9.0], [0.5, 0.0]])]) == (1, 0)


def test_a_limit_of_nothing_takes_only_what_adds_nothing() -> None:
    values = [[1e-30, 0.0], [1e-12, 0.0], [5.0, 0.0]]
    assert cheapest([[0.0, 1.0]] * 3, [Limit(values, 0.0)]) == (1, 1, 1)


def test_sums_that_equal_their_limit_keep_it() -> None:
    tenths = [[0.1, 0.0]] * 6
    found = cheapest([[0.0, 1.0]] * 6, [Limit(tenths, 0.3)])
    assert found is not None
    assert sum(found) == 3


def test_small_violations_that_a_solver_would_accept_are_not() -> None:
    values = [[0.5, 0.0], [0.5 + 3e-7, 0.0]]
    assert cheapest([[0.0, 1.0], [0.0, 2.0]], [Limit(values, 1.0)]) == (1, 0)


def test_a_hundred_layers_with_conversions_between_them_take_no_time() -> None:
    draw = random.Random(0)
    costs = [sorted(draw.random() for _ in range(4)) for _ in range(100)]
    noise = Limit([[draw.random() * 4.0**-choice for choice in range(4)] for _ in range(100)], 12.0)
    borders = [Border(item, item + 1, [[0.1 * (a != b) for b in range(4)] for a in range(4)]) for item in range(99)]
    found = cheapest(costs, [noise], borders, seconds=10)
    assert found is not None
    assert math.fsum(noise.values[item][choice] for item, choice in enumerate(found)) <= 12
    without = cheapest(costs, [noise])
    assert without is not None
    assert cost_of(found, costs, borders) <= cost_of(without, costs, borders)


def test_what_contradicts_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="one value for each choice"):
        cheapest([[1.0, 2.0]], [Limit([[1.0]], 1.0)])
    with pytest.raises(ValueError, match="NaN"):
        cheapest([[math.nan]])
    with pytest.raises(ValueError, match="needs 2 rows of 1 costs"):
        cheapest([[1.0, 2.0], [1.0]], borders=[Border(0, 1, [[1.0, 2.0]])])
    with pytest.raises(ValueError, match="different numbers of choices"):
        cheapest([[1.0, 2.0], [1.0]], groups=[(0, 1)])
