"""Digests of functions for files: of their code, and of the values and the user's code that they read.

A score that stands in a journal holds for a metric that would compute it again. What a function reads outside of its
arguments therefore counts: globals, helpers, closures, defaults, and attributes of objects. Installed libraries count
by the names that are used of them.
"""

from __future__ import annotations

import copyreg
import hashlib
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx

from prepbench.objects.digest import code_bytes, tensor_digest
from prepbench.objects.parts import (
    PLAIN,
    WRAPPERS,
    Part,
    attributes,
    cell_contents,
    is_own_class,
    is_own_function,
    is_own_object,
    items,
    named_globals,
    parts,
)

_DIGITS = 16
_BY_NAME = (types.ModuleType, types.BuiltinFunctionType)
_NAMED = (types.ModuleType, type, type(None))
_Path = tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """What a function is, and what it read at one time.

    Attributes:
        code: a digest of its name and code, and of the numbers and texts that it captured.
        values: what is said of each thing that it reads, by the way to it.
        unread: things whose contents cannot be known, as text.
        alive: the objects, because an object's identity means nothing once it is gone.
    """

    code: str
    values: Mapping[_Path, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    alive: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    def digest(self, later: Reading | None = None) -> str:
        """Return a text that is equal in every process where the function reads the same.

        Where something cannot be read, it equals no other.

        Args:
            later: a reading after calls of the function. What these changed, such as a log or a counter, is no input
                of the function and does not count.
        """
        if self.unread:
            return uuid.uuid4().hex[:_DIGITS]
        changed = (
            set() if later is None else {way for way, told in self.values.items() if later.values.get(way) != told}
        )
        counted = {
            way: told
            for way, told in self.values.items()
            if not any(way[:length] in changed for length in range(1, len(way) + 1))
        }
        if not counted:
            return self.code
        return _hex([self.code.encode(), repr(sorted(counted.items())).encode(errors="surrogatepass")])

    def note(self, name: str) -> str:
        """Return why no earlier result of a function of this name is known again; "" where it is."""
        if not self.unread:
            return ""
        return (
            f"{name} reads {', '.join(self.unread[:3])}, whose contents cannot be known, so earlier results are not "
            "reused, and these will not be. Give it what it needs of them as numbers, texts or tensors."
        )


def read_function(function: Callable[..., Any] | None) -> Reading:
    """Return what a function, or an object that is called, reads outside of its arguments; None reads nothing."""
    if function is None:
        return Reading("")
    reader = _Reader()
    reader.read(_read_by(function))
    return Reading(_code_digest(function), reader.values, tuple(dict.fromkeys(reader.unread)), tuple(reader.alive))


def _code_digest(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    code = getattr(inner, "__code__", None)
    named = {**(getattr(inner, "__kwdefaults__", None) or {}), **(getattr(function, "keywords", None) or {})}
    values = [*cell_contents(inner).values(), *(getattr(inner, "__defaults__", None) or ()), *sorted(named.items())]
    told = repr([value for value in values if _is_plain(value)]).encode(errors="surrogatepass")
    given = getattr(function, "args", ())
    args = repr(given) if _is_plain(given) else ""
    return _hex([name.encode(), b"" if code is None else code_bytes(code), args.encode(errors="surrogatepass"), told])


def _hex(texts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(texts)).hexdigest()[:_DIGITS]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | bytes)


def _read_by(function: Any) -> dict[str, Any]:
    """Return what a function reads, by names, but for what its code says already."""
    if isinstance(function, partial):
        # the code says positional arguments only where all are plain
        args = {} if _is_plain(function.args) else {f"argument {n}": one for n, one in enumerate(function.args)}
        given = {f"argument {name}": one for name, one in function.keywords.items()}
        return {**_read_by(function.func), **args, **_but_plain(given)}
    if isinstance(function, types.MethodType):
        return {**_read_by(function.__func__), "self": function.__self__}
    if not isinstance(function, types.FunctionType):
        return {} if isinstance(function, _BY_NAME) else _but_plain({"itself": function})
    held = {f"cell {number}": content for number, content in cell_contents(function).items()}
    defaults = {f"default {number}": one for number, one in enumerate(function.__defaults__ or ())}
    by_name = {f"default {name}": one for name, one in (function.__kwdefaults__ or {}).items()}
    found = _but_plain({**held, **defaults, **by_name, **vars(function)})
    return found | {name: part for name, part in _globals(function) if not isinstance(part, _BY_NAME)}


def _but_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if not _is_plain(one)}


def _globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    # code of `python -c` has no file, as generated methods, which name next to nothing
    is_own = is_own_function(function) or function.__code__.co_filename == "<string>"
    return named_globals(function) if is_own else []


