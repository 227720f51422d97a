"""Evaluate symbolic numbers as Python would."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for

# the originals, before tracing replaces them
_FLOOR, _CEIL, _TRUNC = math.floor, math.ceil, math.trunc

with needed_for("square roots of symbolic sizes"):
    SQRT: Any = getattr(torch, "sym_sqrt", None) or torch._sym_sqrt  # type: ignore[attr-defined]


def symbolic_value(expression: Any, known: Mapping[Any, Any], call: Callable[..., Any]) -> Any:
    """Evaluate a sympy expression over sizes for known values of its symbols.

    Args:
        expression: the expression.
        known: a value for each symbol; a proxy writes the computation into its graph.
        call: calls a function on numbers, some of which may be proxies.
    """
    with needed_for("computing sizes in a graph"):
        from torch.utils._sympy.interp import sympy_interp
    return sympy_interp(number_analysis(call), dict(known), expression)


def is_unbounded(size: Any) -> bool:
    """Return whether a bound of a symbolic size is infinity."""
    with needed_for("the largest values of sizes"):
        from torch.utils._sympy.numbers import int_oo
    return bool(size == int_oo)


def number_analysis(call: Callable[..., Any]) -> Any:
    """Return the analysis with which a graph computes sympy expressions over sizes.

    Args:
        call: calls a function on numbers, some of which may be proxies.
    """
    with needed_for("computing sizes in a graph"):
        from torch.utils._sympy.reference import PythonReferenceAnalysis

    class Numbers(PythonReferenceAnalysis):
        """Torch's own analysis, with replacements for the functions that accept no proxies."""

        @staticmethod
        def int_truediv(a: Any, b: Any) -> Any:
            return a / b

        @staticmethod
        def sqrt(x: Any) -> Any:
            return call(SQRT, x)

        @staticmethod
        def to_dtype(x: Any, dtype: torch.dtype) -> Any:
            return call(torch.sym_float, x) if dtype.is_floating_point else x

        @staticmethod
        def floor(x: Any) -> Any:
            return call(torch.sym_float, call(_FLOOR, x))

        @staticmethod
        def ceil(x: Any) -> Any:
            return call(torch.sym_float, call(_CEIL, x))

        @staticmethod
        def floor_to_int(x: Any, dtype: Any) -> Any:
            return call(_FLOOR, x)

        @staticmethod
        def ceil_to_int(x: Any, dtype: Any) -> Any:
            return call(_CEIL, x)

        @staticmethod
        def trunc_to_int(x: Any, dtype: Any) -> Any:
            return call(_TRUNC, x)

        @staticmethod
        def round_to_int(a: Any, dtype: Any) -> Any:
            return call(round, a)

        @staticmethod
        def round_decimal(a: Any, b: Any) -> Any:
            return call(round, a, b)

    return Numbers
