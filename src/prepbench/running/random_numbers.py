"""Random numbers as they were after a run.

All threads share the generators of torch, NumPy and Python. So only what was used is put back, and a generator that
somebody else seeded meanwhile keeps its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.generators import generator_kept
from prepbench.patching import undoing


@contextmanager
def numbers_kept(devices: Sequence[int] = (), *, seed: int | None = None) -> Iterator[None]:
    """After the block the generators go on where they were before it.

    A forward that seeds torch's generator itself leaves it seeded, as it does in eager mode.

    Args:
        devices: indices of the CUDA devices whose generators are kept, too.
        seed: what torch's generators are seeded with inside the block, so that two runs draw the same numbers.

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
        if random.getstate() != state:
            random.setstate(state)

    return put_back


def _numpy_kept() -> Callable[[], None]:
    state: Any = np.random.get_state()

    def put_back() -> None:
        name, keys, *rest = np.random.get_state()
        if (name, *rest) != (state[0], *state[2:]) or not np.array_equal(keys, state[1]):
            np.random.set_state(state)

    return put_back
