"""Random number generators, which all threads share: unused ones are never written to."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from prepbench._torch_compat.modes import OperatorMode
from prepbench.patching import only_here, patched_here, patched_item, undoing


def generator_kept(generator: torch.Generator, seed: int | None = None) -> Callable[[], None]:
    """Save a generator's state; return a function that restores it.

    It restores only if numbers were drawn since, and leaves a generator alone that was seeded since, even with the
    same seed.

    Args:
        generator: of torch.
        seed: the seed that it is about to get.
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
        if (is_seeded_here or not _is_seeded_again(now, state, started)) and _is_at(generator, now, started):
            generator.set_state(state)


def _is_at(generator: torch.Generator, state: torch.Tensor, seed: int) -> bool:
    """Return whether a generator still has a state after the time that the decision took.

    No code here lets another thread run, as operators of torch do, so that the next statement follows at once.
    """
    expected = state.numpy().tobytes()
    return generator.initial_seed() == seed and generator.get_state().numpy().tobytes() == expected


def _is_seeded_again(now: torch.Tensor, state: torch.Tensor, seed: int) -> bool:
    """Return whether a CPU generator is nearer to its seed than before, so that it was seeded meanwhile."""
    places = [_place(each) for each in (now, state)]
    if None in places:
        return False
    (table_now, drawn_now), (table_then, drawn_then) = places  # type: ignore[misc]
    own = torch.Generator().manual_seed(seed)
    for _ in range(BLOCKS):
        table, _ = _place(own.get_state())  # type: ignore[misc]
        if torch.equal(table, table_now):
            return drawn_now < drawn_then if torch.equal(table, table_then) else True
        if torch.equal(table, table_then):
            return False
        torch.empty(WORDS, dtype=torch.int32).random_(generator=own)
    return False


def _place(state: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """Return the table that numbers are drawn from, and how many were; None for other kinds of generators.

    The state holds the seed, two counters, the number of draws from the table, and the table, each in 8 bytes.
    """
    if state.numel() < 8 * (3 + WORDS):
        return None
    words = state[: 8 * (3 + WORDS)].view(torch.int64)
    return words[3:], int(words[2])


_USERS = ("torch._functorch.aot_autograd", "torch._dynamo.utils")


def generators_preserved_here() -> list[AbstractContextManager[None]]:
    """Apply :func:`generator_kept` where dynamo and export restore the generator of all threads, in this thread."""
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
    """Wrap dynamo's setter of the generator, which runs after each traced frame even if nothing was drawn."""

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
    """Wrap the setter of Python's generator, which dynamo's C++ calls between the calls of a model."""

    def setstate(state: Any) -> None:
        caller = sys._getframe(2)
        if "setstate" in caller.f_code.co_names or is_drawn_from(state[1], random.getstate()[1]):
            original(state)

    return setstate


# The generator of Python and NumPy (Mersenne Twister), whose table shows whether it drew or was seeded.


WORDS = 624  # of a Mersenne Twister, drawn one after the other and then made anew all at once
BLOCKS = 1600
"""How far a generator is followed: a million numbers, which takes some milliseconds."""


def is_drawn_from(then: Any, now: Any) -> bool:
    """Return whether a Mersenne Twister came from one state to another by drawing, not by a seed.

    Args:
        then: its table, and how many of its numbers were drawn before the table is made anew.
        now: the same, later.
    """
    table, wanted = (np.asarray(each[:WORDS], dtype=np.uint32) for each in (then, now))
    if np.array_equal(table, wanted):
        return bool(now[WORDS] >= then[WORDS])
    follower = np.random.RandomState()
    follower.set_state(("MT19937", table, WORDS, 0, 0.0))
    for _ in range(BLOCKS):
        follower.bytes(4 * WORDS)
        state: Any = follower.get_state()
        if np.array_equal(state[1], wanted):
            return True
    return False


# Detect whether code draws random numbers.


class Draws(OperatorMode):
    """Detects whether this thread draws from torch's generators in the block: ``seen``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = getattr(func, "tags", None)
        if tags is None or torch.Tag.nondeterministic_seeded in tags:  # draws inside of torch.cond are not seen here
            self.seen = True
        return func(*args, **(kwargs or {}))
