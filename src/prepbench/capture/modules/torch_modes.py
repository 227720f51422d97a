"""The two modes of torch under which a forward is traced by value: one for torch functions, one for operators."""

from __future__ import annotations

from typing import Any, Protocol

from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.modes import OperatorMode, in_functorch


class Run(Protocol):
    """What a tracing run offers to the modes."""

    @property
    def active(self) -> bool: ...
    def call_below(self, function: Any, *args: Any, **kwargs: Any) -> Any: ...
    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def operator_below(self, func: Any, args: Any, kwargs: Any, result: Any) -> None: ...


class TorchFunctions(TorchFunctionMode):
    """Reports every torch function, Tensor method and property that the model's code uses."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._run.active:
            return func(*args, **(kwargs or {}))
        if in_functorch():
            return self._run.call_below(func, *args, **(kwargs or {}))
        return self._run.operation(func, tuple(args), kwargs or {})


class Operators(OperatorMode):
    """Reports the operators below function transforms, where batched tensors have become plain ones.

    Also sees ``torch.cond`` and its like, which compile their branches and then call one higher-order operator.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._run.operator_below(func, args, kwargs or {}, result)
        return result
