"""``Kind``: the description of a kind of change to a user's source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prepbench.fixes.site import Proposal, Site


@dataclass(frozen=True)
class Kind:
    """One kind of change to the source of a function.

    Attributes:
        name: the rewrite in words, from what to what.
        right_if: the condition under which the change is correct.
        propose: changed functions for a site, the best one first; none where the kind has nothing to do there. It
            raises ``CannotFix`` where the kind fits and no right change is known.
    """

    name: str
    right_if: str
    propose: Callable[[Site], Iterable[Proposal]]
