"""Generators of random numbers, which all threads share: what was not used is not written to."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from prepbench._torch_compat.modes import TorchDispatchMode
from prepbench.patching import only_here, patched_here, patched_item, undoing

_WORDS = 624  # of a Mersenne Twister, drawn one after the other and then made anew all at once
_BLOCKS = 1600
"""How far a generator is followed: a million numbers, which takes some milliseconds."""


def generator_kept(generator: torch.Generator, seed: int | None = None) -> Callable[[], None]:
    """Remember where a generator is; returns what puts it back there.

    It does so only where numbers were drawn since, and leaves a generator alone that somebody seeded, also with the
    seed that it had.

    Args:
        generator: of torch.
        seed: what it is about to be seeded with.
    """
    with _disable_current_modes():
        state = generator.get_state()
    started = generator.initial_seed() if seed is None else seed
    return lambda: _put_back(generator, state, started, is_seeded_here=seed is not None)


def _put_back(generator: torch.Generator, state: torch.Tensor, started: int, *, is_seeded_here: bool = False) -> None:
    with _disable_current_modes():
        now = generator.get_state()
        if generator.initial_seed() != started or torch.equal(now, state):
            return
        if is_seeded_here or not _is_seeded_again(now, state, started):
            generator.set_state(state)


def _is_seeded_again(now: torch.Tensor, state: torch.Tensor, seed: int) -> bool:
    """Whether a generator of the CPU is nearer to its seed than it was, so that somebody seeded it meanwhile."""
    places = [_place(each) for each in (now, state)]
    if None in places:
        return False
    (table_now, drawn_now), (table_then, drawn_then) = places  # type: ignore[misc]
    own = torch.Generator().manual_seed(seed)
    for _ in range(_BLOCKS):
        table, _ = _place(own.get_state())  # type: ignore[misc]
        if torch.equal(table, table_now):
            return drawn_now < drawn_then if torch.equal(table, table_then) else True
        if torch.equal(table, table_then):
            return False
        torch.empty(_WORDS, dtype=torch.int32).random_(generator=own)
    return False


def _place(state: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """The table that numbers are drawn from, and how many were; None for other kinds of generators.

    The state holds the seed, two counters, the number of draws from the table, and the table, each in 8 bytes.
    """
    if state.numel() < 8 * (3 + _WORDS):
        return None
    words = state[: 8 * (3 + _WORDS)].view(torch.int64)
    return words[3:], int(words[2])


_USERS = ("torch._functorch.aot_autograd", "torch._dynamo.utils")


def numbers_preserved_here() -> list[AbstractContextManager[None]]:
    """Where dynamo and export put back the generator of all threads, what this thread runs does as above."""
    name = "preserve_rng_state"
    spaces = [vars(sys.modules[user]) for user in _USERS if user in sys.modules]
    return [
        patched_here(torch.random, "set_rng_state", _setting(torch.random.set_rng_state)),
        patched_here(random, "setstate", _setting_pythons(random.setstate)),
        *(patched_item(space, name, _preserving(space[name])) for space in spaces if name in space),
    ]


def _preserving(original: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def preserve() -> Iterator[None]:
        with undoing() as undo:
            undo.add(generator_kept(torch.default_generator))
            yield

    has_others = torch.cuda.is_available() or torch.xpu.is_available()
    return original if has_others else only_here(original, preserve)


def _setting(original: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Dynamo sets the generator after each frame that it traces, whether or not anything was drawn."""

    def set_rng_state(new_state: torch.Tensor) -> None:
        caller = sys._getframe(2)  # behind the function that chooses by thread
        if caller.f_globals.get("__name__") != "torch._dynamo.convert_frame":
            return original(new_state)
        with _disable_current_modes():
            started = int(new_state[:8].view(torch.int64))
        _put_back(torch.default_generator, new_state, started)
        return None

    return set_rng_state


def _setting_pythons(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same for Python's generator, which dynamo's C++ sets between the calls of a model."""

    def setstate(state: Any) -> None:
        caller = sys._getframe(2)
        if "setstate" in caller.f_code.co_names or is_drawn_from(state[1], random.getstate()[1]):
            original(state)

    return setstate


def is_drawn_from(then: Any, now: Any) -> bool:
    """Whether a Mersenne Twister came from one state to another by drawing, not by a seed.

    Args:
        then: its table, and how many of its numbers were drawn before the table is made anew.
        now: the same, later.
    """
    table, wanted = (np.asarray(each[:_WORDS], dtype=np.uint32) for each in (then, now))
    if np.array_equal(table, wanted):
        return bool(now[_WORDS] >= then[_WORDS])
    follower = np.random.RandomState()
    follower.set_state(("MT19937", table, _WORDS, 0, 0.0))
    for _ in range(_BLOCKS):
        follower.bytes(4 * _WORDS)
        state: Any = follower.get_state()
        if np.array_equal(state[1], wanted):
            return True
    return False


class Draws(TorchDispatchMode):
    """Inside the block: whether this thread draws from torch's generators.

    Attributes:
        seen: whether it did.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.seen = True
        return func(*args, **(kwargs or {}))
