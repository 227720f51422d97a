"""The levels of ``torch.vmap`` and its kin that a graph opens by operators of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def functorch_levels_kept() -> Iterator[None]:
    """After the block as many levels are open as before it.

    In a captured graph an operator opens a level and another one closes it. What raises between them leaves it open,
    and every later call of torch in this thread would be one of a mapped function.
    """
    before = _depth()
    try:
        yield
    finally:
        while _depth() > before:
            torch._C._functorch.pop_dynamic_layer_stack()


def _depth() -> int:
    return len(torch._C._functorch.get_interpreter_stack() or ())
