"""What is known about the layers of a model on one target: noise, time and size of each choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prepbench.quantize.integer_program import Border, Limit, Shared, cheapest
from prepbench.search.corrected import Corrected, Measured, Part, Parts
from prepbench.search.curve import DropCurve
from prepbench.search.mixtures import Mixture

REST, CONVERSION, CONVERTED_BYTE = "rest", "conversion", "converted byte"
"""Parts of time and size that belong to no layer: what is always there, each conversion, and each byte of it."""

_SHARE_OF_NOISE = 1e-3  # of the cost, by which the quieter of two equally good mixtures is taken
_TIGHTER = 6  # tries to meet a limit that the program does not see as a whole


@dataclass(frozen=True)
class Neighbours:
    """Two layers of which one reads what the other gives.

    Attributes:
        one: FQN of the layer that is computed first.
        other: FQN of the layer that reads.
        bytes: of what lies between them, in float.
    """

    one: str
    other: str
    bytes: int


@dataclass(frozen=True)
class Tables:
    """Costs of each layer and choice, as estimated and then corrected by what was measured.

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
        rounded: layers and choices for which a value between layers is rounded, by that part of the noise; it is there
            once, however many need it.
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

    def seconds(self, mixture: Mixture) -> float:
        """What one call takes."""
        return self.times.total(self.time_parts(mixture))

    def size(self, mixture: Mixture) -> float:
        """Bytes of the saved model."""
        return self.sizes.total(self.parts(mixture))

    def noise_of(self, mixture: Mixture) -> float:
        """At the model's output."""
        return self.noise.total(self.noise_parts(mixture))

    def parts(self, mixture: Mixture) -> Parts:
        """What a mixture consists of, without conversions."""
        return {REST: 1.0, **dict.fromkeys(zip(self.layers, mixture, strict=True), 1.0)}

    def noise_parts(self, mixture: Mixture) -> Parts:
        """What the noise of a mixture consists of: that of layers, and of values that are rounded for any of them."""
        taken = frozenset(zip(self.layers, mixture, strict=True))
        rounded = (part for part, needed_by in self.rounded.items() if needed_by & taken)
        return {**dict.fromkeys(taken, 1.0), **dict.fromkeys(rounded, 1.0)}

    def time_parts(self, mixture: Mixture) -> Parts:
        """What a mixture consists of, with conversions."""
        taken = dict(zip(self.layers, mixture, strict=True))
        found = dict(self.parts(mixture))
        for each in self.neighbours:
            for part, count in self.conversion(each, taken[each.one], taken[each.other]).items():
                found[part] = found.get(part, 0.0) + count
        return found

    def conversion(self, between: Neighbours, one: str, other: str) -> Parts:
        """What lies between two neighbours with these choices."""
        if self.types[one] == self.types[other]:
            return {}
        return {CONVERSION: 1.0, CONVERTED_BYTE: float(between.bytes), between: 1.0}

    def with_measured(
        self, mixture: Mixture, *, seconds: float | None = None, size: float | None = None, noise: float | None = None
    ) -> Tables:
        """The same, corrected by what was measured of a mixture."""
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


@dataclass(frozen=True)
class Bounds:
    """What a mixture may take; infinite for any.

    Attributes:
        noise: at the model's output.
        seconds: of one call.
        bytes: of the saved model.
    """

    noise: float = math.inf
    seconds: float = math.inf
    bytes: float = math.inf


def solve(tables: Tables, goal: str, bounds: Bounds, without: Sequence[Mixture] = ()) -> Mixture | None:
    """The mixture with the least of something within bounds, as far as the tables know; None where there is none.

    Args:
        tables: what is known.
        goal: ``"latency"``, ``"size"`` or ``"drop"``.
        bounds: limits; that of the goal itself is not looked at.
        without: mixtures that are left out.
    """
    if goal == "latency" or bounds.seconds == math.inf:
        return _solve(tables, goal, bounds, bounds.seconds, without)
    # conversions are part of the costs, not of the limits: a limit of time is tightened until it holds with them
    tightened, best = bounds.seconds, None
    for _ in range(_TIGHTER):
        found = _solve(tables, goal, bounds, tightened, without)
        if found is None:
            break
        over = tables.seconds(found) - bounds.seconds
        if over <= 0:
            best = found
            break
        tightened -= over
    return best


