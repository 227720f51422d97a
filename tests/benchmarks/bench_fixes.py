"""What ``pb.fix`` takes for each failure of the zoo, compared with one capture.

Fixing needs two captures at least: of the module as it is, which fails, and of the fixed one. "One capture" is the
longer of the two. All of it in CPU time, and the best of some runs, so that other work on the machine counts little.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from tests.compile.fixes.zoo.all import CASES

LIMIT = 5.0
RUNS = 2


def seconds(call: Callable[[], Any]) -> float:
    best = math.inf
    for _ in range(RUNS):
        start = time.process_time()
        with contextlib.suppress(FullGraphError):
            call()
        best = min(best, time.process_time() - start)
    return best


def ratios(name: str) -> tuple[float, float, float]:
    """Seconds of fixing, its ratio for each failure to one capture, and to one of the module as it is."""
    model, samples = CASES[name].built()
    fixed = pb.fix(model, samples)
    took = seconds(lambda: pb.fix(model, samples))
    before, after = (seconds(lambda each=each: pb.capture(each, samples)) for each in (model, fixed.model))
    each = took / max(len(fixed.applied) + len(fixed.remaining), 1)
    return took, each / max(before, after), each / before


def main() -> None:
    """Print the median, the worst, and whose it is."""
    logging.disable(logging.WARNING)
    pb.fix(*next(iter(CASES.values())).built())  # loads everything
    with mock.patch("builtins.print"):  # what the modules print
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
