"""What ``pb.fix`` takes for each failure of the zoo, compared with one capture.

One capture is the mean of those that fixing needs at least: of the module as it is, which fails, and of the fixed one.
All of it in CPU time, so that other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from tests.fixes.zoo.all import CASES

LIMIT = 5.0
RUNS = 3


def seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    with contextlib.suppress(FullGraphError):
        call()
    return time.process_time() - start


def ratios(name: str) -> tuple[float, float, float]:
    """Seconds of fixing, its ratio for each failure to one capture, and to one of the module as it is."""
    model, samples = CASES[name].built()
    found: list[Any] = []
    took = seconds(lambda: found.append(pb.fix(model, samples)))
    fixed = found[0]
    before = statistics.median(seconds(lambda: pb.capture(model, samples)) for _ in range(RUNS))
    after = statistics.median(seconds(lambda: pb.capture(fixed.model, samples)) for _ in range(RUNS))
    each = took / max(len(fixed.applied) + len(fixed.remaining), 1)
    return took, each / statistics.mean((before, after)), each / before


def main() -> None:
    """Print the median, the worst, and whose it is."""
    logging.disable(logging.WARNING)
    pb.fix(*next(iter(CASES.values())).built())  # loads everything
    found = {name: ratios(name) for name in CASES}
    worst = max(found, key=lambda name: found[name][1])
    word = "PASS" if found[worst][1] < LIMIT else "FAIL"
    print(
        f"{word}  fixing takes {statistics.median(ratio for _, ratio, _ in found.values()):.1f} captures for each "
        f"failure of {len(found)} modules, at most {found[worst][1]:.1f} ({worst}; limit {LIMIT:g}), "
        f"{sum(took for took, _, _ in found.values()):.0f} s in all"
    )
    worst = max(found, key=lambda name: found[name][2])
    median = statistics.median(ratio for _, _, ratio in found.values())
    print(f"      compared with the capture that fails alone: {median:.1f}, at most {found[worst][2]:.1f} ({worst})")


if __name__ == "__main__":
    main()
