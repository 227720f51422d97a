"""int8 by prepbench against each runtime's own tool and float: latency of one sample and distance from float.

``python -m tests.benchmarks.bench_compile [model ...] [--only text,text]`` runs these models, and the candidates whose
names have one of the texts in them. Each candidate is prepared and timed in a process of its own; they take turns.
SQNR is the one of the logits against the float model in PyTorch over samples that calibration has not seen. Ratios are
medians over the rounds. The best peer of a runtime is the fastest of those whose logits keep 20 dB; how fast a ruined
model is says nothing, but its line is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.benchmarks.compile_models import MODELS, TRANSFORMERS, build
from tests.benchmarks.compile_peers import CANDIDATES
from tests.benchmarks.rounds import interleave, serve

LATENCY_LIMIT = 1.05  # of the runtime's best peer
SPEED_UP_LIMIT = 2.0  # over eager float, on the best target, where a peer gets there
SQNR_LOSS_LIMIT = 0.5  # dB below the best int8 peer of the runtime
SQNR_LIMIT = 20.0  # dB


@dataclass(frozen=True)
class Row:
    """What was measured of one candidate.

    Attributes:
        rounds: milliseconds in each round; empty if it failed.
        sqnr: in dB.
        seconds: for making it, without the float model.
        error: last line of what it raised.
    """

    name: str
    rounds: Sequence[float]
    sqnr: float = math.nan
    seconds: float = math.nan
    error: str = ""

    @property
    def ms(self) -> float:
        return statistics.median(self.rounds)

    @property
    def runtime(self) -> str:
        return CANDIDATES[self.name].runtime

    @property
    def ours(self) -> bool:
        return CANDIDATES[self.name].ours

    @property
    def static(self) -> bool:
        return CANDIDATES[self.name].static


def ratio(row: Row, other: Row) -> float:
    """Time of ``row`` over the time of ``other``."""
    return statistics.median(a / b for a, b in zip(row.rounds, other.rounds, strict=True))


def worker(candidate: str, name: str, file: Path) -> None:
    """Make one candidate, write its SQNR or its error to ``file``, then time it on request."""
    case = build(name)
    try:
        with torch.no_grad():
            reference = torch.cat([case.model(*inputs) for inputs in case.evaluation])
            start = time.perf_counter()
            call = CANDIDATES[candidate].build(case)
            outputs = [call(*case.evaluation[0]).clone()]  # what is compiled at the first call is compiled now
            seconds = time.perf_counter() - start
            outputs += [call(*inputs).clone() for inputs in case.evaluation[1:]]
            file.write_text(json.dumps({"sqnr": sqnr(reference, torch.cat(outputs)), "seconds": seconds}))
            sample = case.evaluation[0]
            serve(lambda: call(*sample))
    except Exception as error:
        lines = str(error).strip().splitlines()
        file.write_text(json.dumps({"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"}))


def sqnr(reference: torch.Tensor, value: torch.Tensor) -> float:
    """Power of ``reference`` over the power of the difference, in dB."""
    noise = (reference.double() - value.double()).square().sum()
    return float(10 * torch.log10(reference.double().square().sum() / noise))


def measure(model: str, names: Sequence[str]) -> list[Row]:
    """Make and time these candidates."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{i}.json" for i, name in enumerate(names)}
        command = ("-m", "tests.benchmarks.bench_compile", "--worker")
        rounds = interleave({name: (*command, name, model, str(files[name])) for name in names})
        silent = {"error": "the process ended without a word"}
        found = {name: json.loads(file.read_text()) if file.exists() else silent for name, file in files.items()}
    for name in names:
        if not rounds[name]:
            found[name].setdefault("error", "the process ended while it was timed")
    return [Row(name, rounds[name], **found[name]) for name in names]


