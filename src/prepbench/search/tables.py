"""Cost tables of one target: noise, time and size of each (layer, choice)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prepbench.search.corrected import Corrected, Measured, Part, Parts
from prepbench.search.curve import DropCurve
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.shrinking import Shrinking

REST, CONVERSION, CONVERTED_BYTE = "rest", "conversion", "converted byte"
"""Parts of time and size that belong to no layer: what is always there, each conversion, and each byte of it."""


@dataclass(frozen=True)
class Neighbours:
    """Two layers, of which one reads the other's output.

    Attributes:
        one: FQN of the layer that is computed first.
        other: FQN of the layer that reads.
        bytes: of the values between them, in float.
    """

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
        """Return the parts of a mixture's noise: its layers, the values rounded for any of them, and the pruned
        channels.
        """
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
