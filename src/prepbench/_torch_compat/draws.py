"""Whether code draws random numbers."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torch_compat.modes import TorchDispatchMode


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
