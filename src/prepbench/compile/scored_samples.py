"""The samples on which mixed-precision settings are scored: spread over the data, within a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from prepbench.compile.simulation import Simulation
from prepbench.inputs import Sample
from prepbench.quantize.layer_noise import ROWS, chosen_samples, rows_of

# the multiplications of a score, and the most rows
_MULTIPLICATIONS, _MOST_ROWS = 2e9, 256


def scored_on(simulation: Simulation, samples: Iterable[Sample]) -> Simulation:
    """Return the simulation with scores measured on other samples than the calibration inputs.

    They are spread over all samples, and the smaller the model, the more are used.

    Args:
        simulation: of a model.
        samples: calls of the model, each read once.

    Raises:
        InputError: a sample has another form than those that the model was captured with.
    """
    source = simulation.source
    calls, learned_from = source.call_spec, chosen_samples(source.samples)
    rows = rows_to_score(sum(simulation.multiplications.values()) / rows_of(learned_from[0]))
    flat = (Sample(tuple(calls.checked(calls.flatten(one.args, one.kwargs)))) for one in samples)
    return Simulation(replace(source, scored=tuple(spread_samples(flat, rows))))


def rows_to_score(multiplications: float) -> int:
    """Return the number of rows that a score is measured on.

    Args:
        multiplications: of the model for one row.

    Example:
        >>> rows_to_score(3e8), rows_to_score(1e7), rows_to_score(0)
        (8, 200, 256)
    """
    return min(max(ROWS, int(_MULTIPLICATIONS / max(multiplications, 1.0))), _MOST_ROWS)


def spread_samples(samples: Iterable[Sample], rows: int) -> list[Sample]:
    """Return samples spread over the iterable, which is read once, with the given number of rows in total.

    Args:
        samples: calls of a graph, in any number.
        rows: the number of rows; a call has as many as the first dim of its inputs.
    """
    kept: list[Sample] = []
    most, step = 1, 1
    for place, sample in enumerate(samples):
        if not kept:
            most = max(1, rows // rows_of(sample))
        if place % step == 0:
            kept.append(sample)
        if len(kept) > 2 * most:  # every second one is dropped, so that the rest is evenly spread
            kept, step = kept[::2], 2 * step
    count = min(most, len(kept))
    return [kept[place * len(kept) // count] for place in range(count)]
