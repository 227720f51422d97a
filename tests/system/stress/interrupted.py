"""One process that is interrupted again and again while it works; prints a line of JSON for each interrupt.

``python -m tests.system.stress.interrupted SEED COUNT [STAGE ...]``: each comes at a random moment of a stage,
from a thread.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from prepbench.jobs import Progress
from tests.system.stress.models import Small, fingerprint, replaceable, same
from tests.system.stress.stages import Stage, all_stages, is_torch_usable, line


class Clock:
    """When a stage began and ended, as progress says; what is to happen after its beginning happens from a thread."""

    def __init__(self, after: str | None) -> None:
        self._after = after
        self._timer: threading.Timer | None = None
        self._delay: float | None = None
        self.began = self.ended = 0.0

    def start(self, delay: float | None = None, press: Any = None) -> None:
        self._delay, self._timer = delay, None if press is None else threading.Timer(delay or 0.0, press)
        if self._after is None:
            self._begin()

    def _begin(self) -> None:
        self.began = time.monotonic()
        if self._timer is not None:
            self._timer.start()

    def __call__(self, step: Progress) -> None:
        if not self.began and step.stage == self._after:
            self._begin()
        elif self.began and not self.ended and self._after is not None and step.stage != self._after:
            self.ended = time.monotonic()

    def stop(self) -> float:
        """Let nothing happen any more; returns how long the stage was."""
        if self._timer is not None:
            self._timer.cancel()
            if self.began:
                self._timer.join()
        return (self.ended or time.monotonic()) - (self.began or time.monotonic())


def interrupted(stage: Stage, model: nn.Module, delay: float, presses: int = 1) -> float | None:
    """Seconds from the interrupt to its end; None if the stage ended before. The impatient press several times."""
    sent: list[float] = []
    done: list[bool] = []
    raised: list[bool] = []
    over = threading.Lock()

    def press() -> None:
        for _ in range(presses):
            with over:
                if not done:
                    sent.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    def once(number: int, frame: Any) -> None:
        if not raised:
            raised.append(True)
            signal.default_int_handler(number, frame)

    clock = Clock(stage.after)
    signal.signal(signal.SIGINT, once)
    try:
        clock.start(delay, press)
        stage.run(model, clock)
        with over:
            done.append(True)
        time.sleep(0)  # an interrupt that came at the very end is raised by now
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        clock.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return None


def _reference(stage: Stage, model: nn.Module) -> tuple[float, Any]:
    """How long the stage takes once everything is loaded, and its result."""
    stage.run(model, lambda step: None)
    clock = Clock(stage.after)
    clock.start()
    result = stage.run(model, clock)
    return clock.stop(), result


def _problems(stage: Stage, model: nn.Module, before: Any, untouched: Any) -> list[str]:
    problems = list(stage.problems())
    if not same(before, fingerprint(model)):
        problems.append("the model is not as it was")
    if untouched != (now := replaceable()):
        names = [name for name in {**untouched, **now} if untouched.get(name) != now.get(name)]
        problems.append(f"replaced for good: {', '.join(names)}")
    if not is_torch_usable():
        problems.append("torch is not usable")
    return problems


SLOW, RARELY = 5.0, 5
"""A stage of more than this many seconds comes in one round of so many: interrupts of it take most of the time."""


def in_turn(lengths: Mapping[str, float]) -> Iterator[str]:
    """Endless rounds over the names of the stages, of which not all have the slow ones."""
    for number in itertools.count():
        yield from (name for name, length in lengths.items() if length <= SLOW or number % RARELY == 0)


def some(stages: Sequence[Stage], seed: int, count: int) -> list[Stage]:
    """As many stages as there are interrupts, one behind the other; the next seed goes on behind them."""
    return [stages[(seed * count + number) % len(stages)] for number in range(min(count, len(stages)))]


def main(seed: int, count: int, place: Path, names: Sequence[str] = ()) -> None:
    chance = random.Random(seed)
    model = Small(seed % 8).eval()
    stages: Sequence[Stage] = [each for each in all_stages(place, model) if not names or each.name in names]
    if count < 2 * len(stages):
        stages = some(stages, seed, count)
    known = {stage.name: _reference(stage, model) for stage in stages}
    named = {stage.name: stage for stage in stages}
    before, untouched = fingerprint(model), replaceable()
    for name in itertools.islice(in_turn({name: length for name, (length, _) in known.items()}), count):
        stage, (length, expected) = named[name], known[name]
        presses = 3 if chance.random() < 0.2 else 1
        seconds = interrupted(stage, model, chance.uniform(0, length), presses)
        problems = _problems(stage, model, before, untouched)
        if not same(stage.run(model, lambda step: None), expected):
            problems.append("the same call gives something else")
        print(line(stage=stage.name, seconds=seconds, problems=problems), flush=True)  # noqa: T201


if __name__ == "__main__":
    # a shell that starts a job in the background has it ignore Ctrl-C, and then nothing would be interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(folder), sys.argv[3:])
