"""The distance of a model's outputs from those in float, over several samples."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from prepbench.quantize.floors import Score
from prepbench.quantize.layer_noise import as_tuple, bounded_decibels
from prepbench.quantize.predictions import divergence
from prepbench.running.sqnr import Powers, powers


class ScoreSum:
    """The distance of outputs from those in float, summed over samples.

    Args:
        logits: the outputs that predict tokens.
    """

    def __init__(self, logits: Collection[int] = ()) -> None:
        self._logits = logits
        self._powers: dict[int, Powers] = {}
        self._diverged, self._predictions = 0.0, 0

    def add(self, expected: Any, found: Any) -> None:
        """Add the outputs of one sample."""
        for index, (one, other) in enumerate(zip(as_tuple(expected), as_tuple(found), strict=True)):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self._powers[index] = self._powers.get(index, Powers()) + powers(one, other)
            if index in self._logits:
                total, count = divergence(one, other)
                self._diverged, self._predictions = self._diverged + total, self._predictions + count

    @property
    def score(self) -> Score:
        """Return the SQNR of the worst floating-point output, and the divergence of predictions."""
        found = {index: bounded_decibels(power) for index, power in self._powers.items()}
        divergence = self._diverged / self._predictions if self._predictions else None
        main_first = sorted(found, key=lambda index: (index not in self._logits, index))
        outputs = tuple((index, found[index]) for index in main_first)
        return Score(min(found.values(), default=bounded_decibels(Powers())), divergence, outputs)
