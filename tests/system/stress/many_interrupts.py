"""Many interrupts in child processes, and what became of them.

``python -m tests.system.stress.many_interrupts COUNT [FILE]``: adds a line of JSON for each interrupt to ``FILE`` until
it holds ``COUNT`` of them, so that a run that was stopped goes on where it was; then it prints how many did harm, and
the delays until they were answered.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
BATCH = 400
"""Interrupts of one process; its start and the results that it compares with take about three minutes."""
MOST_SECONDS = 3600


def interrupts_of(seed: int, count: int = BATCH, stages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The lines of one child process; one more with the reason if it ended before its time."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.system.stress.interrupted", str(seed), str(count), *stages]
    # a session of its own, so that Ctrl-C in a terminal reaches this process only
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            output, errors = child.communicate(timeout=MOST_SECONDS)
            reason = f"exit code {child.returncode}: {errors[-2000:]}" if child.returncode else ""
        except subprocess.TimeoutExpired:
            child.kill()
            output, reason = child.communicate()[0], f"no end within {MOST_SECONDS} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if reason:
        lines.append({"stage": "the process", "seconds": None, "problems": [reason]})
    return [{"seed": seed, **line} for line in lines]


def harmed(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of interrupts that did harm."""
    return [line for line in lines if line["problems"]]


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """How many interrupts did harm, and the delays in seconds."""
    times = sorted(line["seconds"] for line in lines if line["seconds"] is not None)

    def at(part: float) -> float:
        return times[max(math.ceil(part * len(times)) - 1, 0)]

    delays = f"p50 {at(0.5):.3f} s, p99 {at(0.99):.3f} s, max {times[-1]:.3f} s" if times else "none was answered"
    return f"{len(lines)} interrupts, {len(harmed(lines))} harmed; {len(times)} answered after {delays}"


def main(count: int, file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    seed = max((line["seed"] for line in lines), default=-1) + 1
    while len(lines) < count:
        found = interrupts_of(seed)
        with file.open("a") as out:
            out.write("".join(f"{json.dumps(line)}\n" for line in found))
        lines, seed = lines + found, seed + 1
        sys.stdout.write(f"{summary(lines)}\n")
        sys.stdout.flush()
    for line in harmed(lines):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else os.devnull))
