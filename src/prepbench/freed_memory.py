"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

# bytes of weights from which on it is worth half a second
_LARGE = 2**29


def give_back(weights: int) -> None:
    """Free what nothing refers to from outside, and give back what was freed, which glibc keeps for itself.

    Args:
        weights: bytes of the weights at hand; where they are few, nothing is done.
    """
    if weights < _LARGE:
        return
    gc.collect()  # graphs refer to themselves
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
