"""Restore random number generators after a run.

All threads share the generators of torch, NumPy and Python. So only used generators are restored, and one that another
thread seeded meanwhile keeps its seed, even an equal one. It is unknown which thread drew a number: other threads that
draw without seeding during a block may draw the same numbers again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.generators import generator_kept
from prepbench._torch_compat.twisters import is_drawn_from
from prepbench.patching import undoing


@contextmanager
def numbers_kept(devices: Sequence[int] = (), *, seed: int | None = None) -> Iterator[None]:
    """Restore the generators' states after the block.

    A forward that seeds a generator itself leaves it seeded, as it does in eager mode.

    Args:
        devices: indices of the CUDA devices whose generators are kept, too.
        seed: the seed of torch's generators inside the block, so that two runs draw the same numbers.

    Example:
        >>> with numbers_kept(seed=0):
        ...     first = torch.rand(1)
        >>> with numbers_kept(seed=0):
        ...     bool(torch.rand(1) == first)
        True
    """
    generators = [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]
    with undoing() as undo:
        undo.add(_python_kept())
        undo.add(_numpy_kept())
        for generator in generators:
            undo.add(generator_kept(generator, seed))
            if seed is not None:
                generator.manual_seed(seed)
        yield


def _python_kept() -> Callable[[], None]:
    state = random.getstate()

    def put_back() -> None:
        now = random.getstate()
        if now != state and is_drawn_from(state[1], now[1]):
            random.setstate(state)

    return put_back


def _numpy_kept() -> Callable[[], None]:
    state: Any = np.random.get_state()

    def put_back() -> None:
        now: Any = np.random.get_state()
        if now[0] != state[0] or (now[2:] == state[2:] and np.array_equal(now[1], state[1])):
            return
        if is_drawn_from([*state[1], state[2]], [*now[1], now[2]]):
            np.random.set_state(state)

    return put_back
