"""Recovery training as plain values for a front end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecoverySummary:
    """The settings of a training, and its requirements.

    Attributes:
        unavailable: why none is possible with the current choices; "" where one is.
        on: whether a compile trains now.
        said: the training data, and how the best weights are chosen, in words.
        labelled: whether there are targets to learn from; without them the float model is learned.
        metric: by which weights can be kept; "" where only the loss can.
        steps: of the current choices, or else the usual ones; so are the next ones.
        distill: whether the float model is learned, too.
        by_metric: whether the metric decides which weights are kept.
        learning_rate: of the optimizer.
    """

    unavailable: str
    on: bool
    said: str
    labelled: bool
    metric: str
    steps: int
    distill: bool
    by_metric: bool
    learning_rate: float
