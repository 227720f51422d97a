"""Interleaved timing of candidates, each in a process of its own (two runtimes in one process disturb each other)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

ROUNDS = 15
CALLS = 10


def serve(call: Callable[[], object], warm_up: int = 20) -> None:
    """Worker side: warm up, then answer each line on standard input with the median milliseconds of :data:`CALLS`
    calls.
    """
    for _ in range(warm_up):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1e6)
        print(statistics.median(times), flush=True)


def interleave(commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Median milliseconds for each command's worker, in rounds that take turns; a worker that fails gives NaN."""
    workers = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for name, command in commands.items()
    }  # fmt: skip
    try:
        alive = {name: worker for name, worker in workers.items() if _wait_ready(worker)}
        times: dict[str, list[float]] = {name: [] for name in alive}
        for _ in range(ROUNDS):
            for name, worker in alive.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
                times[name].append(float(worker.stdout.readline()))
        return {name: statistics.median(times[name]) if name in times else float("nan") for name in commands}
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def _wait_ready(worker: subprocess.Popen[str]) -> bool:
    assert worker.stdout is not None
    return any(line.strip() == "ready" for line in iter(worker.stdout.readline, ""))
