"""The generator of Python and NumPy (Mersenne Twister), whose table shows whether it drew or was seeded."""

from __future__ import annotations

from typing import Any

import numpy as np

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
