"""A condition limits a size only where it is about this size alone."""

from __future__ import annotations

import sympy

from prepbench.capture.sizes.conditions import SizeConditions


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
