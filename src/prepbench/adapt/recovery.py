"""``Recovery``: the result of a recovery training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prepbench._display import view

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


@dataclass(frozen=True)
class Recovery:
    """The result of :func:`prepbench.recover`.

    Attributes:
        losses: the loss of each step.
        scores: the score in evaluation mode after so many steps; of 0 steps, before any.
        metric: the name of the score.
        higher_is_better: whether larger scores are better.
        best_step: the step after which the model had its final weights.
        stopped: why it ended.
        seconds: how long it took.
        trained: how many numbers were trained.
        notes: remarks on the scores, such as the data that they are of; empty if there are none.

    Example:
        >>> recovery = Recovery((0.5, 0.2), {0: 0.5, 2: 0.2}, "loss", False, 2, "all steps are done", 1.0, 10)
        >>> recovery.before, recovery.after
        (0.5, 0.2)
    """

    losses: tuple[float, ...]
    scores: Mapping[int, float]
    metric: str
    higher_is_better: bool
    best_step: int
    stopped: str
    seconds: float
    trained: int
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """The score before training."""
        return self.scores[0]

    @property
    def after(self) -> float:
        """The score of the model's current weights."""
        return self.scores[self.best_step]

    @property
    def summary(self) -> str:
        """Describe the gain in a sentence, with any warning."""
        gained = (
            f"{self.metric} {self.before:.4g} before, {self.after:.4g} after {self.best_step} of {len(self.losses)} "
            f"steps ({self.seconds:.1f} s, {self.trained:,} numbers trained; {self.stopped})"
        )
        return ". ".join([gained, *self.notes])

    def table(self) -> pandas.DataFrame:
        """Return one row for each step: its loss, and the score where it was measured."""
        return view("views.recoveries", "recovery_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw loss and score over steps."""
        return view("views.recoveries", "recovery_figure", self)

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.recoveries", "bundle", self)  # type: ignore[no-any-return]
