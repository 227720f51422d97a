"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

LARGE = 2**26
"""Bytes of weights from which on it is worth a few milliseconds."""


def give_back(weights: int) -> None:
    """Give back what was freed, which glibc keeps where blocks of middle size were used; nothing elsewhere.

    Args:
        weights: bytes of the weights at hand; nothing is done below :data:`LARGE`.
    """
    trim = _trim()
    if weights >= LARGE and trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
