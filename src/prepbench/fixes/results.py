"""What checking a rewrite gives, and the error for what cannot be rewritten."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.errors import PrepbenchError

EQUAL, BROADCAST, DIFFERENT, NOT_REACHED = "equal", "equal after broadcasting", "different", "not reached"


class CannotRewrite(PrepbenchError, ValueError):
    """No change can be proposed; the message says why."""


@dataclass(frozen=True)
class BranchResult:
    """How the rewritten forward compares with the original on one side of one condition.

    Attributes:
        line: the line of the condition in the user's file.
        side: whether the condition was true.
        outcome: ``"equal"``, ``"equal after broadcasting"`` (another shape), ``"different"`` or ``"not reached"``.
        largest_difference: the largest absolute difference of two outputs.
    """

    line: int
    side: bool
    outcome: str
    largest_difference: float = 0.0

    def __repr__(self) -> str:
        text = f"line {self.line}, condition {self.side}: {self.outcome}"
        reached = self.outcome != NOT_REACHED
        return f"{text} (largest difference {self.largest_difference:.2g})" if reached else text


@dataclass(frozen=True)
class RewriteResult:
    """What :meth:`Rewrite.verify` found for each side of each condition."""

    branches: tuple[BranchResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every side was reached and none is different."""
        return bool(self.branches) and all(branch.outcome in (EQUAL, BROADCAST) for branch in self.branches)

    def __repr__(self) -> str:
        return "\n".join(["Verified" if self.passed else "Not verified", *(f"  {branch}" for branch in self.branches)])
