"""One process that is interrupted again and again while it works; prints a line of JSON for each interrupt.

``python -m tests.stress.interrupted SEED COUNT``: every interrupt comes at a random moment of a step, from a thread.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.stress.models import STEPS, Small, fingerprint, replaceable, same


def interrupted(step: Callable[[nn.Module], Any], model: nn.Module, delay: float) -> float | None:
    """Seconds from the interrupt to its end; None if the step ended before."""
    sent: list[float] = []
    over = threading.Lock()

    def press() -> None:
        with over:
            if not done:
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

    done: list[bool] = []
    timer = threading.Timer(delay, press)
    timer.start()
    try:
        step(model)
        with over:
            done.append(True)
        timer.cancel()
        time.sleep(0)  # an interrupt that came at the very end is raised by now
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        timer.join()
    return None


def main(seed: int, count: int) -> None:
    chance = random.Random(seed)
    model = Small(seed % 8).eval()
    lasts = {}
    for step in STEPS:
        step(model)
        start = time.monotonic()
        expected = step(model)
        lasts[step] = time.monotonic() - start, expected
    before, untouched = fingerprint(model), replaceable()
    for number in range(count):
        step = STEPS[number % len(STEPS)]
        seconds = interrupted(step, model, chance.uniform(0, lasts[step][0]))
        problems = []
        if not same(before, fingerprint(model)):
            problems.append("the model is not as it was")
        if untouched != replaceable():
            problems.append("something stays replaced")
        torch.fx.symbolic_trace(nn.Linear(2, 2))
        torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
        is_repeated = count >= 50 or number >= count - len(STEPS)  # the short form repeats each step once
        if is_repeated and not same(step(model), lasts[step][1]):
            problems.append("the same call gives something else")
        print(json.dumps({"step": step.__name__, "seconds": seconds, "problems": problems}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