def _solve(tables: Tables, goal: str, bounds: Bounds, seconds: float, without: Sequence[Mixture]) -> Mixture | None:
    times, sizes, noise = (_matrix(tables, each) for each in (tables.times, tables.sizes, tables.noise))
    limits = [Limit(_excluded(tables, mixture), len(tables.layers) - 1.0) for mixture in without]
    of_noise = len(limits) if goal != "drop" and bounds.noise < math.inf else None
    if goal != "drop" and bounds.noise < math.inf:
        limits.append(Limit(noise, bounds.noise))
    if goal != "size" and bounds.bytes < math.inf:
        limits.append(Limit(sizes, bounds.bytes - tables.sizes.size(REST)))
    if goal != "latency" and seconds < math.inf:
        limits.append(Limit(times, seconds - tables.times.size(REST)))
    costs = {"latency": times, "size": sizes, "drop": noise}[goal]
    if goal != "drop":
        costs = _with_share(costs, noise)
    groups = [[tables.layers.index(fqn) for fqn in group] for group in tables.groups]
    shared = [
        Shared(
            needed_by,
            [value if at == of_noise else 0.0 for at in range(len(limits))],
            value if goal == "drop" else 0.0,
        )
        for needed_by, value in _shared(tables)
        if of_noise is not None or goal == "drop"
    ]
    found = cheapest(costs, limits, _borders(tables) if goal == "latency" else (), groups, shared)
    return None if found is None else tuple(tables.choices[choice] for choice in found)


def _matrix(tables: Tables, corrected: Corrected) -> list[list[float]]:
    return [
        [math.inf if (fqn, name) in tables.refused else corrected.size((fqn, name)) for name in tables.choices]
        for fqn in tables.layers
    ]


def _shared(tables: Tables) -> list[tuple[dict[int, list[int]], float]]:
    """The layers and choices that need each value that is rounded between layers, by their places, and its noise."""
    layers = {fqn: at for at, fqn in enumerate(tables.layers)}
    choices = {name: at for at, name in enumerate(tables.choices)}
    found = []
    for part, needs in tables.rounded.items():
        places: dict[int, list[int]] = {}
        for fqn, name in sorted(needs):
            places.setdefault(layers[fqn], []).append(choices[name])
        if places:
            found.append((places, tables.noise.size(part)))
    return found


def _excluded(tables: Tables, mixture: Mixture) -> list[list[float]]:
    return [[float(name == taken) for name in tables.choices] for taken in mixture]


def _with_share(costs: list[list[float]], noise: list[list[float]]) -> list[list[float]]:
    """Costs with a little of the noise, so that of equally good mixtures the quieter one is found."""
    most = [sum(max((v for v in row if v < math.inf), default=0.0) for row in each) for each in (costs, noise)]
    share = _SHARE_OF_NOISE * most[0] / most[1] if most[1] > 0 else 0.0
    return [[cost + share * loud for cost, loud in zip(*rows, strict=True)] for rows in zip(costs, noise, strict=True)]


def _borders(tables: Tables) -> list[Border]:
    place = {fqn: at for at, fqn in enumerate(tables.layers)}
    return [
        Border(
            place[each.one],
            place[each.other],
            [
                [tables.times.total(tables.conversion(each, one, other)) for other in tables.choices]
                for one in tables.choices
            ],
        )
        for each in tables.neighbours
        if each.one != each.other
    ]


def front(tables: Tables, goal: str, points: int) -> list[Mixture]:
    """Mixtures from the quietest to the one with the least of a goal, each the best within its noise.

    Args:
        tables: what is known.
        goal: ``"latency"`` or ``"size"``.
        points: how many bounds of noise are tried.
    """
    least, most = (solve(tables, each, Bounds()) for each in ("drop", goal))
    if least is None or most is None:
        return []
    low, high = tables.noise_of(least), tables.noise_of(most)
    low = max(low, 1e-4 * high)
    found = [least, most]
    for at in range(points):
        bound = low * (high / low) ** (at / max(points - 1, 1)) if low > 0 else high
        one = solve(tables, goal, Bounds(noise=bound))
        found += [one] if one is not None else []
    return list(dict.fromkeys(found))
