"""Counting the calls of torch that a model makes, so that a loop without an end is told soon and on any machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from prepbench.running.time_limit import TimeLimitReached


class CountedCalls(TorchFunctionMode):
    """Counts the calls of torch, and ends the block when there are too many."""

    def __init__(self, most: float | None) -> None:
        super().__init__()
        self.count = 0
        self._most = most

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its calls counted, and not those which put its state back."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return counted

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self._most is not None and self.count > self._most:
            raise TimeLimitReached
        return function(*args, **(kwargs or {}))
