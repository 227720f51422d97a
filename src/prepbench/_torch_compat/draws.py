"""Detect whether code draws random numbers."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torch_compat.modes import OperatorMode


class Draws(OperatorMode):
    """Detects whether this thread draws from torch's generators in the block.

    Attributes:
        seen: whether it did.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = getattr(func, "tags", None)
        if tags is None or torch.Tag.nondeterministic_seeded in tags:  # draws inside of torch.cond are not seen here
            self.seen = True
        return func(*args, **(kwargs or {}))
