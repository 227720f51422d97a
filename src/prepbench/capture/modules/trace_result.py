"""The result of tracing one module, symbolically or by value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.fake_tensors import needs_data
from prepbench.capture.modules.fake_inputs import InputSize
from prepbench.capture.sizes.dynamic_axes import NumbersDecide, value_at
from prepbench.document.model import SourceLine

IsLeaf = Callable[[torch.nn.Module, str], bool]
"""Decides whether a module stays a single call; called with the module and its name within the root."""

_CONVERSION = re.compile(r"\b(?:int|float|sqrt|ceil|floor|trunc)\(")


@dataclass(frozen=True)
class Assumption:
    """An assumption of a graph on its input sizes, or on integers in its inputs.

    Attributes:
        expression: a sympy condition.
        source: the user's line that asked.
        asked_by_torch: a torch function asked, not the line itself; another way to trace may not need the answer.
        fqn: the module in which it was asked.
    """

    expression: Any
    source: SourceLine | None
    asked_by_torch: bool = False
    fqn: str = ""


@dataclass(frozen=True)
class Granted:
    """A number that tracing treated as a constant, because it is the same on all samples.

    Attributes:
        fqn: the module whose code reads it.
        text: the assumption, e.g. ``"n.item() == 3"``.
        source: the user's line that reads it.
    """

    fqn: str
    text: str
    source: SourceLine | None


@dataclass(frozen=True)
class ModuleVisit:
    """A call of a submodule during tracing, with the error if its code failed to trace."""

    fqn: str
    error: Exception | None = None


@dataclass
class TraceResult:
    """The graph of one module, and its data for running; ``error`` is that of its own forward, if there was one."""

    graph: fx.Graph
    visits: list[ModuleVisit] = field(default_factory=list)
    error: Exception | None = None
    constants: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Any, InputSize] = field(default_factory=dict)
    assumptions: list[Assumption] = field(default_factory=list)
    known: list[Assumption] = field(default_factory=list)
    returned: list[Granted] = field(default_factory=list)

    @property
    def fixed(self) -> list[Assumption]:
        """Sizes that differ between samples but were specialised, such as the length of an unrolled loop."""
        return [
            a
            for a in self.assumptions
            if a.expression.is_Equality
            and len(a.expression.free_symbols) == 1
            and all(self.sizes[symbol].varies for symbol in a.expression.free_symbols)
        ]

    @property
    def converted(self) -> bool:
        """Whether ``int()`` or the like in the model's code specialised a size that differs."""
        return any(a.source is not None and _CONVERSION.search(a.source.code) for a in self.fixed)

    @property
    def contradicted(self) -> list[Assumption]:
        """Assumptions that are false for one of the traced samples."""
        return [
            a
            for a in self.assumptions
            if any(value_at(a.expression, values) == False for values in values_on_samples(a.expression, self.sizes))  # noqa: E712
        ]

    @property
    def avoidable(self) -> bool:
        """Whether another way of tracing may keep something that this one lost."""
        return any(not needs_data(e) and not isinstance(e, NumbersDecide) for e in self.errors) or any(
            assumption.asked_by_torch for assumption in (*self.fixed, *self.contradicted)
        )

    @property
    def errors(self) -> list[Exception]:
        """All errors, the root's own error first."""
        return [e for e in (self.error, *(visit.error for visit in self.visits)) if e is not None]

    def keep_errors_of(self, other: TraceResult) -> None:
        """Adopt the errors of another trace for modules that fail in both."""
        errors = {visit.fqn: visit.error for visit in other.visits if visit.error is not None}
        self.visits = [replace(v, error=errors.get(v.fqn, v.error)) if v.error else v for v in self.visits]

    @property
    def losses(self) -> tuple[bool, int, int, int]:
        """The untraced parts, for comparing two attempts at the same model."""
        return self.error is not None, len(self.contradicted), len(self.errors), len(self.fixed)


def values_on_samples(expression: Any, sizes: dict[Any, InputSize]) -> list[dict[Any, Any]]:
    """Return the values that the symbols of ``expression`` have on each sample; empty if one is no input size."""
    symbols: set[Any] = getattr(expression, "free_symbols", set())
    if not symbols or not symbols <= set(sizes):
        return []
    count = len(next(iter(sizes.values())).sizes)
    return [{symbol: sizes[symbol].sizes[index] for symbol in symbols} for index in range(count)]
