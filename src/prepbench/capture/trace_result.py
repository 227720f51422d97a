"""What tracing one module gives, whichever way it was traced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from prepbench.capture.fake_inputs import InputSize
from prepbench.document.model import SourceLine


@dataclass(frozen=True)
class Assumption:
    """What a graph takes for granted about its input sizes: the line that decided it, as a sympy expression."""

    expression: Any
    source: SourceLine | None


@dataclass(frozen=True)
class ModuleCall:
    """One call of a submodule, with the error if it could not be traced through."""

    fqn: str
    error: Exception | None = None


@dataclass
class ValueTrace:
    """The graph of one module, and what it needs to run; ``error`` is what its own forward raised, if it did."""

    graph: fx.Graph
    calls: list[ModuleCall] = field(default_factory=list)
    error: Exception | None = None
    constants: dict[str, Any] = field(default_factory=dict)
    sizes: dict[Any, InputSize] = field(default_factory=dict)
    assumptions: list[Assumption] = field(default_factory=list)

    @property
    def fixed(self) -> list[Assumption]:
        """Sizes that differ between samples and yet had to be one number, such as the length of an unrolled loop."""
        return [a for a in self.assumptions if a.expression.is_Equality and len(a.expression.free_symbols) == 1]

    @property
    def errors(self) -> list[Exception]:
        """Everything that was raised, the root's own error first."""
        return [e for e in (self.error, *(call.error for call in self.calls)) if e is not None]

    @property
    def losses(self) -> tuple[bool, int, int]:
        """What was not traced, for comparing two attempts at the same model."""
        return self.error is not None, len(self.errors), len(self.fixed)
