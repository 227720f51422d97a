"""``CannotFix``: a kind of change does not apply."""

from __future__ import annotations

from prepbench.errors import PrepbenchError


class CannotFix(PrepbenchError, ValueError):
    """The change does not apply or would be wrong; the message says why."""
