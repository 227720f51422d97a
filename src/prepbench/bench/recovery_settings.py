"""The settings of a bench's training before compiling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.settings.validation import Settings, check_choice

_MOST_STEPS = 10**6


@dataclass(frozen=True, kw_only=True)
class RecoverySettings(Settings):
    """A short training between preparing and compiling, as :func:`prepbench.recover` does it.

    Attributes:
        steps: how many batches, at most. Default 300.
        distill: whether to learn the outputs of the float model, too. Default True.
        by_metric: whether the metric of the bench decides which weights are kept, where there is one; else the loss.
            Default True.
        learning_rate: of AdamW at its highest. Default 0.001.

    Example:
        >>> RecoverySettings(steps=50).summary
        '50 steps, learning from the float model'
    """

    steps: int = 300
    distill: bool = True
    by_metric: bool = True
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if type(self.steps) is not int or not 1 <= self.steps <= _MOST_STEPS:
            raise SettingsError(
                f"Steps must be a whole number from 1 to {_MOST_STEPS}, got {described(self.steps)}. To compile "
                "without training, leave the training out."
            )
        check_choice(self, "distill", (True, False))
        check_choice(self, "by_metric", (True, False))
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise SettingsError(f"The learning rate must be a number above 0, got {described(rate)}.")

    @property
    def summary(self) -> str:
        """Return a short text that describes the training."""
        said = [f"{self.steps} step{'s' * (self.steps != 1)}"]
        said += ["learning from the float model"] if self.distill else []
        said += [] if self.learning_rate == type(self).learning_rate else [f"learning rate {self.learning_rate:g}"]
        return ", ".join(said)
