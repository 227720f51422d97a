"""Cost tables of one target: noise, time and size of each (layer, choice), and fits to what was measured."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.settings import PruningSettings

# Least squares over sums of parts: sizes are estimated first and corrected by measured sums.


Part = Hashable
Parts = Mapping[Part, float]
"""How often, or how much of, each part is in a sum."""

_LEAST_ESTIMATE = 0.02  # of what was estimated: no layer takes less time than that, whatever sums seem to say


@dataclass(frozen=True)
class Estimate:
    """The prior size of a part, 0 or more, before any sum with it was measured, and its standard deviation."""

    value: float
    doubt: float


@dataclass(frozen=True)
class Measured:
    """A measured sum of parts, how often each occurs in it, and the standard deviation of the measurement."""

    parts: Parts
    value: float
    doubt: float


@dataclass(frozen=True)
class Corrected:
    """Sizes of parts, fitted by least squares to prior estimates and measured sums.

    With Gaussian errors this is the posterior mean (Bishop, Pattern Recognition and Machine Learning, 3.3).

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
        sizes = np.maximum(prior + weighted.T @ inverse @ missed, _LEAST_ESTIMATE * prior)
        return dict(zip(names, sizes.tolist(), strict=True))


# Side effects of pruning a layer: others lose the same channels, and layers that read them become smaller.


_LEAST = 0.01  # of a layer that is left, whatever the sums say


@dataclass(frozen=True)
class Reading:
    """A layer that reads channels which another layer makes.

    Attributes:
        maker: FQN of a layer that makes them.
        reader: FQN of the layer that reads them.
        more: how much more of the reader's weights are left, or less, relative to a model of the reader's choice in all
            layers, by the choices of the maker and of the reader. Pairs that change nothing are missing.
    """

    maker: str
    reader: str
    more: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Shrinking:
    """The side effects of pruning choices; empty where no choice prunes.

    Attributes:
        channels: the settings of choices that remove channels, by name.
        together: layers that make the same channels, and lose them together.
        readings: the layers that read channels which others make.
        left: the share of a layer's weights that is left in a model of one choice in all layers, by layer and choice;
            1 where it is missing.
    """

    channels: Mapping[str, PruningSettings] = field(default_factory=dict)
    together: tuple[frozenset[str], ...] = ()
    readings: tuple[Reading, ...] = ()
    left: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def counts(self, taken: Mapping[str, str]) -> dict[str, float]:
        """Return a factor for each layer's cost relative to a uniform model of its choice; factors of 1 are omitted."""
        found: dict[str, float] = {}
        for each in self.readings:
            more = each.more.get((taken[each.maker], taken[each.reader]), 0.0)
            if more:
                found[each.reader] = found.get(each.reader, 1.0) + more
        return {fqn: max(count, _LEAST) for fqn, count in found.items()}

    def fits(self, one: str, other: str) -> bool:
        """Return whether layers that make the same channels may take these two choices."""
        return self.channels.get(one) == self.channels.get(other)

    def is_possible(self, taken: Mapping[str, str]) -> bool:
        """Return whether all layers that make the same channels lose the same ones."""
        return all(len({self.channels.get(taken[fqn]) for fqn in group}) == 1 for group in self.together)


REST, CONVERSION, CONVERTED_BYTE = "rest", "conversion", "converted byte"
"""Parts of time and size that belong to no layer: what is always there, each conversion, and each byte of it."""


@dataclass(frozen=True)
class Neighbours:
    """Two layers, the second of which reads the first's output, and the bytes of the values between them, in float."""

    one: str
    other: str
    bytes: int


