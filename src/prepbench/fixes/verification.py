"""Proof of a rewrite: the original and the changed function give the same on both sides of every condition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.fixes.function_source import FunctionSource, Place
from prepbench.fixes.instrumented_runs import run_with, variants
from prepbench.fixes.kinds.kind import RewriteKind
from prepbench.fixes.results import BROADCAST, DIFFERENT, EQUAL, NOT_REACHED, BranchResult, RewriteResult
from prepbench.inputs import Sample
from prepbench.running.equality import REWRITTEN, difference
from prepbench.running.outcomes import Outcome

_FROM_BEST = (EQUAL, BROADCAST, DIFFERENT)


def verify_cases(
    kind: RewriteKind,
    source: FunctionSource,
    function: Callable[..., Any],
    places: Sequence[Place],
    module: torch.nn.Module,
    samples: Sequence[Sample],
) -> RewriteResult:
    """Compare two forwards of a module until both sides of each condition were taken.

    Args:
        kind: the kind of change.
        source: the module's own forward.
        function: the changed forward.
        places: where it was changed.
        module: the module.
        samples: what the module receives.
    """
    taken: set[tuple[Place, bool]] = set()

    def probe(place: Place, value: Any) -> Any:
        taken.add((place, bool(value)))
        return value

    instrumented = source.instrumented(kind.instrument_conditions, probe)
    wanted = [(place, side) for place in places for side in (True, False)]
    found: dict[tuple[Place, bool], BranchResult] = {}
    for sample in variants(samples):
        taken.clear()
        try:
            expected = run_with(module, "", instrumented, sample)
        except Exception:  # a made-up value that the model does not take
            continue
        new = [case for case in wanted if case in taken]
        outcome, largest = _outcome(expected, module, function, sample) if new else (EQUAL, 0.0)
        for place, side in new:
            known = found.get((place, side))
            if known is None or _FROM_BEST.index(outcome) > _FROM_BEST.index(known.outcome):
                found[place, side] = BranchResult(place[0], side, outcome, largest)
        if len(found) == len(wanted) and sample.index == samples[-1].index:
            break
    return RewriteResult(tuple(found.get(case) or BranchResult(case[0][0], case[1], NOT_REACHED) for case in wanted))


def _outcome(
    expected: Outcome, module: torch.nn.Module, function: Callable[..., Any], sample: Sample
) -> tuple[str, float]:
    try:
        got = run_with(module, "", function, sample)
    except Exception:  # the rewritten forward fails where the original does not
        return DIFFERENT, math.inf
    found = difference(expected, got, replace(REWRITTEN, broadcasts=True))
    if not found.equal:
        return DIFFERENT, found.largest or math.inf
    return (BROADCAST if found.has_broadcast else EQUAL), found.largest
