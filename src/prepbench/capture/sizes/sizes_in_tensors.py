"""Sizes that a model computes as tensors: ``torch.div(x.shape[1], 4, rounding_mode="trunc")`` and ``x.view`` by it.

torch takes the number in such a tensor for one that only the data tells, and cannot answer what it asks about it. Here
the tensor is made from the size, and where torch wants a number, it gets the size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.sizes import smallest

_SIZE = "_prepbench_size"
"""The attribute of a tensor that holds a size as its number."""


class SizesInTensors(TorchFunctionMode):
    """Follow sizes through tensors of one number during the block."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        form = _ARITHMETIC.get(func)
        if form is not None and len(args) == 2 and kwargs.keys() == ({"rounding_mode"} if form is _divide else set()):
            size = form(*map(_number, args), **kwargs)
            if size is not NotImplemented:
                return _holding(size)
        if func in _READING and len(args) == 1 and _has_size(args[0]):
            return _number(args[0])
        if func in _TAKING_SIZES:
            args, kwargs = _with_numbers(args), _with_numbers(kwargs)
        elif args and _has_size(args[0]) and _changes(func):
            delattr(args[0], _SIZE)
        return func(*args, **kwargs)


def _divide(one: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide sizes; Python rounds down, which is the same as towards zero where nothing is negative."""
    if not _is_size(one) or type(other) is not int or other <= 0 or rounding_mode not in ("trunc", "floor"):
        return NotImplemented
    return one // other if rounding_mode == "floor" or smallest(one) >= 0 else NotImplemented


def _divide_down(one: Any, other: Any) -> Any:
    return _divide(one, other, rounding_mode="floor")


def _remainder(one: Any, other: Any) -> Any:
    return one % other if _is_size(one) and type(other) is int and other > 0 else NotImplemented


def _computed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def computed(one: Any, other: Any) -> Any:
        are_numbers = all(_is_size(value) or type(value) is int for value in (one, other))
        return function(one, other) if are_numbers else NotImplemented

    return computed


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


def _holding(size: Any) -> torch.Tensor:
    tensor = torch.scalar_tensor(size, dtype=torch.int64)
    setattr(tensor, _SIZE, size)
    return tensor


def _has_size(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(value, _SIZE)


def _number(value: Any) -> Any:
    return getattr(value, _SIZE) if _has_size(value) else value


def _with_numbers(values: Any) -> Any:
    """Return arguments with sizes for the tensors that hold them."""
    if isinstance(values, dict):
        return {name: _with_numbers(value) for name, value in values.items()}
    if type(values) in (tuple, list, torch.Size):
        made = tuple(map(_with_numbers, values))
        return list(made) if type(values) is list else made
    if isinstance(values, slice):
        return slice(*map(_number, (values.start, values.stop, values.step)))
    return _number(values)


def _changes(func: Any) -> bool:
    """Return whether a function changes its first argument, by torch's names."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


_IN_PLACE = {
    *("__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__"),
    *("__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}

_T = torch.Tensor
_ADD, _SUB, _MUL = map(_computed, (operator.add, operator.sub, operator.mul))
_ARITHMETIC: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.div, torch.divide, _T.div, _T.divide), _divide),
    **dict.fromkeys((torch.floor_divide, _T.floor_divide, _T.__floordiv__), _divide_down),
    **dict.fromkeys((torch.remainder, _T.remainder, _T.__mod__), _remainder),
    **dict.fromkeys((torch.add, _T.add, _T.__add__, _T.__radd__), _ADD),
    **dict.fromkeys((torch.sub, torch.subtract, _T.sub, _T.__sub__), _SUB),
    **dict.fromkeys((_T.__rsub__,), lambda one, other: _SUB(other, one)),
    **dict.fromkeys((torch.mul, torch.multiply, _T.mul, _T.__mul__, _T.__rmul__), _MUL),
}
"""What computes sizes from sizes. ``torch.div`` of a size makes the first tensor."""

_READING = {_T.item, _T.tolist}

_TAKING_SIZES = {
    *(_T.view, _T.reshape, _T.expand, _T.repeat, _T.as_strided, _T.narrow, _T.unflatten, _T.tile, _T.__getitem__),
    *(_T.new_zeros, _T.new_ones, _T.new_full, _T.new_empty, _T.split, _T.unfold, _T.repeat_interleave),
    *(torch.reshape, torch.as_strided, torch.narrow, torch.tile, torch.split, torch.unflatten),
    *(torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.rand, torch.randn),
}
"""What would read the number out of a tensor, because it wants a size there."""
