"""The kinds of changes to a user's source, one per file.

To add a kind, write a file with one :class:`~prepbench.fixes.kinds.kind.Kind` and list it in :data:`KINDS`.
"""

from prepbench.fixes.kinds.branches import BRANCHES
from prepbench.fixes.kinds.kind import Kind

KINDS: tuple[Kind, ...] = (BRANCHES,)
"""Every kind of change, in the order in which they are tried."""

__all__ = ["KINDS", "Kind"]
