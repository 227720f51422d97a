"""What a search sets on the page of the bench: while it goes on, and afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from prepbench.bench.searching import Found, Stop, chart_of, id_of, stops_of, texts_of
from prepbench.search.objective import Budget
from prepbench.search.search_result import SearchCandidate

BESIDE = " Measured beside it: int8 0.8780, drop 0.0920, 1.60 ms, 1.0 MB; float 0.9700, drop 0.0000, 4.10 ms, 9.0 MB."
BUDGET = Budget(max_drop=0.01)
LAYERS = [f"layers.{block}.{part}" for block in range(4) for part in ("q_proj", "up_proj")]


def _candidate(name: str, kept: int, drop: float, ms: float, *, measured: bool = True) -> SearchCandidate:
    layers = {fqn: "float" if at < kept else "int8" for at, fqn in enumerate(LAYERS)}
    if measured:
        known: dict[str, Any] = {"metric": 0.97 - drop, "drop": drop, "ms": ms, "size_bytes": 1_000_000 * (1 + kept)}
        return SearchCandidate(name, "ONNX Runtime", layers, spread=(0.965 - drop, 0.975 - drop), **known)
    predicted = {"predicted_metric": 0.97 - drop, "predicted_drop": drop, "predicted_ms": ms}
    return SearchCandidate(name, "ONNX Runtime", layers, predicted_bytes=1e6 * (1 + kept), **predicted)


CANDIDATES = [
    _candidate("float", 8, 0.0, 4.1),
    _candidate("int8", 0, 0.092, 1.6),
    _candidate("mixture 1", 3, 0.008, 2.3),
    _candidate("mixture 2", 2, 0.021, 2.0),
    _candidate("predicted 1", 1, 0.047, 1.8, measured=False),
    _candidate("predicted 2", 5, 0.002, 2.9, measured=False),
]


def _summary(found: Found) -> dict[str, Any]:
    bound, stops, stop = stops_of(found)
    shown = {
        "metric": "accuracy",
        "budget": "" if found.budget is None else str(found.budget),
        "why": found.why,
        "notes": list(found.notes),
        "found": [asdict(each) for each in texts_of(found)],
        "chart": asdict(chart_of(found)),
        "bound": bound,
        "stops": [asdict(each) for each in stops],
        "stop": stop,
    }
    return dict(json.loads(json.dumps(shown)))


def _found(count: int, **more: Any) -> Found:
    return Found(BUDGET, "accuracy", candidates={id_of(each): each for each in CANDIDATES[:count]}, **more)


def nothing() -> dict[str, Any]:
    """Before the first search."""
    return _summary(Found(metric="accuracy"))


def going(count: int = 2) -> dict[str, Any]:
    """What is set while a search goes on, with so many candidates measured."""
    now = {"unavailable": "", "repairs": [], "is_searching": True, "stale": "", "used": -1}
    return {
        "search": _summary(_found(count)),
        "search_now": now,
        "running": True,
        "about": "search",
        "stage": "Trying the best mixtures",
    }


def done(**now: Any) -> dict[str, Any]:
    """What is set once a search has ended; ``now`` are further values of ``search_now``."""
    places = [(0.0, 0), (0.002, 5), (0.008, 2), (0.01, 2), (0.021, 3), (0.047, 4), (0.092, 1)]
    stops = []
    for drop, at in places:
        one = CANDIDATES[at]
        how = "measured" if one.measured else "predicted, not measured"
        stops.append(Stop(Budget(max_drop=drop), id_of(one), f"The fastest is {one.name} ({how}).{BESIDE}"))
    why = "'mixture 1' was measured within it, and nothing else is predicted to be better."
    found = _found(len(CANDIDATES), stops=tuple(stops), why=why)
    given = {"unavailable": "", "repairs": [], "is_searching": False, "stale": "", "used": -1, **now}
    return {"search": _summary(found), "search_now": given}
