"""Replacements in torch and Python during value tracing, for calls that bypass a function mode."""

from __future__ import annotations

import builtins
import inspect
import math
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import fx

from prepbench._torch_compat.fake_tensors import LOGGERS, is_fake
from prepbench._torch_compat.modes import autocast_functions, autocast_state, transforms
from prepbench._torch_compat.sizes import SQRT
from prepbench._torch_compat.symbolic_fx import wrapped_functions
from prepbench.objects.parts import is_library, names_in
from prepbench.patching import logs_dropped_here, patched, patched_here, patched_item

_MATH = {
    "sqrt": SQRT,
    "ceil": lambda value: value.__ceil__(),
    "floor": lambda value: value.__floor__(),
    "trunc": lambda value: value.__trunc__(),
}


_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")


class Run(Protocol):
    """The interface of a tracing run for the replacements."""

    @property
    def active(self) -> bool: ...
    def is_number(self, value: Any) -> bool: ...
    def call_below(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...
    def module_call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any: ...
    def wrapped_function(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def autograd_function(self, original: Callable[..., Any], kind: Any, args: Any, kwargs: Any) -> Any: ...


@contextmanager
def intercepted(run: Run) -> Iterator[None]:
    """Report module calls, autograd functions, function transforms, ``len`` and ``math`` to ``run`` inside the block.

    Other threads, and code that runs while ``run`` is not active, get the originals.
    """
    wrapped = [(space, name, _wrapped(run, function)) for space, name, function in wrapped_functions()]
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.nn.Module, "__call__", _module_call(run)),
            (torch.autograd.Function, "apply", classmethod(_apply(run))),
            *((module, name, _below(run, getattr(module, name))) for module, name in transforms()),
            (builtins, "len", _len(run)),
            *((math, name, _number(run, name)) for name in _MATH),
            *((torch.SymInt, name, _compare(run, name)) for name in _COMPARISONS),
            *((torch.SymInt, name, _text(run, name)) for name in ("__str__", "__repr__", "__format__", "__hash__")),
        ):
            stack.enter_context(patched(owner, name, value))
        # torch logs what fails on tensors without data; it is reported as a failure instead
        for namespace, name, function in wrapped:
            stack.enter_context(patched_item(namespace, name, function))
        stack.enter_context(logs_dropped_here(*LOGGERS))
        yield


@contextmanager
def symbolic_conversions(code: Iterable[Any], *, of_data: bool = True) -> Iterator[None]:
    """Keep sizes symbolic through ``int``, ``float`` and ``len`` in the files of these classes and functions.

    Python insists that ``int(value)`` gives a plain number, so the names themselves are replaced during the block.

    Args:
        code: classes and functions.
        of_data: numbers that are read from data stay symbolic, too.
    """
    homes = {getattr(part, "__module__", None) or type(part).__module__ for part in code}
    numbers = [(getattr(math, name), _Followed(math, name)) for name in _MATH]
    with ExitStack() as stack:
        for home in sorted(homes):
            module = sys.modules.get(home)
            if module is None or home.partition(".")[0] in ("torch", "builtins", "prepbench"):
                continue
            for name, value in (
                ("int", _Int if of_data else _IntOfSizes),
                ("float", _Float),
                ("len", _len_of_data),
            ):
                if name not in vars(module):
                    stack.enter_context(patched_item(vars(module), name, value))
            for name, value in list(vars(module).items()):
                followed = next((f for f in numbers if value is f[0]), None)  # from math import sqrt
                if followed is not None:
                    stack.enter_context(patched_item(vars(module), name, followed[1]))
        yield


@contextmanager
def symbolic_roots() -> Iterator[None]:
    """Keep sizes symbolic through ``math.sqrt`` in this thread during the block, where torch itself makes them numbers.

    A function that a file imported by name is followed inside of :func:`symbolic_conversions`, which comes first.
    """
    original = math.sqrt

    def sqrt(value: Any, /) -> Any:
        return SQRT(value) if isinstance(value, torch.SymInt | torch.SymFloat) else original(value)

    with patched_here(math, "sqrt", sqrt):
        yield


class _Like(type):
    """A type that stands in for another one in ``isinstance`` and as a key."""

    def __instancecheck__(cls, instance: Any) -> bool:
        # a symbolic size is an int wherever the model runs for real
        symbolic = torch.SymInt if cls.__mro__[1] is int else torch.SymFloat
        return isinstance(instance, cls.__mro__[1] | symbolic)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__mro__[1]

    def __hash__(cls) -> int:
        return hash(cls.__mro__[1])


class _Int(int, metaclass=_Like):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.SymInt):
            return args[0]
        if len(args) == 1 and isinstance(args[0], torch.SymFloat):
            return args[0].__trunc__()
        return int(*args, **kwargs)


