"""The kinds of changes to a user's source, one family per file.

To add a kind, write a :class:`~prepbench.fixes.site.Kind`, beside its family or in a file of its own, and list it in
:data:`KINDS`.
"""

from prepbench.fixes.kinds.arrays import ARRAYS
from prepbench.fixes.kinds.assigned_data import ASSIGNED_DATA, COPIES
from prepbench.fixes.kinds.assumed_sides import ASSUMED_SIDES
from prepbench.fixes.kinds.branches import BRANCHES
from prepbench.fixes.kinds.checks import CHECKS, TRIES
from prepbench.fixes.kinds.chosen import CHOSEN_BY_NUMBER, CHOSEN_TEXTS
from prepbench.fixes.kinds.conditions import FLAGS
from prepbench.fixes.kinds.conds import CONDS
from prepbench.fixes.kinds.effects import EFFECTS
from prepbench.fixes.kinds.loops import LOOPS
from prepbench.fixes.kinds.numbers import NUMBERS, ONE_HOT
from prepbench.fixes.kinds.rows import ROWS
from prepbench.fixes.kinds.selections import EMPTY_SELECTIONS, SELECTION_COUNTS
from prepbench.fixes.site import Kind

KINDS: tuple[Kind, ...] = (
    CHECKS,
    EFFECTS,
    FLAGS,
    CHOSEN_TEXTS,
    BRANCHES,
    LOOPS,
    ARRAYS,
    CHOSEN_BY_NUMBER,
    ONE_HOT,
    NUMBERS,
    SELECTION_COUNTS,
    EMPTY_SELECTIONS,
    COPIES,
    ROWS,
    TRIES,
    CONDS,
    ASSIGNED_DATA,
)
"""Every kind of change that keeps what the model does, in the order in which they are tried."""

NARROWING_KINDS: tuple[Kind, ...] = (ASSUMED_SIDES,)
"""Kinds whose changes refuse some calls that the original takes; tried where no other kind knows a change."""

__all__ = ["KINDS", "NARROWING_KINDS", "Kind"]
