"""The mixture with the least of something within bounds, by what the tables say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prepbench.quantize.integer_program import Limit, Shared, cheapest
from prepbench.search.borders import borders_of
from prepbench.search.corrected import Corrected
from prepbench.search.mixtures import Mixture
from prepbench.search.tables import REST, Tables

_SHARE_OF_NOISE = 1e-3  # of the cost, by which the quieter of two equally good mixtures is taken


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

    Of equally good ones it is the quieter.

    Args:
        tables: what is known.
        goal: ``"latency"``, ``"size"`` or ``"drop"``.
        bounds: limits; that of the goal itself is not looked at.
        without: mixtures that are left out.
    """
    value = {"latency": tables.seconds, "size": tables.size, "drop": tables.noise_of}[goal]
    found = (_solved(tables, goal, bounds, without, left_out) for left_out in tables.apart)
    return min(
        (one for one in found if one is not None), key=lambda one: (value(one), tables.noise_of(one)), default=None
    )


def _solved(
    tables: Tables, goal: str, bounds: Bounds, without: Sequence[Mixture], left_out: frozenset[str]
) -> Mixture | None:
    """The same among mixtures without some choices."""
    times, sizes = (_matrix(tables, each, tables.kernels, left_out) for each in (tables.times, tables.sizes))
    noise = _matrix(tables, tables.noise, tables.bits, left_out)
    chosen = [[[float(name == taken) for name in tables.choices] for taken in mixture] for mixture in without]
    limits = [Limit(each, len(tables.layers) - 1.0) for each in chosen]
    places: dict[str, int] = {}
    for name, values, at_most in (
        ("drop", noise, bounds.noise),
        ("size", sizes, bounds.bytes - tables.sizes.size(REST)),
        ("latency", times, bounds.seconds - tables.times.size(REST)),
    ):
        if name != goal and at_most < math.inf:
            places[name] = len(limits)
            limits.append(Limit(values, at_most))
    costs = {"latency": times, "size": sizes, "drop": noise}[goal]
    if goal != "drop":
        costs = _with_share(costs, noise)
    groups = [[tables.layers.index(fqn) for fqn in group] for group in tables.groups]
    shared = [
        Shared(
            needed_by,
            [value if at == places.get("drop") else 0.0 for at in range(len(limits))],
            value if goal == "drop" else 0.0,
        )
        for needed_by, value in _shared(tables)
        if "drop" in places or goal == "drop"
    ]
    found = cheapest(costs, limits, borders_of(tables, goal, places), groups, shared)
    return None if found is None else tuple(tables.choices[choice] for choice in found)


def _matrix(
    tables: Tables, corrected: Corrected, known_by: Mapping[str, str], left_out: frozenset[str]
) -> list[list[float]]:
    return [
        [
            math.inf
            if name in left_out or (fqn, name) in tables.refused
            else corrected.size((fqn, known_by.get(name, name)))
            for name in tables.choices
        ]
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


def _with_share(costs: list[list[float]], noise: list[list[float]]) -> list[list[float]]:
    """Costs with a little of the noise, so that of equally good mixtures the quieter one is found."""
    most = [sum(max((v for v in row if v < math.inf), default=0.0) for row in each) for each in (costs, noise)]
    share = _SHARE_OF_NOISE * most[0] / most[1] if most[1] > 0 else 0.0
    return [[cost + share * loud for cost, loud in zip(*rows, strict=True)] for rows in zip(costs, noise, strict=True)]


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
