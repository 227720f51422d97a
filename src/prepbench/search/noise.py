"""The first estimate of the noise that each layer and choice adds to the model's output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prepbench.compile.simulation import Simulation
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize import Score
from prepbench.search.corrected import Corrected, Estimate, Part
from prepbench.search.each import each, is_here, scores_elsewhere
from prepbench.search.mixtures import FLOAT, Choices

_DOUBT = 0.3  # of one layer's noise, simulated alone: it may grow or fade beside others
_DOUBT_OF_ESTIMATE = 1.0  # where it was not simulated
_SIMULATED = 96  # layers and choices, at most, that are simulated one by one: each takes a run of the model


def noise_of(score: Score) -> float:
    """How far a model is from float as a number that adds up over layers: noise to signal, or nats."""
    if score.divergence is not None:
        return max(score.divergence, 0.0)
    return 0.0 if score.sqnr == math.inf else 10 ** (-score.sqnr / 10)


def noise_by_layer(
    simulation: Simulation,
    choices: Choices,
    refused: Mapping[tuple[str, str], str],
    executor: Any,
    progress: ProgressCallback,
) -> Corrected:
    """The noise of each layer and choice alone, the loudest simulated and the others estimated.

    What is estimated is scaled by what estimates say of those that were simulated.

    Args:
        simulation: of the model.
        choices: settings by name.
        refused: layers and choices that do not go together.
        executor: where layers are simulated, as :func:`prepbench.search` takes it.
        progress: told after each; it may raise to cancel.
    """
    own = simulation.estimate(dict(choices), progress)
    parts = [(fqn, name) for fqn in simulation.layers for name in choices if (fqn, name) not in refused]
    loudest = sorted(parts, key=lambda part: -own.get(part, 0.0))[:_SIMULATED]
    simulated = dict(zip(loudest, _simulated(simulation, choices, loudest, executor, progress), strict=True))
    known = sum(own.get(part, 0.0) for part in simulated)
    scale = sum(simulated.values()) / known if known > 0 else 1.0
    estimates: dict[Part, Estimate] = {(fqn, FLOAT): Estimate(0.0, 0.0) for fqn in simulation.layers}
    for part in parts:
        if part in simulated:
            estimates[part] = Estimate(simulated[part], _DOUBT * simulated[part])
        else:
            guess = scale * own.get(part, 0.0)
            estimates[part] = Estimate(guess, _DOUBT_OF_ESTIMATE * guess)
    return Corrected(estimates)


def _simulated(
    simulation: Simulation,
    choices: Choices,
    parts: Sequence[tuple[str, str]],
    executor: Any,
    progress: ProgressCallback,
) -> list[float]:
    mixtures = [{fqn: choices[name]} for fqn, name in parts]
    if is_here(executor):
        simulation.score({})  # the outputs in float, once for all threads
        scores = each(
            lambda mixture: simulation.score(mixture, even_alone=True),
            mixtures,
            executor,
            lambda done, mixture: progress(Progress("noise of layers", done, len(parts), next(iter(mixture)))),
        )
    else:
        names = [f"{fqn}: {name}" for fqn, name in parts]
        scores = scores_elsewhere(simulation, mixtures, names, executor, progress)
    return [noise_of(score) for score in scores]
