"""A monotone curve from output noise to the drop of the metric, fitted to measurements."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class DropCurve:
    """The drop of the metric as a function of the noise at the model's output.

    The curve is linear between measured points. Beyond the last point it follows the line from the origin through that
    point, and it is never below 0.

    Attributes:
        noise: increasing, from 0.
        drops: at these, not decreasing.

    Example:
        >>> curve = DropCurve.through([(0.0, 0.0), (0.01, 0.02), (0.02, 0.01), (0.1, 0.2)])
        >>> round(curve.drop(0.015), 3), round(curve.noise_at(0.2), 3)
        (0.015, 0.1)
    """

    noise: tuple[float, ...]
    drops: tuple[float, ...]

    @classmethod
    def through(cls, measured: Iterable[tuple[float, float]]) -> DropCurve:
        """Fit the nearest monotone curve to pairs of noise and drop: neighbours in the wrong order take their mean.

        Source: pool adjacent violators (Ayer et al., 1955).
        """
        blocks: list[list[float]] = []  # weight, sum of drops, and the noise of each
        for noise, drop in sorted(pair for pair in measured if all(map(math.isfinite, pair))):
            blocks.append([1.0, drop, noise])
            while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] > blocks[-1][1] / blocks[-1][0]:
                weight, total, *points = blocks.pop()
                blocks[-1][0] += weight
                blocks[-1][1] += total
                blocks[-1] += points
        pairs = [(noise, block[1] / block[0]) for block in blocks for noise in block[2:]]
        if not pairs or pairs[0][0] > 0:
            pairs.insert(0, (0.0, min(0.0, pairs[0][1] if pairs else 0.0)))
        return cls(tuple(noise for noise, _ in pairs), tuple(drop for _, drop in pairs))

    def drop(self, noise: float) -> float:
        """Return the drop at this noise."""
        if noise >= self.noise[-1]:
            return self.drops[-1] + self._slope * (noise - self.noise[-1])
        right = max(bisect.bisect_right(self.noise, noise), 1)
        low, high = self.noise[right - 1], self.noise[right]
        share = (noise - low) / (high - low) if high > low else 1.0
        return self.drops[right - 1] + share * (self.drops[right] - self.drops[right - 1])

    def noise_at(self, drop: float) -> float:
        """Return the largest noise whose drop is at most this; infinite where nothing drops, negative where no noise is
        allowed.
        """
        if self.drops[-1] <= drop:
            return math.inf if self._slope == 0 else self.noise[-1] + (drop - self.drops[-1]) / self._slope
        right = bisect.bisect_right(self.drops, drop)
        if right == 0:
            return -math.inf
        low, high = self.drops[right - 1], self.drops[right]
        return self.noise[right - 1] + (drop - low) / (high - low) * (self.noise[right] - self.noise[right - 1])

    @property
    def _slope(self) -> float:
        """Return the slope beyond the last measured point."""
        return max(self.drops[-1] - self.drops[0], 0.0) / self.noise[-1] if self.noise[-1] > 0 else 0.0
