"""The classes of a loaded model's results: looked up in this process, and filled without running their code."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# The only package whose result classes may be imported for a loaded model's outputs; no other name in a file is
# imported.
_TRUSTED = "transformers"


def made_object(name: str, parts: Mapping[str, Any]) -> Any:
    """Return an object of the dataclass ``name`` with these fields; None if no such class can be filled.

    The class must be there: in ``transformers``, or in a module that this process has imported. ``__init__``,
    ``__post_init__`` and setters of properties do not run, because anybody may have chosen the name and the parts.
    Classes that do something when an object is deleted are left alone for the same reason.
    """
    return _made(class_named(name), parts)


def object_maker(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return :func:`made_object` for one name, whose class is looked up once if its package is stable."""
    known: list[type] = []

    def make(parts: Mapping[str, Any]) -> Any:
        kind = known[0] if known else class_named(name)
        if kind is not None and not known and name.startswith(f"{_TRUSTED}."):
            known.append(kind)
        return _made(kind, parts)

    return make


def _made(kind: type | None, parts: Mapping[str, Any]) -> Any:
    if kind is None or (form := _form(kind)) is None:
        return None
    fields, is_table = form
    values = {**(dict.fromkeys(fields) if is_table else {}), **parts}
    if fields.keys() != values.keys() or not all(_is_plain_field(kind, field) for field in fields):
        return None
    new: Any = collections.OrderedDict.__new__ if is_table else object.__new__
    made = new(kind)
    for field in fields:
        object.__setattr__(made, field, values[field])
        if is_table and values[field] is not None:
            collections.OrderedDict.__setitem__(made, field, values[field])
    return made


def _form(kind: type) -> tuple[dict[str, None], bool] | None:
    """Return the fields of a dataclass that can be filled, and whether it is a table of them; None for another
    class.
    """
    if kind not in _FORMS:
        known = None
        if dataclasses.is_dataclass(kind) and not hasattr(kind, "__del__"):
            is_table = _is_table(kind)
            if is_table or kind.__new__ is object.__new__:
                known = dict.fromkeys(field.name for field in dataclasses.fields(kind)), is_table
        _FORMS[kind] = known
    return _FORMS[kind]


_FORMS: weakref.WeakKeyDictionary[type, tuple[dict[str, None], bool] | None] = weakref.WeakKeyDictionary()
"""Cached facts on classes: the lookup takes longer than the rest of a result."""


def filled(kind: type, parts: Mapping[str, Any]) -> Any:
    """Return an object of a class with these attributes, without running its code.

    Raises:
        ValueError: setting its attributes, making it or letting it go would run code.
    """
    own_new: Any = kind.__new__
    plain = own_new is object.__new__ and not hasattr(kind, "__del__") and not issubclass(kind, _NO_OBJECTS)
    if not plain or not all(_is_plain_field(kind, field) for field in parts):
        raise ValueError(f"a {kind.__module__}.{kind.__qualname__}, which cannot be made without running its code")
    made: Any = object.__new__(kind)
    for field, value in parts.items():
        object.__setattr__(made, field, value)
    return made


_NO_OBJECTS = (type, types.ModuleType, types.FunctionType)


def made_tuple(name: str, fields: Sequence[str], items: Sequence[Any]) -> Any:
    """Return a named tuple of the class ``name``; None if this process has no such class with these fields."""
    kind = class_named(name)
    fits = kind is not None and issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(fields)
    return tuple.__new__(kind, items) if kind is not None and fits and not hasattr(kind, "__del__") else None


def class_named(name: str) -> type | None:
    """Return the class of this module and name, if the module is imported; only those of ``transformers`` are
    imported.
    """
    steps = name.split(".")
    for split in range(len(steps) - 1, 0, -1):
        path = ".".join(steps[:split])
        found: Any = sys.modules.get(path)
        if found is None and steps[0] == _TRUSTED:
            found = _imported(path)
        if found is None:
            continue
        for step in steps[split:]:
            found = vars(found).get(step) if isinstance(found, types.ModuleType | type) else None
        return found if isinstance(found, type) else None
    return None


def _imported(path: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(path)
    except ImportError:
        return None


def _is_table(kind: type) -> bool:
    """Return whether it is one of the result classes of ``transformers``: a dict of the fields that are not None."""
    bases = [f"{base.__module__}.{base.__name__}" for base in kind.__mro__]
    return any(base.startswith(f"{_TRUSTED}.") and base.endswith(".ModelOutput") for base in bases) and issubclass(
        kind, collections.OrderedDict
    )


_PLAIN_FIELDS: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()
"""Fields by class that are known to be plain."""


def _is_plain_field(kind: type, field: str) -> bool:
    """Return whether setting it runs no code: it is no property or other descriptor with a setter."""
    plain = _PLAIN_FIELDS.setdefault(kind, set())
    if field in plain:
        return True
    found = inspect.getattr_static(kind, field, None)
    if isinstance(found, types.MemberDescriptorType) or not hasattr(type(found), "__set__"):
        plain.add(field)
        return True
    return False