def print_table(model: str, rows: Sequence[Row]) -> None:
    """One line for each candidate."""
    done = [row for row in rows if row.rounds]
    eager = next((row for row in done if row.runtime == "eager"), None)
    for row in rows:
        if not row.rounds:
            print(f"{model:<14}{row.name:<22}{row.error[:140]}")
            continue
        peer = best_peer(row.runtime, done) if row.ours else None
        columns = [f"{row.ms:9.2f}", f"{row.sqnr:9.1f}"]
        columns += [f"{ratio(row, peer):11.2f}" if peer else " " * 11]
        columns += [f"{ratio(eager, row):10.2f}" if eager else " " * 10, f"{row.seconds:10.1f}"]
        print(f"{model:<14}{row.name:<22}{''.join(columns)}")


def best_peer(runtime: str, rows: Sequence[Row]) -> Row | None:
    """The fastest candidate of others on this runtime that is not ruined."""
    peers = [row for row in rows if row.runtime == runtime and not row.ours and row.sqnr >= SQNR_LIMIT]
    return min(peers, key=lambda row: row.ms, default=None)


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """Whether each limit is kept, and the measured values in words."""
    result = []
    done = [row for row in rows if row.rounds]
    for ours in [row for row in rows if row.ours]:
        if not ours.rounds:
            result.append((False, f"{ours.runtime}: {ours.error[:120]}"))
            continue
        if fastest := best_peer(ours.runtime, done):
            times = ratio(ours, fastest)
            text = f"{ours.runtime}: {times:.2f}x the time of {fastest.name} (limit {LATENCY_LIMIT})"
            ruined = [row for row in done if row.runtime == ours.runtime and not row.ours and row.sqnr < SQNR_LIMIT]
            text += "".join(f"; {ratio(ours, row):.2f}x {row.name} at {row.sqnr:.1f} dB" for row in ruined)
            result.append((times <= LATENCY_LIMIT, text))
        peers = [row for row in done if row.runtime == ours.runtime and row.static]
        closest = max(peers, key=lambda row: row.sqnr, default=None)
        limit = max(SQNR_LIMIT, closest.sqnr - SQNR_LOSS_LIMIT if closest else SQNR_LIMIT)
        against = f"{closest.name} {closest.sqnr:.1f} dB, " if closest else ""
        result.append((ours.sqnr >= limit, f"{ours.runtime}: {ours.sqnr:.1f} dB ({against}limit {limit:.1f})"))
    eager = next((row for row in done if row.runtime == "eager"), None)
    if eager and any(row.ours for row in done):
        ours, *peers = (
            max(group, key=lambda row: ratio(eager, row))
            for group in (
                [row for row in done if row.ours],
                [row for row in done if not row.ours and row is not eager and row.sqnr >= SQNR_LIMIT],
            )
            if group
        )
        text = f"{ours.name} is {ratio(eager, ours):.2f}x as fast as eager float (limit {SPEED_UP_LIMIT:g})"
        reached = ratio(eager, ours) >= SPEED_UP_LIMIT
        if peers:
            text += f"; best peer: {peers[0].name} {ratio(eager, peers[0]):.2f}x"
            reached = reached or ratio(eager, peers[0]) < SPEED_UP_LIMIT
        result.append((reached, text))
    return result


def main() -> int:
    """Print a table and the verdicts for each model; returns 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all if none is given")
    parser.add_argument("--only", default="", help="texts, separated by commas, of the candidates' names")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    names = [name for name in CANDIDATES if any(text.lower() in name.lower() for text in arguments.only.split(","))]
    print(f"{'model':<14}{'candidate':<22}{'ms':>9}{'SQNR dB':>9}{'time/peer':>11}{'speed-up':>10}{'made in s':>10}")
    failed = 0
    for model in arguments.models or MODELS:
        rows = measure(model, [name for name in names if CANDIDATES[name].for_all or model in TRANSFORMERS])
        print_table(model, rows)
        for passed, text in verdicts(rows):
            failed += not passed
            print(f"  {'PASS' if passed else 'FAIL'}  {text}", flush=True)
    print(f"{failed} limits missed" if failed else "all limits kept")
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    else:
        raise SystemExit(main())
