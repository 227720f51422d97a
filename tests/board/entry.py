"""What an entry of the board consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

Call = tuple[torch.Tensor, ...]
"""The arguments of one call of a network."""

Outputs = Sequence[np.ndarray]
"""The results of one call."""


class NotInstalledError(Exception):
    """A package of an entry is missing or cannot be used, and why."""


@dataclass(frozen=True)
class Task:
    """A trained network with its data.

    Attributes:
        model: in evaluation mode.
        calibration: calls that no score is computed on.
        test: calls that scores are computed on.
        parts: what the metric needs from the results of the test calls, as one array with a row for each item; the
            interval of the metric is drawn from these rows.
        metric: the metric of some rows.
        timed: the call that is timed.
    """

    model: nn.Module
    calibration: Sequence[Call]
    test: Sequence[Call]
    parts: Callable[[Sequence[Outputs]], np.ndarray]
    metric: Callable[[np.ndarray], float]
    timed: Call


@dataclass(frozen=True)
class Entry:
    """A row of the board.

    Attributes:
        kind: what the network is for.
        weights: where the weights come from.
        licence: of the weights; that of this project for what is trained here.
        data: what it is judged on.
        metric: the name of the metric.
        higher_is_better: whether more of it is better.
        load: makes the task; raises :class:`NotInstalledError`.
        package: what pip installs for it; empty for nothing.
        remark: anything a reader of the row should know.
        settings: further arguments of ``compile_model`` for int8, such as floors.
        transformer: whether tools that have settings for transformers shall use these.
    """

    kind: str
    weights: str
    licence: str
    data: str
    metric: str
    load: Callable[[], Task]
    higher_is_better: bool = True
    package: str = ""
    remark: str = ""
    settings: Mapping[str, object] | None = None
    transformer: bool = False


def accuracy(rows: np.ndarray) -> float:
    """The mean of hits, as a metric of rows with one number each."""
    return float(rows.mean())


def hits(labels: np.ndarray) -> Callable[[Sequence[Outputs]], np.ndarray]:
    """Whether the largest of an item's results is that of its label."""
    return lambda results: (np.concatenate([found[0].argmax(-1) for found in results]) == labels).astype(np.float64)
