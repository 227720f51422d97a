"""The kinds of changes to a user's source, one per file.

To add a kind, write a file with one :class:`~prepbench.fixes.kinds.kind.RewriteKind` and list it in :data:`KINDS`.
"""

from prepbench.fixes.kinds.branch_to_where import BRANCH_TO_WHERE
from prepbench.fixes.kinds.kind import RewriteKind

KINDS: tuple[RewriteKind, ...] = (BRANCH_TO_WHERE,)
"""Every kind of change, in the order in which they are tried."""

__all__ = ["KINDS", "RewriteKind"]