class _Reader:
    """Walks what a function reads, and says of each thing what it is."""

    def __init__(self) -> None:
        self.values: dict[_Path, str] = {}
        self.unread: list[str] = []
        self.alive: list[Any] = []
        self._met: dict[int, _Path] = {}

    def read(self, roots: Mapping[str, Any]) -> None:
        waiting: list[tuple[_Path, Any]] = [((name,), part) for name, part in roots.items()]
        while waiting:  # no recursion: objects nest deeper than Python's stack
            way, value = waiting.pop()
            if not isinstance(value, (*PLAIN, torch.Size)):
                if id(value) in self._met:
                    self.values[way] = f"as {self._met[id(value)]}"
                    continue
                self._met[id(value)] = way
                self.alive.append(value)
            told, inside = self._told(way, value)
            self.values[way] = told
            waiting += [((*way, _step_text(number, step)), part) for number, (step, part) in enumerate(inside)]

    def _told(self, way: _Path, value: Any) -> tuple[str, list[Part]]:
        """Return what is said of a value, and its parts."""
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, (*PLAIN, torch.Size)):
            return f"{name} {value!r}", []
        if isinstance(value, torch.Tensor):
            return self._of_tensor(way, value), []
        if isinstance(value, np.ndarray):
            bits = b"" if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
            return f"{name} {value.dtype} {value.shape} {_hex([bits])}", items(value)
        if isinstance(value, _BY_NAME):
            told = f"{name} {getattr(value, '__module__', '')} {getattr(value, '__qualname__', value.__name__)}"
            owner = getattr(value, "__self__", None)  # the module or class of a function, or the object of a method
            return told, [] if isinstance(owner, _NAMED) else [(("attr", "__self__"), owner)]
        if isinstance(value, fx.Graph):
            return f"{name} {value}", []
        if isinstance(value, types.FunctionType):
            return _of_function(value)
        if isinstance(value, type):
            return f"class {value.__module__}.{value.__qualname__}", _of_class(value)
        if isinstance(value, (*WRAPPERS, weakref.ref)):
            return name, parts(value)
        if isinstance(value, set | frozenset):
            if not all(isinstance(one, PLAIN) for one in value):
                return self._unknown(way, value), []
            return f"{name} {sorted(map(repr, value))}", []
        if isinstance(value, torch.jit.ScriptModule):
            tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            return f"{name} {value.training} {getattr(value, 'code', '')}", [(("item", "tensors"), tensors)]
        inside = parts(value) if is_own_object(kind) or items(value) or isinstance(value, torch.nn.Module) else []
        told = f"{name} {[_step_text(number, step) for number, (step, _) in enumerate(inside)]}"
        inside += [(("attr", "__class__"), kind), *([] if not hasattr(value, "__wrapped__") else _wrapped(value))]
        if kind in _CONTAINERS or isinstance(value, torch.nn.Module):
            return told, inside
        return told, inside + self._state(way, value)

    def _of_tensor(self, way: _Path, value: torch.Tensor) -> str:
        digest = tensor_digest(value)
        if not digest and not value.is_meta:
            return self._unknown(way, value)
        return f"tensor {value.dtype} {tuple(value.shape)} {digest}"

    def _state(self, way: _Path, value: Any) -> list[Part]:
        """Return what an object says of itself where its attributes may not be all of it."""
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            said = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # it keeps something outside of Python, such as a file or a lock
            self._unknown(way, value)
            return []
        if is_own_object(kind) and all(getattr(kind, name) is getattr(object, name) for name in _OF_OBJECT):
            return []  # these are its attributes
        if not isinstance(said, tuple):
            return [(("item", "state"), str(said))]
        listed = [list(one) if number > 2 and one is not None else one for number, one in enumerate(said[:5])]
        return [(("item", f"state {number}"), one) for number, one in enumerate(listed)]

    def _unknown(self, way: _Path, value: Any) -> str:
        self.unread.append(f"{'.'.join(way)} ({type(value).__name__})")
        return "unknown"


_CONTAINERS = (dict, list, tuple)
_OF_OBJECT = ("__reduce_ex__", "__reduce__", "__getstate__")


def _step_text(number: int, step: tuple[str, Any]) -> str:
    kind, key = step
    # the text of another key may hold its address
    return str(key) if kind == "attr" else f"{kind} {key!r}" if isinstance(key, PLAIN) else f"{kind} {number}"


def _of_function(function: types.FunctionType) -> tuple[str, list[Part]]:
    told = f"{function.__module__}.{function.__qualname__} {_hex([code_bytes(function.__code__)])}"
    named: list[Part] = [(("global", name), part) for name, part in _globals(function)]
    # functions that a library makes hold what they were made of; its others hold nothing of the user's
    is_made = bool(named) or is_own_function(function) or "<locals>" in function.__qualname__
    return told, [*named, *(parts(function) if is_made or vars(function) else [])]


def _of_class(kind: type) -> list[Part]:
    if not is_own_class(kind):
        return []
    own = [(name, part) for name, part in vars(kind).items() if name[:2] != "__" or isinstance(part, _RUN)]
    held: list[Part] = [
        (("attr", name), part) for name, part in own if not isinstance(part, _MADE) and name != "_abc_impl"
    ]
    return [*held, (("attr", "__bases__"), kind.__bases__)]


_RUN = (types.FunctionType, staticmethod, classmethod)
_MADE = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


def _wrapped(value: Any) -> list[Part]:
    held = attributes(value).get("__wrapped__")
    return [] if held is None else [(("attr", "__wrapped__"), held)]
