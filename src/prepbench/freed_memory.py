"""Control over memory freed in the C library: return it to the system, or keep it for reuse."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# bytes of weights that justify half a second for returning memory
_LARGE_WEIGHTS = 2**29
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, see malloc.h
_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
_KEPT, _LARGE = 2**28, 2**25  # bytes
_USUAL_LARGE = 2**17


def give_back(weights: int) -> None:
    """Collect garbage, and return memory that glibc would keep to the system; does nothing for few bytes of weights."""
    if weights < _LARGE_WEIGHTS:
        return
    gc.collect()  # graphs are cyclic
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep freed memory in the process during the block, if its environment makes glibc return all at once.

    Dask starts workers in this way. Each result of an operator is then new memory, whose pages the system has to zero:
    scores took twice the time, and two workers on one machine waited for each other. Only glibc has these settings;
    elsewhere nothing changes.
    """
    wanted = os.environ.get(_VARIABLE, "")
    setter = _of_glibc("mallopt") if wanted.isdigit() else None
    if setter is None:
        yield
        return
    setter(_TRIM_THRESHOLD, _KEPT)
    setter(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        setter(_TRIM_THRESHOLD, int(wanted))
        setter(_MMAP_THRESHOLD, _USUAL_LARGE)


def _of_glibc(name: str) -> Callable[..., Any] | None:
    """Return a function of the C library; None if it has none of this name, as on macOS and Windows."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):
        return None
