"""What a metric says of itself: its name, unit, range and direction, and how it is taken over all the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TOTALS, FACTS = "totals", "facts"


@dataclass(frozen=True)
class Facts:
    """What tables and charts show of a metric."""

    name: str
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf
    higher_is_better: bool = True

    @property
    def label(self) -> str:
        """The name with the unit.

        Example:
            >>> Facts("PSNR", "dB").label
            'PSNR (dB)'
        """
        return f"{self.name} ({self.unit})" if self.unit else self.name


class Watch(Protocol):
    """Looks at all batches, and refuses what no single one of them shows to be wrong."""

    def add(self, output: Any, target: Any) -> None: ...
    def check(self) -> None: ...


@dataclass(frozen=True)
class Totals:
    """Accumulators of a metric over all the data.

    Attributes:
        sums: the sums of one batch, from its output and its target: numbers, or a tensor of shape (classes, sums).
        score: the metric of sums, which have further dimensions in front.
        against_reference: whether the target is the first candidate's output.
        higher_is_better: direction of the metric.
        of_classes: whether outputs are scores of classes, so that rows are as far apart as what they predict.
        watch: makes what looks at the batches of one score; None where each batch shows what is wrong with it.
    """

    sums: Callable[[Any, Any], Any]
    score: Callable[[Any], Any]
    against_reference: bool = False
    higher_is_better: bool = False
    of_classes: bool = True
    watch: Callable[[], Watch] | None = None


@dataclass(frozen=True)
class Records:
    """A metric of something that is kept of each batch, where no sums are enough.

    Attributes:
        of_batch: what is kept of one batch, from its output and its target.
        score: the metric of the records of several batches; NaN where they have none.
        nothing: why there is none, as the end of a sentence.
    """

    of_batch: Callable[[Any, Any], Any]
    score: Callable[[Sequence[Any]], float]
    nothing: str


@dataclass(frozen=True)
class ByKeywords:
    """Makes the totals or records of a metric that has keywords, which ``functools.partial`` gives."""

    make: Callable[..., Totals | Records]


def totals_of(metric: Any) -> Totals | None:
    """Return the accumulators of a metric; None for a metric that is no function of sums."""
    found = _given(metric)
    return found if isinstance(found, Totals) else None


def records_of(metric: Any) -> Records | None:
    """Return how a metric is taken from records of batches; None for any other metric."""
    found = _given(metric)
    return found if isinstance(found, Records) else None


def facts_of(metric: Any) -> Facts | None:
    """Return what a metric says of itself; None where it says nothing."""
    found = getattr(metric.func if isinstance(metric, functools.partial) else metric, FACTS, None)
    return found if isinstance(found, Facts) else None


def is_higher_better(metric: Any, given: bool | None = None) -> bool:
    """Return a metric's direction: as given, else as known for it, lower for a loss, else higher is better.

    Example:
        >>> import torch
        >>> [is_higher_better(metric) for metric in (torch.nn.functional.cross_entropy, torch.nn.L1Loss(), max)]
        [False, False, True]
    """
    if given is not None:
        return given
    known = facts_of(metric) or totals_of(metric)
    return not _is_loss(metric) if known is None else known.higher_is_better


_LOSSES = ("loss", "cross_entropy", "cross_entropy_with_logits", "kl_div")


def _is_loss(metric: Any) -> bool:
    """Return whether a function or an object is a loss by its name, as those of torch are."""
    inner = metric.func if isinstance(metric, functools.partial) else metric
    names = [getattr(inner, "__name__", ""), *(kind.__name__ for kind in type(inner).__mro__)]
    return any(str(name).lower().endswith(_LOSSES) for name in names)


def _given(metric: Any) -> Any:
    """Return how a metric is taken over all the data."""
    inner, keywords = (metric.func, metric.keywords) if isinstance(metric, functools.partial) else (metric, {})
    found = getattr(inner, TOTALS, None)
    return found.make(**keywords) if isinstance(found, ByKeywords) else found
