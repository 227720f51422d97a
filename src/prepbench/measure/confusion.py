"""The confusion matrix of a candidate, as values, text, table and chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from prepbench._display import view
from prepbench.checks import check_count

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

_PAIRS = 10


@dataclass(frozen=True, repr=False, eq=False)
class Confusion:
    """How often each class was predicted for each other: the result of :meth:`Comparison.confusion`.

    Attributes:
        candidate: whose predictions these are.
        counts: int64 of shape (classes, classes): row is the target's class, column the predicted one.
        first: the first candidate's name; empty where these are its own counts.
        first_counts: its counts of the same data.

    Example:
        >>> Confusion("int8", torch.tensor([[3, 1], [0, 4]])).accuracy
        0.875
    """

    candidate: str
    counts: torch.Tensor
    first: str = ""
    first_counts: torch.Tensor | None = None

    @property
    def accuracy(self) -> float:
        """The share of predictions that are the target's class."""
        return float(self.counts.diagonal().sum()) / max(int(self.counts.sum()), 1)

    @property
    def caption(self) -> str:
        """Describe the counts in one sentence."""
        total, wrong = int(self.counts.sum()), int(self.counts.sum() - self.counts.diagonal().sum())
        return f"{self.candidate}: {wrong} of {total} predictions are another class than the target's."

    def table(self) -> pandas.DataFrame:
        """Return one row for each target class, one column for each predicted class."""
        import pandas

        names = range(len(self.counts))
        table = pandas.DataFrame(self.counts.tolist(), index=list(names), columns=list(names))
        table.index.name, table.columns.name = "target", "predicted"
        return table

    def pairs(self, n: int = _PAIRS) -> pandas.DataFrame:
        """Return the pairs of classes that are confused most often, with the counts of the first candidate.

        Args:
            n: how many pairs.
        """
        import pandas

        check_count("n", n, 1)
        wrong = self.counts - self.counts.diagonal().diag()
        counts, places = wrong.flatten().topk(min(n, wrong.numel()))
        found = [(place, count) for place, count in zip(places.tolist(), counts.tolist(), strict=True) if count]
        rows = [(place // len(wrong), place % len(wrong), count) for place, count in found]
        table = pandas.DataFrame(rows, columns=["target", "predicted", self.candidate])
        base = self.first_counts
        if base is not None:
            inside = [(a, b) if max(a, b) < len(base) else None for a, b, _ in rows]
            table[self.first] = [0 if place is None else int(base[place]) for place in inside]
        return table

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw a heat map of the counts; pairs that never occur are left empty."""
        return view("views.samples", "confusion_figure", self)

    def __repr__(self) -> str:
        pairs = self.pairs()
        return f"{pairs.to_string(index=False)}\n{self.caption}" if len(pairs) else self.caption

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.samples", "confusion_bundle", self)  # type: ignore[no-any-return]
