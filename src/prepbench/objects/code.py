"""The code that a model runs: whether there is newer, and the newest definitions for modules that have older ones.

Comments, docstrings and moved lines do not count, and neither does the code of installed libraries.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from prepbench.errors import InputError
from prepbench.objects.digest import code_bytes
from prepbench.objects.parts import cell_contents, functions_in, is_own_class, is_own_function, named_globals

_NOT_CODE = frozenset({"__doc__", "__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"})

Definition = type | types.FunctionType


@dataclass(frozen=True)
class ModelCode:
    """The user's code of a model as it was at one time.

    Attributes:
        digests: of each class or function: of itself, and of the newest definition of that name.
    """

    digests: tuple[tuple[Definition, bytes, bytes], ...]

    @classmethod
    def of(cls, model: Any) -> ModelCode:
        """Return the code of a module, function or bound method as it is now."""
        return cls(tuple((one, *_digests(one)) for one in _definitions(model)))

    def changed(self) -> tuple[str, ...]:
        """Return the names of the classes and functions whose code has changed since, in the order of the model.

        A class that was defined again counts, as does one that was reloaded in place, or that calls a changed helper.
        """
        found = [one.__qualname__ for one, *before in self.digests if tuple(before) != _digests(one)]
        return tuple(dict.fromkeys(found))


def change_text(changed: tuple[str, ...]) -> str:
    """Return sentences that name the changed definitions, and what capturing again does to the model; "" for none."""
    if not changed:
        return ""
    names = changed[0] if len(changed) == 1 else f"{', '.join(changed[:-1])} and {changed[-1]}"
    return f"The code of {names if len(changed) <= 3 else f'{changed[0]} and {len(changed) - 1} others'} " + (
        "has changed since this capture. Capturing again gives your model the new code and keeps its weights."
    )


def with_newest_code(model: Any) -> Any:
    """Return the model with the newest definitions of its classes, which its modules take on; weights are kept.

    Args:
        model: a module, which is changed in place, or a function or bound method, of which the newest is returned.

    Raises:
        InputError: the newest definition of a class is of another kind, so that a module cannot take it on.
    """
    if inspect.ismethod(model):
        return getattr(with_newest_code(model.__self__), model.__name__)
    if isinstance(model, types.FunctionType):
        return _newest(model)
    if isinstance(model, nn.Module):
        for fqn, module in model.named_modules():
            _take_on(fqn, module, _newest(type(module)))
    return model


def _take_on(fqn: str, module: nn.Module, kind: Any) -> None:
    if kind is type(module):
        return
    try:
        module.__class__ = kind
    except TypeError as error:
        raise InputError(
            f"{fqn or 'The model itself'} cannot take on the newest {kind.__qualname__}: {error}. Make the model again "
            "from its class, load its weights, and capture that."
        ) from error


def _definitions(model: Any) -> Iterator[Definition]:
    """Yield the user's classes of a model's modules, or the user's function that is one, each once."""
    if inspect.ismethod(model):
        yield from _definitions(model.__self__)
    elif isinstance(model, nn.Module):
        yield from (kind for kind in dict.fromkeys(map(type, model.modules())) if is_own_class(kind))
    elif isinstance(model, types.FunctionType) and is_own_function(model):
        yield model


def _newest(definition: Any) -> Any:
    """Return what its module has under its name now; itself where that is nothing of its kind."""
    found: Any = sys.modules.get(definition.__module__)
    for name in definition.__qualname__.split("."):
        found = getattr(found, name, None)
    if isinstance(definition, type):
        is_same_kind = isinstance(found, type) and issubclass(found, nn.Module) == issubclass(definition, nn.Module)
    else:
        is_same_kind = isinstance(found, types.FunctionType)
    return found if is_same_kind and found.__module__ == definition.__module__ else definition


def _digests(definition: Definition) -> tuple[bytes, bytes]:
    newest = _newest(definition)
    own = _digest(definition)
    return own, own if newest is definition else _digest(newest)


def _digest(definition: Definition) -> bytes:
    """Return a digest of the code of a definition, and of all of the user's code that it calls by name."""
    digest = hashlib.sha256()
    seen: set[int] = set()
    waiting: list[Any] = [definition]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        told, inner = _of_class(one) if isinstance(one, type) else _of_function(one)
        digest.update(told)
        waiting += reversed(inner)
    return digest.digest()


def _of_class(kind: type) -> tuple[bytes, list[Any]]:
    """Return the constants of a class, and its functions and bases."""
    if not is_own_class(kind):
        return kind.__qualname__.encode(), []
    told, inner = [kind.__qualname__], list[Any](kind.__bases__)
    for name, member in sorted(vars(kind).items()):
        if name in _NOT_CODE:
            continue
        functions = list(functions_in(member))
        inner += functions
        told.append(f"{name} {len(functions)} {member if isinstance(member, bool | int | float | str) else ''}")
    return "\n".join(told).encode(errors="surrogatepass"), inner


def _of_function(function: types.FunctionType) -> tuple[bytes, list[Any]]:
    """Return the code of a function with its defaults, and the user's functions and classes that it names."""
    if not is_own_function(function):
        return function.__qualname__.encode(), []
    named = [value for _, value in named_globals(function)]
    found: list[Any] = []
    for value in (*named, *cell_contents(function).values()):
        if isinstance(value, type):
            found += [value] if is_own_class(value) else []
        else:
            found += functions_in(value)
    defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    plain = [value for value in defaults if isinstance(value, bool | int | float | str | tuple)]
    return _code(function.__code__) + repr(plain).encode(errors="surrogatepass"), found


@functools.lru_cache(maxsize=10_000)
def _code(code: types.CodeType) -> bytes:
    return code_bytes(_without_docstrings(code))


def _without_docstrings(code: types.CodeType) -> types.CodeType:
    """Return code whose first constants, which may be docstrings, are left out where no line reads them."""
    constants = tuple(_without_docstrings(one) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    read = {
        step.arg for step in dis.get_instructions(code) if step.opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES")
    }
    if constants and isinstance(constants[0], str) and 0 not in read:
        constants = (None, *constants[1:])
    return code.replace(co_consts=constants)
