"""How good a search is: against all mixtures of small networks.

``python -m tests.benchmarks.bench_search [--seed 3]``: seed 0 is a network that was made up, others are drawn at
random. Every mixture of 8 layers is scored in PyTorch as it would be quantized. Some of them are compiled and timed in
ONNX Runtime with one thread, in one process, in interleaved rounds; a sum over layers and borders is fitted to these,
and what it says of others is checked on mixtures that were left out of the fit. For each budget the mixtures that may
be the fastest by the fit are compiled and timed as well: the fastest of these is taken for the optimum. Each search
measures in processes of its own and knows nothing of all that.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import prepbench as pb
from prepbench.search.search_result import SearchCandidate
from tests.benchmarks.all_mixtures import INT8, LEFT_OUT, Mixture, Truths, images, network, target

ABOVE = (0.5, 2.0, 5.0, 9.0)  # dB above the model that is all of 8 bits
SAME = 0.005  # of a time, within which two are the same
FOUND, MISSED = 3, 0.03  # how often the optimum is to be found, and by how much of its time it may be missed


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, with equal values of equal rank."""
    ranks = [
        np.array([sum(other < one for other in values) + 0.5 * values.count(one) for one in values])
        for values in (list(first), list(second))
    ]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def exhaustive(seed: int, rounds: int) -> bool:
    """Four budgets against all mixtures; whether the limits are met."""
    model = network(seed)
    known = Truths(model, rounds)
    error = known.fit()
    base = known.decibels[known.base]
    print(
        f"network {seed}: {len(known.decibels)} mixtures, all simulated; {len(known.ms)} timed, from "
        f"{min(known.ms.values()):.3f} to "
        f"{max(known.ms.values()):.3f} ms; times of others fitted within {error:.1%} (median of {LEFT_OUT} left out); "
        f"simulated SQNR within {known.simulated_error():.2f} dB of compiled; all in 8 bits {base:.1f} dB",
        flush=True,
    )
    print(f"{'budget':>10} {'optimum':>9} {'found':>9} {'missed':>7} {'kept':>5} {'error':>6} evaluations seconds both")
    errors, found_best, most = [], 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for above in ABOVE:
            floor = base + above
            start = time.perf_counter()
            result = pb.search(
                model,
                images(4, 0),
                budget=pb.Budget(min_metric=floor),
                targets=[target()],
                candidates={INT8: pb.QuantizationSettings()},
                data=images(6, 1),
                results=Path(folder) / "results.sqlite",
            )
            seconds = time.perf_counter() - start
            mixture = tuple(result.best.layers[fqn] for fqn in known.layers)
            best, times = known.best(floor, mixture)
            optimum, ms = times[best], times[mixture]
            missed = ms / optimum - 1
            found_best += missed <= SAME
            most = max(most, missed)
            errors += list(_errors(result))
            print(
                f"{floor:7.1f} dB {optimum:6.3f} ms {ms:6.3f} ms {missed:7.1%} "
                f"{'yes' if known.decibels[mixture] >= floor else 'no':>5} "
                f"{statistics.median(_errors(result) or [math.nan]):6.1%} {result.evaluations:11d} {seconds:7.0f} "
                f"{_short(best)} {_short(mixture)}",
                flush=True,
            )
        _predictions(result, known)
    print(
        f"optimum found for {found_best} of {len(ABOVE)} budgets (within {SAME:.1%}), missed by at most {most:.1%}; "
        f"limits: {FOUND} of {len(ABOVE)}, {MISSED:.0%}"
    )
    print(f"latency predicted before it was measured: median error {statistics.median(errors):.1%}", flush=True)
    return found_best >= FOUND and most <= MISSED


def _short(mixture: Mixture) -> str:
    """A mixture in a letter for each layer: 8 bits or float."""
    return "".join("8" if name == INT8 else "f" for name in mixture)


def _errors(result: pb.SearchResult) -> list[float]:
    """Of the predicted latencies of mixtures that were then measured, relative to what was measured."""
    return [
        abs(each.predicted_ms / each.ms - 1) for each in result.candidates if each.ms and each.predicted_ms is not None
    ]


def _predictions(result: pb.SearchResult, known: Truths) -> None:
    """How well the last search predicts the mixtures that were timed, and the noise of all."""

    def predicted(mixture: Mixture) -> SearchCandidate:
        return result.predict(dict(zip(known.layers, mixture, strict=True)))

    latencies = [predicted(mixture).predicted_ms or math.nan for mixture in known.ms]
    times = list(known.ms.values())
    scale = statistics.median(ms / one for one, ms in zip(latencies, times, strict=True))
    error = statistics.median(abs(scale * one / ms - 1) for one, ms in zip(latencies, times, strict=True))
    noise = [predicted(mixture).noise or 0.0 for mixture in known.decibels]
    print(
        f"{len(times)} mixtures timed: latency predicted within {error:.1%} (median, times {scale:.2f} between "
        f"processes), rank correlation {rank_correlation(latencies, times):.2f}; rank correlation of noise of all "
        f"{rank_correlation(noise, [-each for each in known.decibels.values()]):.2f}"
    )


def main() -> int:
    """Four budgets; returns 1 where a limit is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="of the network")
    given = parser.parse_args()
    return int(not exhaustive(given.seed, given.rounds))


if __name__ == "__main__":
    raise SystemExit(main())
