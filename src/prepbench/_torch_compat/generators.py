"""Generators of random numbers, which all threads share: what was not used is not written to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from prepbench.patching import only_here, patched_item, undoing


def generator_kept(generator: torch.Generator, seed: int | None = None) -> Callable[[], None]:
    """Remember where a generator is; returns what puts it back there.

    It does so only where numbers were drawn since, and leaves a generator alone that somebody seeded.

    Args:
        generator: of torch.
        seed: what it is about to be seeded with.
    """
    with _disable_current_modes():
        state = generator.get_state()
    started = generator.initial_seed() if seed is None else seed

    def put_back() -> None:
        with _disable_current_modes():
            if generator.initial_seed() == started and not torch.equal(generator.get_state(), state):
                generator.set_state(state)

    return put_back


_USERS = ("torch._functorch.aot_autograd", "torch._dynamo.utils")


def numbers_preserved_here() -> list[AbstractContextManager[None]]:
    """Where dynamo and export put back the generator of all threads, what this thread runs does as above."""
    name = "preserve_rng_state"
    spaces = [vars(sys.modules[user]) for user in _USERS if user in sys.modules]
    return [patched_item(space, name, _preserving(space[name])) for space in spaces if name in space]


def _preserving(original: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def preserve() -> Iterator[None]:
        with undoing() as undo:
            undo.add(generator_kept(torch.default_generator))
            yield

    has_others = torch.cuda.is_available() or torch.xpu.is_available()
    return original if has_others else only_here(original, preserve)
