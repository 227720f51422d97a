"""``CannotFix``: why a change is none."""

from __future__ import annotations

from prepbench.errors import PrepbenchError


class CannotFix(PrepbenchError, ValueError):
    """No right change is known; the message says why."""
