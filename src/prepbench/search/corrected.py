"""Least squares over sums of parts: sizes are estimated first and corrected by measured sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Part = Hashable
Parts = Mapping[Part, float]
"""How often, or how much of, each part is in a sum."""

_LEAST = 0.02  # of what was estimated: no layer takes less time than that, whatever sums seem to say


@dataclass(frozen=True)
class Estimate:
    """The prior size of a part, before any sum with it was measured.

    Attributes:
        value: 0 or more.
        doubt: how far off it may be, as a standard deviation in the same unit.
    """

    value: float
    doubt: float


@dataclass(frozen=True)
class Measured:
    """A measured sum of parts.

    Attributes:
        parts: how often each part occurs in it.
        value: the sum.
        doubt: how far off the measurement may be, as a standard deviation.
    """

    parts: Parts
    value: float
    doubt: float


@dataclass(frozen=True)
class Corrected:
    """Sizes of parts, fitted by least squares to prior estimates and measured sums.

    With Gaussian errors this is the posterior mean (Bishop, Pattern Recognition and Machine Learning, 3.3).

    Attributes:
        estimates: by part.
        measured: the measured sums so far.

    Example:
        >>> parts = {"a": Estimate(1.0, 0.5), "b": Estimate(2.0, 0.01)}
        >>> corrected = Corrected(parts, (Measured({"a": 1, "b": 1}, 4.0, 0.01),))
        >>> round(corrected.size("a"), 2), round(corrected.total({"a": 1, "b": 1}), 2)
        (2.0, 4.0)
    """

    estimates: Mapping[Part, Estimate]
    measured: Sequence[Measured] = ()
    _sizes: dict[Part, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", self._solved())

    def with_measured(self, *measured: Measured) -> Corrected:
        """Return a copy that also fits further sums."""
        return Corrected(self.estimates, (*self.measured, *measured))

    def size(self, part: Part) -> float:
        """Return the size of a part; 0 for an unknown one."""
        return self._sizes.get(part, 0.0)

    def total(self, parts: Parts) -> float:
        """Return the estimated sum of parts."""
        return sum(count * self.size(part) for part, count in parts.items())

    def doubt(self, parts: Parts) -> float:
        """Return the standard deviation of a sum of parts; negative counts give that of a difference.

        Example:
            >>> parts = {"a": Estimate(1.0, 0.5), "b": Estimate(2.0, 0.3)}
            >>> round(Corrected(parts).doubt({"a": 1, "b": -1}), 3)
            0.583
        """
        names = [name for name, count in parts.items() if count and name in self.estimates]
        if not names:
            return 0.0
        asked = np.array([parts[name] for name in names])
        own = np.array([self.estimates[name].doubt for name in names], dtype=float) ** 2
        left = float(asked**2 @ own)
        if self.measured:
            place = {name: at for at, name in enumerate(self.estimates)}
            with_sums = self._gained[1][:, [place[name] for name in names]] @ asked
            left -= float(with_sums @ self._gained[0] @ with_sums)
        return math.sqrt(max(left, 0.0))

    @functools.cached_property
    def _gained(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the inverse covariance of the measured sums, and the prior covariance between them and all parts."""
        variance = np.array([each.doubt for each in self.estimates.values()], dtype=float) ** 2
        counts = self._counts()
        noise = np.diag([max(one.doubt, 1e-12) ** 2 for one in self.measured])
        weighted = counts * variance
        return np.linalg.pinv(weighted @ counts.T + noise), weighted

    def _counts(self) -> np.ndarray:
        """Return the design matrix: how often each part occurs in each measured sum."""
        place = {name: at for at, name in enumerate(self.estimates)}
        counts = np.zeros((len(self.measured), len(place)))
        for row, one in enumerate(self.measured):
            for part, count in one.parts.items():
                if part in place:
                    counts[row, place[part]] += count
        return counts

    def _solved(self) -> dict[Part, float]:
        names = list(self.estimates)
        prior = np.array([self.estimates[name].value for name in names], dtype=float)
        if not self.measured or not names:
            return dict(zip(names, prior.tolist(), strict=True))
        missed = np.array([one.value for one in self.measured]) - self._counts() @ prior
        inverse, weighted = self._gained
        sizes = np.maximum(prior + weighted.T @ inverse @ missed, _LEAST * prior)
        return dict(zip(names, sizes.tolist(), strict=True))
