"""One module class per operation of torch: ``Add``, ``Softmax``, ``Concat``, ...; generated from the table of
operations.

``from prepbench.prepare.modules import Softmax`` gives a class whose instances hold the constants of a call (a dim, a
scalar operand) and receive the computed values (tensors, sizes) in forward.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable

import torch
from torch.nn import functional as F

from prepbench._torch_compat.operators import NN_FUNCTIONS
from prepbench.prepare.operations import TABLE, Operation, is_in_place
from prepbench.prepare.passes.graph_edits import mapped


class _Input:
    """The placeholder of one input of forward among the settings of a module."""

    _only: _Input | None = None

    def __new__(cls) -> _Input:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "INPUT"

    def __reduce__(self) -> typing.Any:
        return _Input, ()


INPUT = _Input()


class ByMode:
    """A setting that follows the training flag, such as ``training=self.training``.

    Example:
        >>> module = Operator(INPUT, p=0.5, training=ByMode(True, False), function=torch.nn.functional.dropout)
        >>> module.eval()(torch.ones(3))
        tensor([1., 1., 1.])
    """

    def __init__(self, train: typing.Any, evaluate: typing.Any) -> None:
        self.train, self.evaluate = train, evaluate

    def __repr__(self) -> str:
        if (self.train, self.evaluate) == (True, False):
            return "self.training"
        return f"({self.train!r} if self.training else {self.evaluate!r})"


class Operator(torch.nn.Module):
    """One torch function as a module.

    Args:
        args: what is fixed, in the order of the function; :data:`INPUT` stands where forward's inputs go. Inputs that
            have no such place come after ``args``.
        function: the function, if it is not the first one of the class: an in-place form, a ``Tensor`` method.
        kwargs: the fixed arguments by name.

    Example:
        >>> from prepbench.prepare.modules import Softmax, Subtract
        >>> Subtract(1)(torch.tensor(3.0)), Softmax(INPUT, -1)(torch.zeros(2))
        (tensor(-2.), tensor([0.5000, 0.5000]))
    """

    __prepbench_layer__ = True
    """Capture keeps these modules as one call, as it does with torch's own layers."""

    functions: tuple[Callable[..., typing.Any], ...] = ()
    operation: Operation | None = None

    def __init__(
        self, *args: typing.Any, function: Callable[..., typing.Any] | None = None, **kwargs: typing.Any
    ) -> None:
        super().__init__()
        self.function = function or self.functions[0]
        self.args, self.kwargs = args, kwargs

    @property
    def inplace(self) -> bool:
        """Whether forward changes its first input."""
        return is_in_place(self.function) or bool(self.kwargs.get("inplace", False))

    def forward(self, *inputs: typing.Any) -> typing.Any:
        """Return the function's result for these inputs: tensors or sizes, in the order of their places."""
        if not self.args and not self.kwargs:
            return self.function(*inputs)
        given = iter(inputs)

        def value_of(part: typing.Any) -> typing.Any:
            if part is INPUT:
                return next(given)
            if isinstance(part, ByMode):
                return part.train if self.training else part.evaluate
            return part

        args, kwargs = mapped((self.args, self.kwargs), value_of)
        return self.function(*args, *given, **kwargs)

    def extra_repr(self) -> str:
        args = list(self.args)
        if args and args[0] is INPUT:
            # the first input is implied
            args = args[1:]
        texts = [*map(_text, args), *(f"{name}={_text(value)}" for name, value in self.kwargs.items())]
        if is_in_place(self.function):
            texts.append("inplace=True")
        return ", ".join(texts)


def _text(value: typing.Any) -> str:
    if isinstance(value, slice):
        return ":".join("" if part is None else _text(part) for part in (value.start, value.stop)) + (
            "" if value.step is None else f":{_text(value.step)}"
        )
    if isinstance(value, tuple | list):
        inner = ", ".join(map(_text, value))
        return f"({inner}{',' if len(value) == 1 else ''})" if isinstance(value, tuple) else f"[{inner}]"
    return "..." if value is Ellipsis else repr(value)


class Concat(Operator):
    """Joins tensors along a dim: ``Concat(dim=1)(a, b, c)``."""

    def forward(self, *inputs: typing.Any) -> typing.Any:
        """Return the tensors joined; each input is one of them."""
        if self.args or "tensors" in self.kwargs:
            return super().forward(*inputs)
        return self.function(list(inputs), **self.kwargs)


class Stack(Concat):
    """Joins tensors along a new dim: ``Stack(dim=1)(a, b, c)``."""


_SPACES = (torch, F, torch.special, torch.linalg, torch.fft, NN_FUNCTIONS, operator, torch.Tensor)
_NOT_OF_TENSORS = (operator.concat, operator.iconcat, operator.index)
READ = {name: operator.attrgetter(name) for name in ("T", "H", "mT", "mH", "real", "imag")}


def _functions(names: list[str]) -> tuple[Callable[..., typing.Any], ...]:
    found: dict[int, Callable[..., typing.Any]] = {}
    for name in names:
        for space in _SPACES:
            for spelled in (name, name.removeprefix("linalg_").removeprefix("fft_"), f"{name}_", f"i{name}"):
                function = getattr(space, spelled, None)
                if callable(function) and function not in _NOT_OF_TENSORS and not isinstance(function, type):
                    found.setdefault(id(function), function)
        if name in READ and not found:
            found[0] = READ[name]
    return tuple(found.values())


_WRITTEN: dict[str, type[Operator]] = {"Concat": Concat, "Stack": Stack}


def _classes() -> dict[str, type[Operator]]:
    names: dict[str, list[str]] = {}
    for row in TABLE.values():
        if row.class_name:
            names.setdefault(row.class_name, []).append(row.name)
    result: dict[str, type[Operator]] = {}
    for class_name, spelled in names.items():
        kind: type[Operator] = _WRITTEN.get(class_name) or type(class_name, (Operator,), {"__module__": __name__})
        ordered = sorted(spelled, key=lambda name: (TABLE[name].class_name != class_name, spelled.index(name)))
        kind.functions, kind.operation = _functions(ordered), TABLE[ordered[0]]
        if kind.__doc__ is None:
            kind.__doc__ = f"``{'``, ``'.join(ordered)}`` of torch as a module; see :class:`Operator`."
        result[class_name] = kind
    return result


CLASSES: dict[str, type[Operator]] = _classes()
"""Every class by name."""

globals().update(CLASSES)


def __getattr__(name: str) -> typing.Any:
    raise AttributeError(f"prepbench.prepare.modules has no {name}; CLASSES in it lists the modules of all operations.")
