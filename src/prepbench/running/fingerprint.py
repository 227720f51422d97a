"""A digest of all state that a call can depend on, to tell whether a model changed since capture.

Values are read, because torch's version counters are not sufficient: ``weight.data``, NumPy and batch norm write
without raising them.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import os
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from prepbench.objects.parts import (
    PLAIN,
    is_own_class,
    is_own_function,
    is_own_object,
    named_globals,
    slots_of,
)


@dataclass(frozen=True)
class Fingerprint:
    """The digest of a model and its dependencies; equal digests mean equal state.

    Attributes:
        digest: of all values, and of which objects hold them.
        alive: those objects, because an object's identity means nothing once it is gone.
    """

    digest: bytes
    alive: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def fingerprint(*roots: Any, by_value: bool = False) -> Fingerprint:
    """Return the fingerprint of modules, functions and objects, and everything in them.

    Of modules: tensors with their values, flags, hooks, submodules in their order, and other attributes. Of functions:
    code, defaults, closures and the globals that they name. Of a user's objects: their attributes. Objects outside of
    Python, and the contents of installed libraries' objects, are compared by identity only.

    Args:
        roots: the objects to read.
        by_value: tensors and arrays that hold the same are the same, as for samples, which a loader makes anew.
    """
    reader = _Reader(by_value)
    for root in roots:
        reader.read(root)
    return Fingerprint(reader.digest.digest(), tuple(reader.alive))


class _Reader:
    """Walks objects in a deterministic order and digests them."""

    def __init__(self, by_value: bool) -> None:
        self.digest = hashlib.sha256()
        self.alive: list[Any] = []
        self._by_value = by_value
        self._seen: dict[int, int] = {}
        self._ways: dict[type, Callable[[_Reader, Any], None] | None] = {}

    def read(self, root: Any) -> None:
        waiting = [root]  # no recursion: models nest deeper than Python's stack
        while waiting:
            self._waiting: list[Any] = []
            self._one(waiting.pop())
            waiting += reversed(self._waiting)

    def _one(self, value: Any) -> None:
        kind = type(value)
        if kind not in self._ways:
            self._ways[kind] = _way_to_read(kind)
        way = self._ways[kind]
        if way is None:
            self._tell(kind.__name__, repr(value))
            return
        if id(value) in self._seen:
            self._tell("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self.alive.append(value)
        way(self, value)

    def _tell(self, *parts: Any) -> None:
        self.digest.update(repr(parts).encode())

    def _identity(self, value: Any) -> None:
        self._tell(type(value).__qualname__, 0 if self._by_value else id(value))

    def _identity_only(self, value: Any) -> None:
        self._tell("object", id(value))

    def _tensor(self, value: torch.Tensor) -> None:
        self._identity(value)
        self._tell(tuple(value.shape), value.dtype, value.device, value.layout, value.requires_grad)
        if value.device.type == "meta" or nn.parameter.is_lazy(value):
            return
        if value.layout is torch.strided:
            self._tell(value.stride())
        self.digest.update(_bytes_of(value))
        self._waiting += vars(value).values()

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self._identity(value)
        self._tell(value.shape, value.dtype.str)
        if value.dtype.hasobject:
            self._waiting += value.ravel().tolist()
        else:
            self.digest.update(np.ascontiguousarray(value).tobytes())

    def _mapping(self, value: Any) -> None:
        self._tell(type(value).__qualname__, len(value))
        for key, part in list(value.items()):
            self._waiting += (key, part)
        self._waiting.append(getattr(value, "__dict__", None))

    def _sequence(self, value: Any) -> None:
        self._tell(type(value).__qualname__, len(value))
        self._waiting += [*value, getattr(value, "__dict__", None)]

    def _set(self, value: Any) -> None:
        # the order of a set is chance, so its members are put into the order of their digests
        found = [fingerprint(part, by_value=self._by_value) for part in value]
        self._tell(type(value).__qualname__, sorted(one.digest for one in found))
        self.alive += found

    def _module(self, value: nn.Module) -> None:
        self._identity_only(value)
        self._type(type(value))
        for name, part in vars(value).items():
            self._waiting += (name, part)

    def _script(self, value: torch.jit.ScriptModule) -> None:
        self._identity_only(value)
        self._waiting += [value.training, list(value.named_parameters()), list(value.named_buffers())]

    def _type(self, kind: type) -> None:
        forward = getattr(kind, "forward", None)
        self._tell(kind.__module__, kind.__qualname__, id(kind), id(forward))
        self.alive.append(forward)  # somebody may put another one into the class
        if is_own_class(kind):
            for name, part in list(vars(kind).items()):
                if not name.startswith("__") or name in _CALLED:
                    self._waiting += (name, getattr(part, "__func__", part))
            self._waiting += kind.__bases__

    def _function(self, value: types.FunctionType) -> None:
        self._tell("function", id(value.__code__))
        self.alive.append(value.__code__)
        for cell in value.__closure__ or ():
            try:
                self._waiting.append(cell.cell_contents)
            except ValueError:  # an empty cell
                self._waiting.append(None)
        self._waiting += (value.__defaults__, value.__kwdefaults__, vars(value))
        if is_own_function(value):
            for name, part in named_globals(value):
                self._waiting += (name, part)

    def _method(self, value: types.MethodType) -> None:
        self._tell("method")
        self._waiting += (value.__self__, value.__func__)

    def _partial(self, value: functools.partial[Any]) -> None:
        self._tell("partial")
        self._waiting += (value.func, value.args, value.keywords, vars(value))

    def _property(self, value: property) -> None:
        self._tell("property")
        self._waiting += (value.fget, value.fset)

    def _reference(self, value: weakref.ref[Any]) -> None:
        self._tell("reference")
        self._waiting.append(value())

    def _object(self, value: Any) -> None:
        self._identity(value)
        self._waiting.append(type(value))
        for name, part in getattr(value, "__dict__", {}).items():
            self._waiting += (name, part)
        for name in slots_of(type(value)):
            if hasattr(value, name):
                self._waiting += (name, getattr(value, name))


def _bytes_of(value: torch.Tensor) -> Any:
    """Return the values of a tensor in index order; random bytes if they cannot be read, since they may have
    changed.
    """
    if type(value) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        return os.urandom(16)
    try:
        with torch.no_grad():
            plain = value.detach()
            plain = plain.dequantize() if plain.is_quantized else plain
            plain = plain.to_dense() if plain.layout is not torch.strided else plain
            plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
            return plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else b""
    except (RuntimeError, TypeError):
        return os.urandom(16)


_CALLED = frozenset({"__call__", "__getattr__", "__getitem__", "__torch_function__"})
"""Dunder names that a model's code may run nevertheless."""


def _way_to_read(kind: type) -> Callable[[_Reader, Any], None] | None:
    """Return how values of a type are read; None for those that their repr describes."""
    if issubclass(kind, (*PLAIN, torch.Size)):
        return None
    for known, way in _WAYS:
        if issubclass(kind, known):
            return way
    return _Reader._object if is_own_object(kind) else _Reader._identity_only


_WAYS: tuple[tuple[type, Callable[[_Reader, Any], None]], ...] = (
    (torch.Tensor, _Reader._tensor),
    (torch.jit.ScriptModule, _Reader._script),
    (nn.Module, _Reader._module),
    (type, _Reader._type),
    (types.FunctionType, _Reader._function),
    (types.MethodType, _Reader._method),
    (functools.partial, _Reader._partial),
    (property, _Reader._property),
    (weakref.ref, _Reader._reference),
    (np.ndarray, _Reader._array),
    (dict, _Reader._mapping),
    (list, _Reader._sequence),
    (tuple, _Reader._sequence),
    (collections.deque, _Reader._sequence),
    (set, _Reader._set),
    (frozenset, _Reader._set),
)
