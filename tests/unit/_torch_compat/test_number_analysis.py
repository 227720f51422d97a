"""Sizes computed in a graph as Python computes them."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo

from prepbench._torch_compat import sizes
from prepbench.errors import TorchVersionError

N = sympy.Symbol("n", integer=True, positive=True)


def _value(expression: Any, n: int) -> Any:
    return sizes.symbolic_value(expression, {N: n}, lambda function, *args: function(*args))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (N * 2 + 1, 15),
        (functions.FloorDiv(N, 2), 3),
        (functions.IntTrueDiv(N, 2), 3.5),
        (functions.CeilToInt(functions.IntTrueDiv(N, 2)), 4),
        (functions.FloorToInt(functions.IntTrueDiv(N, 2)), 3),
        (functions.TruncToInt(functions.IntTrueDiv(N, 2)), 3),
        (functions.RoundToInt(functions.IntTrueDiv(N, 4)), 2),
        (functions.OpaqueUnaryFn_sqrt(functions.ToFloat(N)), math.sqrt(7)),
    ],
)
def test_values(expression: Any, expected: float) -> None:
    assert _value(expression, 7) == expected


def test_functions_that_take_no_proxies_are_called_through() -> None:
    called = []

    def call(function: Any, *args: Any) -> Any:
        called.append(function)
        return function(*args)

    sizes.symbolic_value(functions.CeilToInt(functions.IntTrueDiv(N, 2)), {N: 7}, call)
    assert called == [math.ceil]
    assert sizes.SQRT(4) == 2
    assert operator.add(1, 1) == 2


def test_unbounded_sizes() -> None:
    assert sizes.is_unbounded(int_oo)
    assert not sizes.is_unbounded(sympy.Integer(8))


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._sympy.interp", None)
    with pytest.raises(TorchVersionError, match="computing sizes in a graph"):
        _value(N, 1)
    monkeypatch.setitem(sys.modules, "torch.utils._sympy.numbers", None)
    with pytest.raises(TorchVersionError, match="the largest values of sizes"):
        sizes.is_unbounded(torch.ones(1))
