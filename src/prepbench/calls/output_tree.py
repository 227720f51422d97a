"""The pytree structure of inputs and outputs as JSON: enough to check a call and rebuild a result elsewhere."""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.caches.transformers import tensor_numbers
from prepbench.objects.flatten import Layout

Tree = dict[str, Any]

# what JSON can hold of an object
_PLAIN = (type(None), bool, int, float, str)


def tree_of(spec: pytree.TreeSpec, *, with_fixed: bool = False) -> Tree:
    """Return a pytree spec as JSON; ``with_fixed``, also the attributes that hold no tensors."""
    if spec.is_leaf():
        return {"kind": "leaf"}
    children = [tree_of(child, with_fixed=with_fixed) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return {"kind": kind.__name__, "items": children}
    if kind is torch.Size:
        return {"kind": "sizes", "items": children}
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        keys = context if kind is not collections.defaultdict else context[1]
        return {"kind": "dict", "keys": list(keys), "items": children}
    if kind is collections.namedtuple:
        tree = {"kind": "namedtuple", "type": context.__name__, "keys": list(context._fields), "items": children}
        return {**tree, "class": _name(context)}
    keys, fixed = _attributes(context, len(children))
    tree = {"kind": "object", "type": _name(kind), "keys": keys, "items": children}
    return {**tree, "fixed": fixed} if with_fixed and fixed else tree


def number_leaves(spec: pytree.TreeSpec) -> tuple[int, ...]:
    """Return the positions of leaves that are tensors in graphs only, and numbers in their objects."""
    found: list[int] = []
    count = 0
    names = spec.context.names if isinstance(spec.context, Layout) else [""] * spec.num_children
    for child, name in zip(spec.children(), names, strict=True):
        inner = (0,) if name and name in tensor_numbers(spec.context.kind) else number_leaves(child)
        found += [count + place for place in inner]
        count += child.num_leaves
    return tuple(found)


def nesting(tree: Tree) -> Tree:
    """Return the tree as calls are compared: without the parts that ``with_fixed`` added, and sizes as the tuples that
    torch makes of them.
    """
    rest = {key: value for key, value in tree.items() if key != "fixed"}
    rest |= {"kind": "tuple"} if rest["kind"] == "sizes" else {}
    return {**rest, "items": [nesting(item) for item in tree["items"]]} if "items" in tree else rest


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _attributes(context: Any, count: int) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an object's parts from its registration, else numbers; and its other plain attributes."""
    fixed: dict[str, Any] = getattr(context, "fixed", {})
    names = getattr(context, "names", context)
    if isinstance(names, list) and len(names) == 2 and all(isinstance(part, list) for part in names):
        names, fixed = names[0], dict.fromkeys(names[1])  # of torch.export.register_dataclass: those that are None
    if not (isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names)):
        names = map(str, range(count))
    return list(names), {name: value for name, value in fixed.items() if type(value) in _PLAIN}


Build = Callable[[Iterator[Any]], Any]


def rebuild(tree: Tree, leaves: Iterator[Any]) -> Any:
    """Rebuild the structure of ``tree`` from leaves.

    Dataclasses and named tuples are those of this process, see :mod:`prepbench.calls.output_tree`. Other objects
    become dicts of their parts.
    """
    return rebuilder(tree)(leaves)


def rebuilder(tree: Tree) -> Build:
    """Return :func:`rebuild` for one tree, which is analysed once, because a cache has many parts."""
    kind = tree["kind"]
    if kind == "leaf":
        return next
    items = [rebuilder(item) for item in tree["items"]]
    if kind == "tuple":
        return lambda leaves: tuple([item(leaves) for item in items])
    if kind == "list":
        return lambda leaves: [item(leaves) for item in items]
    if kind == "sizes":
        return lambda leaves: pytree.sizes([item(leaves) for item in items])
    if kind == "namedtuple":
        return _named_tuple(tree, items)
    fixed = tree.get("fixed", {})
    pairs = list(zip(tree["keys"], items, strict=True))
    make = object_maker(tree["type"]) if kind == "object" else None

    def build(leaves: Iterator[Any]) -> Any:
        parts = {key: item(leaves) for key, item in pairs}
        parts.update(fixed)
        made = make(parts) if make is not None else None
        return parts if made is None else made

    return build


def _named_tuple(tree: Tree, items: Sequence[Build]) -> Build:
    def build(leaves: Iterator[Any]) -> Any:
        parts = [item(leaves) for item in items]
        made = made_tuple(tree.get("class", ""), tree["keys"], parts)
        return collections.namedtuple(tree["type"], tree["keys"])(*parts) if made is None else made

    return build


def leaf_names(tree: Tree, name: str = "output") -> list[str]:
    """Return a name for each leaf from the keys and positions that lead to it, e.g. ``"logits"`` or ``"output_1"``."""
    if tree["kind"] == "leaf":
        return [name]
    keys: Sequence[Any] = tree.get("keys") or range(len(tree["items"]))
    names = []
    for key, item in zip(keys, tree["items"], strict=True):
        whole = str(key) if name == "output" and isinstance(key, str) and not key.isdigit() else f"{name}_{key}"
        names += leaf_names(item, whole)
    return names


def identifiers(names: Sequence[str]) -> tuple[str, ...]:
    """Return valid identifiers for names, numbered on repetition.

    Example:
        >>> identifiers(["x[0]", "x.0", "1"])
        ('x_0', 'x_0_2', '_1')
    """
    seen: dict[str, int] = {}
    result = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "value"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        seen[plain] = seen.get(plain, 0) + 1
        result.append(plain if seen[plain] == 1 else f"{plain}_{seen[plain]}")
    return tuple(result)


# The classes of a loaded model's results: looked up in this process, and filled without running their code.


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
    """Return the fields of a dataclass that can be filled, and whether it is a table of them; None for others."""
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
    """Return the class of this module and name, if the module is imported; imports only those of ``transformers``."""
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
