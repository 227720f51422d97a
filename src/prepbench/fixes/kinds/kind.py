"""``RewriteKind``: what a kind of change to a user's source must say about itself."""

from __future__ import annotations

import ast
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from prepbench.fixes.function_source import Edit, Place


@dataclass(frozen=True)
class RewriteKind:
    """One kind of change to the source of a forward.

    Attributes:
        name: what becomes what.
        right_if: what must hold for the change to be right.
        failures: the kinds of failures that it removes, see :class:`prepbench.document.model.Failure`.
        instrument: puts :func:`~prepbench.fixes.function_source.probe_call` around each value that decides whether the
            change is needed, in place.
        needs_change: whether a value that the probe met means that its place must be changed.
        instrument_conditions: puts ``probe_call`` around the condition at each place, in place. The function must go on
            to compute what it computes without the probe, because the change is compared with it.
        edits: the changed lines of a function, for the places that need it; raises ``CannotRewrite`` where the change
            would not be right.
    """

    name: str
    right_if: str
    failures: frozenset[str]
    instrument: Callable[[ast.FunctionDef], None]
    needs_change: Callable[[Any], bool]
    instrument_conditions: Callable[[ast.FunctionDef], None]
    edits: Callable[[ast.FunctionDef, Set[Place]], list[Edit]]
