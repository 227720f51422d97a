"""The one table of operations: what has a module, what the module is called, and why others stay calls.

An operation may come as a function of ``torch``, ``torch.nn.functional``, ``torch.linalg``, ``torch.fft`` or
``torch.special``, as a ``Tensor`` method, or as a Python operator. All of them lead to the same class in
:mod:`prepbench.prepare.modules`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from prepbench._torch_compat.operators import NN_FUNCTIONS, RNN_FUNCTIONS, OpOverload
from prepbench.prepare.operation_names import ALIASES, CLASS_NAMES, WITH_MODULE, WITHOUT_MODULE

_PREFIXES = ("special_", "sym_size")


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
        name: torch's name, e.g. ``"softmax"``.
        group: what kind of operation it is, e.g. ``"activation"``.
        class_name: its class in :mod:`prepbench.prepare.modules`; "" if it stays a call.
        reason: why it stays a call; "" if it has a module.
    """

    name: str
    group: str = ""
    class_name: str = ""
    reason: str = ""


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)


def _rows() -> dict[str, Operation]:
    rows = {name: Operation(name, reason=reason) for reason, names in WITHOUT_MODULE.items() for name in names.split()}
    for group, names in WITH_MODULE.items():
        for name in names.split():
            same = ALIASES.get(name, name)
            rows[name] = Operation(name, group, CLASS_NAMES.get(same) or _camel(same))
    for name, same in ALIASES.items():
        rows.setdefault(name, Operation(name, rows[same].group, rows[same].class_name))
    return rows


TABLE: dict[str, Operation] = _rows()
"""Every operation by name."""

_NAMESPACES = (torch, F, torch.Tensor, torch.special, torch.linalg, torch.fft, NN_FUNCTIONS, RNN_FUNCTIONS)
_IN_PLACE_OPERATORS = {
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    "imatmul", "idiv",
}  # fmt: skip


def function_name(function: Callable[..., Any] | str) -> str:
    """The name of a function or method as torch writes it, without underscores and overload names of operators.

    Example:
        >>> function_name(operator.iadd), function_name(torch.relu_), function_name(torch.Tensor.__getitem__)
        ('iadd', 'relu_', 'getitem')
    """
    if isinstance(function, OpOverload):
        return str(function.overloadpacket.__name__)
    name = function if isinstance(function, str) else str(getattr(function, "__name__", ""))
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    elif name.endswith("_") and name[:-1] in ("and", "or", "not"):
        name = name[:-1]
    for prefix in _PREFIXES:
        if name.startswith(prefix) and name.removeprefix(prefix).rstrip("_") in TABLE:
            name = name.removeprefix(prefix)
    return name.lstrip("_")


def is_in_place(function: Callable[..., Any] | str) -> bool:
    """Whether the function changes its first argument, as ``relu_`` and ``+=`` do."""
    name = function_name(function)
    return name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))


def operation_of(function: Callable[..., Any] | str) -> Operation | None:
    """The row for a function, or for a ``Tensor`` method given by name; ``None`` if it is not torch's.

    Example:
        >>> operation_of(torch.nn.functional.softmax).class_name, operation_of("add_").class_name
        ('Softmax', 'Add')
    """
    name = function_name(function)
    if not isinstance(function, str) and not _is_torchs(function, name):
        return None
    for candidate in (name, name.removesuffix("_"), name[1:] if name in _IN_PLACE_OPERATORS else name):
        if candidate in TABLE:
            return TABLE[candidate]
    return None


def _is_torchs(function: Callable[..., Any], name: str) -> bool:
    if isinstance(function, OpOverload):
        return function.namespace in ("aten", "prims")
    if getattr(operator, function.__name__ if hasattr(function, "__name__") else "", None) is function:
        return True
    if getattr(function, "__module__", "") == "builtins" or function in (abs, round, divmod, pow, sum, max, min):
        return True
    own = getattr(function, "__name__", "")
    places = [getattr(space, spelled, None) for space in _NAMESPACES for spelled in (own, name)]
    home = str(getattr(function, "__module__", "") or "")
    return any(found is function for found in places) or home.split(".")[0] == "torch" or home == "_operator"
