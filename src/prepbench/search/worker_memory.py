"""Memory of a worker while it computes: kept from one operator to the next."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, see malloc.h
_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
_KEPT, _LARGE = 2**28, 2**25  # bytes
_USUAL_LARGE = 2**17


@contextmanager
def memory_kept() -> Iterator[None]:
    """In the block, freed memory stays with the process, where its environment says that all goes back at once.

    Dask starts workers so. Then each result of an operator is new memory, whose pages the system has to fill with
    zeros: scores took twice the time, and two workers on one machine waited for each other. Only glibc has these
    settings; elsewhere nothing changes.
    """
    wanted = os.environ.get(_VARIABLE, "")
    setter = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and wanted.isdigit() else None
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
