"""Summary statistics of times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def speedup(base: Sequence[float], times: Sequence[float], rounds: int) -> float | None:
    """Return the median over rounds of the ratio of both medians in each round; None without times.

    In each round both are timed one after the other. So a temporary slowdown of the machine affects both, and
    cancels out.

    Args:
        base: times of the first candidate, rounds in order, the same number of calls in each.
        times: as many times of another candidate.
        rounds: number of rounds.

    Example:
        >>> speedup([4.0, 40.0, 4.0], [2.0, 20.0, 2.0], rounds=3)
        2.0
    """
    if not base or not times:
        return None
    calls = len(base) // rounds
    turns = [slice(i * calls, (i + 1) * calls) for i in range(rounds)]
    return statistics.median(statistics.median(base[t]) / max(statistics.median(times[t]), 1e-6) for t in turns)


def percentile(values: tuple[float, ...], percent: int) -> float | None:
    """Return the percentile with linear interpolation between the neighbours; None without values.

    Example:
        >>> percentile((1.0, 2.0, 3.0, 4.0, 5.0), 90)
        4.6
    """
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