class _IntOfSizes(int, metaclass=_Like):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        is_size = len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat) and args[0].node.has_hint()
        return (_Int if is_size else int)(*args, **kwargs)


class _Float(float, metaclass=_Like):
    def __new__(cls, *args: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            return torch.sym_float(args[0])
        return float(*args)


def _len_of_data(value: Any, /) -> Any:
    """``len`` of a tensor as a size that values decide; other lengths are numbers, which tracing knows."""
    if isinstance(value, torch.Tensor) and value.dim():
        size: Any = value.shape[0]
        if isinstance(size, torch.SymInt) and not size.node.has_hint():
            return size
    return builtins.len(value)


_FOLLOWED = ((builtins, "len"), *((math, name) for name in _MATH))


class _Followed:
    """Replaces a function on sizes that a model imported by name, by the one that keeps sizes symbolic."""

    def __init__(self, home: Any, name: str) -> None:
        self._home, self._name = home, name

    def __call__(self, value: Any, /) -> Any:
        return getattr(self._home, self._name)(value)


def _wrapped(run: Run, original: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(original, _Followed):
        return original
    for home, name in _FOLLOWED:
        if original is getattr(home, name):
            return _Followed(home, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return run.wrapped_function(original, args, kwargs) if run.active else original(*args, **kwargs)

    return wrapped


def _module_call(run: Run) -> Callable[..., Any]:
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if run.active:
            return run.module_call(original, module, args, kwargs)
        return original(module, *args, **kwargs)

    return call


def _apply(run: Run) -> Callable[..., Any]:
    # a Python classmethod up to torch 2.13, a builtin from 2.14 on: both are bound to a class in this way
    found = inspect.getattr_static(torch.autograd.Function, "apply")

    def original(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return found.__get__(None, kind)(*args, **kwargs)

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if run.active:
            return run.autograd_function(original, kind, args, kwargs)
        return original(kind, *args, **kwargs)

    return apply


def _below(run: Run, original: Callable[..., Any]) -> Callable[..., Any]:
    def transform(*args: Any, **kwargs: Any) -> Any:
        return run.call_below(original, *args, **kwargs) if run.active else original(*args, **kwargs)

    return transform


def _len(run: Run) -> Callable[[Any], Any]:
    original = builtins.len

    def traced_len(value: Any, /) -> Any:
        if isinstance(value, torch.Tensor) and run.active and value.dim():
            # Python insists on an int from __len__, which would fix the size
            return value.shape[0]
        return original(value)

    return traced_len


def _number(run: Run, name: str) -> Callable[..., Any]:
    original = getattr(math, name)

    def traced_number(value: Any, /) -> Any:
        if isinstance(value, torch.SymInt | torch.SymFloat) and run.active:
            return _MATH[name](value)
        return original(value)

    return traced_number


def _compare(run: Run, name: str) -> Callable[..., Any]:
    original = getattr(torch.SymInt, name)

    def compare(self: torch.SymInt, other: Any) -> Any:
        result = original(self, other)
        if isinstance(result, torch.SymBool) and run.active and result.node.has_hint():
            # torch's C++ argument parser takes flags such as is_causal only as bool
            return bool(result)
        return result

    return compare


def _text(run: Run, name: str) -> Callable[..., Any]:
    original = getattr(torch.SymInt, name)

    def text(self: torch.SymInt, *args: Any) -> Any:
        if run.active and run.is_number(self):
            # a size used as a key or as text acts like a comparison, so it must be the same for all samples
            return getattr(int(self), name)(*args)
        return original(self, *args)

    return text


# Eager types for ``type(x)`` and ``isinstance(x, ...)`` in a model's code, where tensors and sizes are stand-ins.


_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The eager types of sizes and numbers."""

_REPLACED = frozenset({"type", "isinstance"})


@contextmanager
def types_as_in_eager(code: Iterable[Any]) -> Iterator[None]:
    """Give traced tensors and sizes their eager types during the block.

    This replaces ``type`` and ``isinstance`` in these classes and functions, and in functions that they name. Only
    files whose code uses them get the replacement, which behaves as the original for all other values.
    """
    spaces: dict[tuple[int, str], dict[str, Any]] = {}
    for function in _functions(code):
        for name in _REPLACED & names_in(function.__code__)[0]:
            spaces[id(function.__globals__), name] = function.__globals__
    asked = _isinstance(threading.get_ident())
    with ExitStack() as stack:
        for (_, name), space in spaces.items():
            if name not in space:  # a model may have a name of its own
                stack.enter_context(patched_item(space, name, asked if name == "isinstance" else _Type))
        yield


def code_held_by(root: torch.nn.Module) -> list[Any]:
    """Return the classes of the modules, and the functions that modules hold as attributes."""
    classes: dict[type, None] = {}
    functions: list[Any] = []
    for module in root.modules():
        classes[type(module)] = None
        functions += [value for value in vars(module).values() if type(value) in _FUNCTIONS]
    return [*classes, *functions]


_FUNCTIONS = (types.FunctionType, types.MethodType)


def _functions(code: Iterable[Any]) -> list[types.FunctionType]:
    """Return the functions of classes and objects, and those that their code names, except those of libraries."""
    found: dict[int, types.FunctionType] = {}
    waiting = [function for part in code for function in _own_functions(part)]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, types.FunctionType) or id(function) in found or is_library(function.__module__):
            continue
        found[id(function)] = function
        names = names_in(function.__code__)[0]
        for value in map(function.__globals__.get, names):
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif isinstance(value, types.ModuleType) and not is_library(value.__name__):
                waiting += [part for part in map(vars(value).get, names) if isinstance(part, types.FunctionType)]
    return list(found.values())


def _own_functions(part: Any) -> Iterator[Any]:
    if inspect.isroutine(part):
        yield getattr(part, "__func__", part)
        return
    kind = part if inspect.isclass(part) else type(part)
    for base in kind.__mro__:
        if not is_library(base.__module__):
            for value in vars(base).values():
                plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if callable(plain):
                    yield plain


def _isinstance(here: int) -> Any:
    """Return an ``isinstance`` for which sizes and numbers are int and float in the tracing thread."""

    def isinstance(value: Any, kinds: Any, /) -> bool:
        number = _NUMBERS.get(type(value))
        if number is not None and threading.get_ident() == here and issubclass(number, kinds):
            return True
        return _for_user(value, kinds)

    return isinstance


def _for_user(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds)


def asks_for_user(code: types.CodeType) -> bool:
    """Return whether library code checks a type on behalf of the user's code."""
    return code is _for_user.__code__


def _type_of_proxy(proxy: fx.Proxy) -> type:
    if proxy.node.op != "get_attr":
        return torch.Tensor
    path, _, name = str(proxy.node.target).rpartition(".")
    root: Any = proxy.tracer.root  # type: ignore[attr-defined]
    # not by getattr, which gives the proxy again
    return type(root.get_submodule(path)._parameters.get(name, torch.empty(0)))


class _LikeType(type):
    """Makes a class that stands in for ``type`` itself."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            seen = args[0]
            if is_fake(seen):
                return torch.nn.Parameter if isinstance(seen, torch.nn.Parameter) else torch.Tensor
            if type(seen) in _NUMBERS:
                return _NUMBERS[type(seen)]
            if issubclass(type(seen), fx.Proxy):
                return _type_of_proxy(seen)
        return type(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


class _Type(type, metaclass=_LikeType):
    pass


def _state() -> tuple[Any, bool]:
    return autocast_state(), torch.is_grad_enabled()


class Regions:
    """Opens and closes autocast and ``no_grad`` in a graph where the model does.

    Autocast decides the dtypes of later operations, and operations under ``no_grad`` have no gradients.

    Args:
        add: appends a call of a function to the graph.

    Attributes:
        opened: the state that the graph is in, and what closes each open region; assign an earlier value when the
            nodes since then are removed.
    """

    def __init__(self, add: Callable[[Any, tuple[Any, ...]], fx.Node]) -> None:
        self._add = add
        self._outside = _state()
        self.opened: tuple[Any, list[tuple[Any, fx.Node]]] = (self._outside, [])

    def follow(self) -> None:
        """Bring the graph into the model's current autocast and gradient modes."""
        state, entered = self.opened
        now = _state()
        if now == state:
            return
        for leave, node in reversed(entered):
            self._add(leave, (node,))
        self.opened = now, self._opened_now(*now)

    def _opened_now(self, autocast: Any, grad: bool) -> list[tuple[Any, fx.Node]]:
        enter, leave = autocast_functions()
        opened = [
            (leave, self._add(enter, (device, dtype, enabled, True)))
            for device, enabled, dtype in autocast
            if (device, enabled, dtype) not in self._outside[0]
        ]
        if grad != self._outside[1]:
            opened.append((exit_grad_mode, self._add(enter_grad_mode, (grad,))))
        return opened


# Regions of a forward without gradients, as two calls in a graph.


def enter_grad_mode(enabled: bool) -> bool:
    """Switch recording of gradients on or off from here on; return the previous mode."""
    before = torch.is_grad_enabled()
    # gradients that the caller has switched off stay off
    torch.set_grad_enabled(enabled and before)
    return before


def exit_grad_mode(before: bool) -> None:
    """Leave the region that :func:`enter_grad_mode` opened."""
    torch.set_grad_enabled(before)
