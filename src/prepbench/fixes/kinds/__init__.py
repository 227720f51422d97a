"""The kinds of changes to a user's source, one per file.

To add a kind, write a file with one :class:`~prepbench.fixes.kinds.kind.Kind` and list it in :data:`KINDS`.
"""

from prepbench.fixes.kinds.arrays import ARRAYS
from prepbench.fixes.kinds.assigned_data import ASSIGNED_DATA
from prepbench.fixes.kinds.branches import BRANCHES
from prepbench.fixes.kinds.checks import CHECKS
from prepbench.fixes.kinds.chosen_by_number import CHOSEN_BY_NUMBER
from prepbench.fixes.kinds.chosen_texts import CHOSEN_TEXTS
from prepbench.fixes.kinds.conds import CONDS
from prepbench.fixes.kinds.copies import COPIES
from prepbench.fixes.kinds.effects import EFFECTS
from prepbench.fixes.kinds.empty_selections import EMPTY_SELECTIONS
from prepbench.fixes.kinds.flags import FLAGS
from prepbench.fixes.kinds.kind import Kind
from prepbench.fixes.kinds.loops import LOOPS
from prepbench.fixes.kinds.numbers import NUMBERS
from prepbench.fixes.kinds.one_hot import ONE_HOT
from prepbench.fixes.kinds.rows import ROWS
from prepbench.fixes.kinds.selection_counts import SELECTION_COUNTS
from prepbench.fixes.kinds.tries import TRIES

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
"""Every kind of change, in the order in which they are tried."""

__all__ = ["KINDS", "Kind"]
