"""The FX spelling of a call that a function mode reports."""

from __future__ import annotations

import builtins
import operator
from typing import Any

import torch

# x.__radd__(1) is 1 + x
_REFLECTED = {
    f"__r{name}__": getattr(operator, special)
    for name, special in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "div": "truediv", "floordiv": "floordiv",
        "mod": "mod", "pow": "pow", "matmul": "matmul", "and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift",
        "rshift": "rshift",
    }.items()
}  # fmt: skip
_DIRECT = {
    f"__{name}__": getattr(operator, f"__{name}__")
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
        "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
        "neg", "pos", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem",
    )
} | {"__div__": operator.truediv, "__idiv__": operator.itruediv}  # fmt: skip

Spelled = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def spell(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spelled:
    """Return ``(op, target, args, kwargs)`` of the FX node for ``func(*args, **kwargs)``.

    Example:
        >>> x = torch.ones(2)
        >>> spell(torch.Tensor.__rsub__, (x, 1), {})[:2]
        ('call_function', <built-in function sub>)
    """
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return "call_function", builtins.getattr, (args[0], func.__self__.__name__), {}
    if name == "__set__":
        return "call_function", builtins.setattr, (args[0], func.__self__.__name__, *args[1:]), {}
    if name == "__deepcopy__":
        return "call_method", "clone", args[:1], {}
    if is_method(func, name) and args:
        if name in _REFLECTED and len(args) == 2:
            return "call_function", _REFLECTED[name], (args[1], args[0]), {}
        if name in _DIRECT and not kwargs:
            return "call_function", _DIRECT[name], args, {}
        return "call_method", name, args, kwargs
    return "call_function", func, args, kwargs


def is_method(func: Any, name: str) -> bool:
    """Return whether ``func`` is a method of ``torch.Tensor``."""
    return getattr(torch.Tensor, name, None) is func or getattr(func, "__objclass__", None) in torch.Tensor.__mro__


def has_side_effect(func: Any) -> bool:
    """Return whether a call that returns nothing still changes one of its arguments."""
    name = getattr(func, "__name__", "")
    return name in ("__setitem__", "__set__", "__delitem__") or (name.endswith("_") and not name.startswith("__"))
