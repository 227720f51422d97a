"""Run an entry: each candidate in a process of its own, metrics with intervals, times in turns."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prepbench.measure.process import OtherPrograms, load_warning
from tests.benchmarks.rounds import interleave
from tests.board.candidates import CANDIDATES, ORT, RUNTIMES
from tests.board.entry import NotInstalledError
from tests.board.networks import NETWORKS

DRAWS = 1000
ROUNDS = 9


def interval(
    rows: Mapping[str, np.ndarray], metric: Any, name: str, against: str = ORT.float, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a candidate's metric minus that of another, over draws of the same items for both."""
    random = np.random.default_rng(seed)
    ours, reference = rows[name], rows[against]
    count = len(reference)
    differences = []
    for _ in range(DRAWS):
        drawn = random.integers(0, count, count)
        differences.append(metric(ours[drawn]) - metric(reference[drawn]))
    low, high = np.nanquantile(differences, [0.025, 0.975])
    return float(low), float(high)


def measured(name: str, candidates: Sequence[str] = tuple(CANDIDATES)) -> dict[str, Any]:
    """Return what the board keeps of an entry: a dict for each candidate, or why there is none."""
    entry = NETWORKS[name]
    try:
        task = entry.load()
    except NotInstalledError as error:
        return {"missing": str(error)}
    with tempfile.TemporaryDirectory() as folder, OtherPrograms() as others:
        files = {one: Path(folder) / f"{index}.json" for index, one in enumerate(candidates)}
        commands = {one: ("-m", "tests.board.worker", name, one, str(file)) for one, file in files.items()}
        rounds = interleave(commands, rounds=ROUNDS)
        read = {
            one: json.loads(file.read_text()) if file.exists() else {"failed": "its process ended early"}
            for one, file in files.items()
        }
    rows = {one: np.asarray(found["rows"]) for one, found in read.items() if "rows" in found}
    if load_warning(others.cores):
        rounds = {}
    return {one: _cell(one, found, rows, task.metric, rounds.get(one)) for one, found in read.items()}


def _cell(
    name: str, found: Mapping[str, Any], rows: Mapping[str, np.ndarray], metric: Any, times: Sequence[float] | None
) -> dict[str, Any]:
    if "failed" in found:
        return {"failed": found["failed"]}
    cell = {
        "metric": metric(rows[name]),
        "items": len(rows[name]),
        "megabytes": None if found["megabytes"] is None else round(found["megabytes"], 3),
        "seconds": round(found["seconds"], 1),
        "ms": round(statistics.median(times), 3) if times else None,
        "remark": found["remark"],
    }
    if name != ORT.float and ORT.float in rows:
        cell["difference"] = interval(rows, metric, name)
    peers = [peer for runtime in RUNTIMES if runtime.ours == name for peer in runtime.peers if peer in rows]
    if peers:
        cell["against"] = {peer: interval(rows, metric, name, peer) for peer in peers}
    return cell
