"""Interleaved timing of candidates, each in a process of its own (two runtimes in one process disturb each other)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

ROUNDS = 15
CALLS = 10  # in a turn, or fewer
TURN_MS = 300.0  # when these take longer
SHORT_MS = 20.0  # or more, when these take less: calls of a tenth of a millisecond get faster for a hundred calls


def serve(call: Callable[[], object], warm_up: int = 5, wake_up: int = 2) -> None:
    """Worker side: warm up, then answer each line on standard input with the milliseconds of the fastest of
    :data:`CALLS` calls, or of more that take :data:`SHORT_MS` together, which other work on the machine disturbed
    least, after ``wake_up`` calls that fetch what the other workers pushed out of the caches.
    """
    for _ in range(warm_up):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        for _ in range(wake_up):
            call()
        times: list[float] = []
        taken = 0.0
        while (len(times) < CALLS and taken < TURN_MS) or taken < SHORT_MS:
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1e6)
            taken += times[-1]
        print(min(times), flush=True)


def interleave(
    commands: Mapping[str, Sequence[str]],
    environments: Mapping[str, Mapping[str, str]] | None = None,
    rounds: int = ROUNDS,
) -> dict[str, list[float]]:
    """Milliseconds of each command's worker in each of some rounds that take turns.

    Args:
        commands: the arguments of Python for each worker.
        environments: the environment of each worker, where it is not this process's.
        rounds: how many.

    Workers get ready one after the other, so that they do not compete for memory and cores. One that ends before
    the last round has no rounds.
    """
    workers: dict[str, subprocess.Popen[str]] = {}
    times: dict[str, list[float]] = {name: [] for name in commands}
    try:
        alive = []
        for name, command in commands.items():
            start = time.perf_counter()
            workers[name] = subprocess.Popen(
                [sys.executable, "-W", "ignore", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environments[name] if environments else None,
            )
            if _wait_ready(workers[name]):
                alive.append(name)
            print(f"{name}: prepared in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        for _ in range(rounds):
            for name in list(alive):
                try:
                    times[name].append(_turn(workers[name]))
                except (OSError, ValueError):  # it ended: nothing to write to, or an empty line
                    alive.remove(name)
                    times[name] = []
        return times
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def _turn(worker: subprocess.Popen[str]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def _wait_ready(worker: subprocess.Popen[str]) -> bool:
    assert worker.stdout is not None
    return any(line.strip() == "ready" for line in iter(worker.stdout.readline, ""))
