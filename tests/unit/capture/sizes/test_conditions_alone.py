"""A condition limits a size only where it is about this size alone."""

from __future__ import annotations

import sympy

from prepbench.capture.sizes.conditions import SizeCondition, SizeConditions, condition_in_words, strongest


def test_a_condition_on_two_sizes_limits_neither() -> None:
    one, other = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("s0", "s1"))
    names = {one: "x.shape[0]", other: "y.shape[0]"}
    conditions = SizeConditions()
    conditions.add(sympy.Ne(one * other, 0), names, None, is_own=True)
    assert not conditions.limits(one, 0)
    assert conditions.broken_by("x.shape[0]", 0) == []
    conditions.add(sympy.Ge(one, 2), {one: names[one]}, None, is_own=True)
    assert [conditions.limits(one, size) for size in (0, 1, 2)] == [True, True, False]
    assert not conditions.limits(other, 0)
    assert [str(each) for each in conditions.broken_by("x.shape[0]", 1)] == ["x.shape[0] is at least 2"]


def _texts(*texts: str) -> list[str]:
    return [one.text for one in strongest(SizeCondition(text, (), None) for text in texts)]


def test_of_several_bounds_on_one_size_the_narrowest_is_said() -> None:
    bounds = ("a must be at least 3", "a must be at least 5", "a must be more than 4", "b must be at least 2")
    assert _texts(*bounds) == ["a must be at least 5", "b must be at least 2"]
    assert _texts("a is at most 40", "a is less than 31", "a is at least 2") == ["a is less than 31", "a is at least 2"]
    assert _texts("a must not be 1", "a must not be 9", "a must be more than 4") == [
        "a must not be 9", "a must be more than 4",
    ]  # fmt: skip
    others = ("a must be at most 4 or at least 9", "a must be a multiple of 4", "a must be at least 3")
    assert _texts(*others) == list(others)


def test_remainders_of_sizes_by_sizes_are_told_in_words() -> None:
    one, other = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
    names = {one: "k.shape[0]", other: "q.shape[0]"}
    told = [
        condition_in_words(condition, names)
        for condition in (
            sympy.Eq(sympy.Mod(one, 2 * other), 0), sympy.Ne(sympy.Mod(one, 2 * other), 0),
            sympy.Ne(sympy.Mod(one, 2 * other), 2),
        )
    ]  # fmt: skip
    assert told == [
        "k.shape[0] must be a multiple of 2*q.shape[0]",
        "k.shape[0] must not be a multiple of 2*q.shape[0]",
        "k.shape[0] must not leave 2 when it is divided by 2*q.shape[0]",
    ]