@dataclass(frozen=True)
class Tables:
    """The costs of each (layer, choice), estimated first and corrected by measurements.

    Attributes:
        layers: FQNs, in the order in which they run.
        choices: names, :data:`FLOAT` first.
        types: the type that a layer computes in, by choice: conversions lie between layers of different types.
        refused: layers and choices that do not go together, with the reason.
        groups: layers that take the same choice, because they share weights.
        neighbours: of which one reads the other.
        times: seconds, by layer and choice, and of conversions.
        sizes: bytes.
        noise: at the model's output, relative to the signal or in nats.
        curve: how the metric falls with noise.
        beside: seconds of layers and choices that are in none of the layer's own kernels.
        rounded: the layers and choices that need each value to be rounded, or each cut, by the part of the noise that
            it makes; such a part counts once, however many need it.
        bits: the choice that quantizes alike, by which its noise is known, by choice; the choice itself where missing.
        kernels: the choice without equalised channels that else is the same, by which time and size are known, in the
            same way. Scales are those of a model, not of a layer, so no mixture takes both.
        shrinking: the side effects of pruning on other layers.
        further: costs of objectives that estimate them themselves, by their names.
    """

    layers: tuple[str, ...]
    choices: tuple[str, ...]
    types: Mapping[str, str]
    refused: Mapping[tuple[str, str], str]
    groups: tuple[frozenset[str], ...]
    neighbours: tuple[Neighbours, ...]
    times: Corrected
    sizes: Corrected
    noise: Corrected
    curve: DropCurve
    beside: Mapping[Part, float] = field(default_factory=dict)
    rounded: Mapping[Part, frozenset[tuple[str, str]]] = field(default_factory=dict)
    bits: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    shrinking: Shrinking = field(default_factory=Shrinking)
    further: Mapping[str, Corrected] = field(default_factory=dict)

    @property
    def only_pruned(self) -> tuple[str, ...]:
        """The choices that prune and do not quantize."""
        return tuple(name for name, alike in self.bits.items() if alike == FLOAT)

    def seconds(self, mixture: Mixture) -> float:
        """Return the seconds of one call."""
        return self.times.total(self.time_parts(mixture))

    def size(self, mixture: Mixture) -> float:
        """Return the bytes of the saved model."""
        return self.sizes.total(self.parts(mixture))

    def noise_of(self, mixture: Mixture) -> float:
        """Return the noise at the model's output."""
        return self.noise.total(self.noise_parts(mixture))

    def parts(self, mixture: Mixture) -> Parts:
        """Return the parts of a mixture without conversions; layers that read fewer channels count less."""
        taken = dict(zip(self.layers, mixture, strict=True))
        counts = self.shrinking.counts(taken)
        return {REST: 1.0, **{self.part(*pair): counts.get(pair[0], 1.0) for pair in taken.items()}}

    def part(self, fqn: str, name: str) -> Part:
        """Return the part that stands for a layer and its choice in time and size."""
        return fqn, self.kernels.get(name, name)

    @property
    def apart(self) -> tuple[frozenset[str], ...]:
        """For each group of choices that do not mix with others: the choices that such mixtures exclude."""
        scaled = {name: plain for name, plain in self.kernels.items() if plain != name}
        return (frozenset(scaled), frozenset(scaled.values())) if scaled else (frozenset(),)

    def mixes(self, mixture: Mixture) -> bool:
        """Return whether a mixture combines choices that do not mix."""
        return not any(left_out.isdisjoint(mixture) for left_out in self.apart)

    def kernels_of(self, mixture: Mixture) -> Mixture:
        """Return the representative of all mixtures that run the same kernels, and so take the same time."""
        return tuple(self.kernels.get(name, name) for name in mixture)

    def noise_parts(self, mixture: Mixture) -> Parts:
        """Return the parts of a mixture's noise: its layers, the values rounded for them, and the pruned channels."""
        taken = frozenset(zip(self.layers, mixture, strict=True))
        own = ((fqn, self.bits.get(name, name)) for fqn, name in taken)
        rounded = (part for part, needed_by in self.rounded.items() if needed_by & taken)
        return {**dict.fromkeys(own, 1.0), **dict.fromkeys(rounded, 1.0)}

    def time_parts(self, mixture: Mixture) -> Parts:
        """Return the parts of a mixture's time, including conversions."""
        taken = dict(zip(self.layers, mixture, strict=True))
        found = dict(self.parts(mixture))
        for each in self.neighbours:
            for part, count in self.conversion(each, taken[each.one], taken[each.other]).items():
                found[part] = found.get(part, 0.0) + count
        return found

    def conversion(self, between: Neighbours, one: str, other: str) -> Parts:
        """Return the conversions between two neighbours with these choices."""
        if self.types[one] == self.types[other]:
            return {}
        return {CONVERSION: 1.0, CONVERTED_BYTE: float(between.bytes), between: 1.0}

    def with_measured(
        self, mixture: Mixture, *, seconds: float | None = None, size: float | None = None, noise: float | None = None
    ) -> Tables:
        """Return a copy that is corrected by measurements of a mixture."""
        result = self
        if seconds is not None:
            measured = Measured(self.time_parts(mixture), seconds, _TIMING * seconds)
            result = replace(result, times=result.times.with_measured(measured))
        if size is not None:
            measured = Measured(self.parts(mixture), size, _SIZING * size)
            result = replace(result, sizes=result.sizes.with_measured(measured))
        if noise is not None and math.isfinite(noise):
            # where noise is as large as the signal, it no longer adds up
            measured = Measured(self.noise_parts(mixture), noise, (_NOISE + noise) * noise)
            result = replace(result, noise=result.noise.with_measured(measured))
        return result


_TIMING, _SIZING, _NOISE = 0.02, 0.005, 0.1


# A monotone curve from output noise to the drop of the metric, fitted to measurements.


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
        """Return the largest noise of at most this drop; infinite if nothing drops, negative if none is allowed."""
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
