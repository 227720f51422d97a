"""A search whose process is killed again and again, and goes on from its journal: it must end as if undisturbed.

Each process kills itself (SIGKILL) as soon as it has measured a candidate that the journal did not have, until one
comes to the end. What is made small is the size, which does not depend on the machine, so both must find the same
mixture.

``python -m tests.benchmarks.bench_resume``
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import prepbench as pb
from tests.benchmarks.all_mixtures import INT8, images, network, target

FLOOR = 48.0  # dB, which all in 8 bits does not reach
MOST = 20  # processes
KILLED = -signal.SIGKILL


def search(journal: Path, killed: bool) -> None:
    """The process of a search; prints what it found."""
    model, before = network(0), len(pb.load_results(journal)) if journal.exists() else 0

    def told(candidate: Any) -> None:
        if killed and len(pb.load_results(journal)) > before:
            os.kill(os.getpid(), signal.SIGKILL)

    result = pb.search(
        model,
        images(4, 0),
        budget=pb.Budget(min_metric=FLOOR, minimize="size"),
        targets=[target()],
        candidates={INT8: pb.QuantizationSettings()},
        data=images(6, 1),
        results=journal,
        on_candidate=told,
    )
    best = result.best
    found = {"layers": dict(best.layers), "dB": best.metric, "bytes": best.size_bytes, "reached": result.reached}
    print(json.dumps(found), flush=True)


def main() -> int:
    """Returns 1 where the two searches do not end alike."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        first, _ = _run(Path(folder) / "undisturbed.sqlite", killed=False)
        between = time.perf_counter()
        second, kills = _run(Path(folder) / "killed.sqlite", killed=True)
        seconds = time.perf_counter() - between
    same = first is not None and first == second
    print(
        f"undisturbed {between - started:.0f} s, killed {kills} times {seconds:.0f} s in all: "
        f"{'the same' if same else f'not the same: {first} and {second}'}"
    )
    if same and first is not None:
        kept = sum(name != INT8 for name in first["layers"].values())
        print(f"{kept} of {len(first['layers'])} layers in float, {first['dB']:.1f} dB, {first['bytes']} bytes")
    return int(not same or kills == 0)


def _run(journal: Path, *, killed: bool) -> tuple[dict[str, Any] | None, int]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_resume", "--search", str(journal)]
    for kills in range(MOST):
        done = subprocess.run([*command, str(int(killed))], stdout=subprocess.PIPE, text=True)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1]), kills
        if done.returncode != KILLED:
            raise RuntimeError(f"The search ended with {done.returncode}.")
    return None, MOST


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        search(Path(sys.argv[2]), killed=sys.argv[3] == "1")
    else:
        raise SystemExit(main())
