"""The levels of ``torch.vmap`` and similar transforms that operators of a graph open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def functorch_levels_kept() -> Iterator[None]:
    """Restore the number of open levels after the block.

    In a captured graph one operator opens a level and another closes it. An exception between them leaves it open,
    and every later call of torch in this thread would run under the transform.
    """
    before = _depth()
    try:
        yield
    finally:
        while _depth() > before:
            torch._C._functorch.pop_dynamic_layer_stack()


def _depth() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or ())
