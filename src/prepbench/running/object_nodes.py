"""Register objects that hold tensors as pytree nodes on first sight, so that export can look into them.

Hugging Face caches, dataclasses and the user's own result classes are flattened through their attributes. Nothing is
imported for this: a class is registered when an instance of it arrives, once per process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.parts import NO_DATA, SYMBOLS, attributes
from prepbench.running.nested_values import as_number, is_value, parts_of, tensor_numbers

_NO_NODES = (*NO_DATA, torch.Tensor, *SYMBOLS)
_NUMBERS = (int, float, bool, complex, str)
_DEEPEST = 12


@dataclasses.dataclass
class Layout:
    """The non-tensor part of an object: its class and its other attributes."""

    kind: type
    names: tuple[str, ...]
    fixed: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.kind, self.names))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout) or (self.kind, self.names) != (other.kind, other.names):
            return False
        counted = _COUNTED.get(self.kind, frozenset())
        one, two = ({k: v for k, v in layout.fixed.items() if k not in counted} for layout in (self, other))
        return one == two


_COUNTED: dict[type, frozenset[str]] = {}
"""Attributes that follow from sizes, by class: objects that differ in them are of one layout."""


def register_counted(kind: type, name: str) -> None:
    """Treat objects of a class that differ in this attribute as one layout from now on."""
    _COUNTED[kind] = _COUNTED.get(kind, frozenset()) | {name}


def register_nodes(value: Any) -> None:
    """Register the classes of all objects inside ``value`` that hold tensors and are unknown to pytrees."""
    for leaf in _leaves(value):
        if not isinstance(leaf, _NO_NODES):
            _register_object(leaf, ())


_REGISTERED: set[type] = set()
_CYCLIC: set[type] = set()
"""Classes whose objects refer back to themselves: pytrees would walk them without end."""


def _leaves(value: Any) -> list[Any]:
    # what is inside a known object may be of a class that no earlier object held
    return pytree.tree_leaves(value, is_leaf=lambda part: type(part) in _REGISTERED)


def _register_object(value: Any, around: tuple[int, ...]) -> bool:
    """Register an object's class if it holds tensors; return whether it does. ``around`` has the ids of the enclosing
    objects.
    """
    if is_value(value):
        return True
    kind = type(value)
    if isinstance(value, _NO_NODES) or callable(value) or len(around) > _DEEPEST or kind.__module__ == "builtins":
        return False
    if id(value) in around:
        _CYCLIC.add(kind)
        return False
    found = False
    for part in attributes(value).values():
        for leaf in _leaves(part):
            found |= _register_object(leaf, (*around, id(value)))
    if found and kind not in pytree.SUPPORTED_NODES and kind not in _CYCLIC:
        _REGISTERED.add(kind)
        pytree.register_pytree_node(
            kind,
            _flatten,
            _unflatten,
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
            to_dumpable_context=_to_text,
            from_dumpable_context=_from_text,
        )
    return found


def _flatten(value: Any) -> tuple[list[Any], Layout]:
    parts = parts_of(value)
    names = tuple(name for name, part in parts.items() if holds_values(part))
    fixed = {name: part for name, part in parts.items() if name not in names}
    return [parts[name] for name in names], Layout(type(value), names, fixed)


def _flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Layout]:
    parts, layout = _flatten(value)
    return [(pytree.GetAttrKey(name), part) for name, part in zip(layout.names, parts, strict=True)], layout


def _unflatten(parts: Iterable[Any], layout: Layout) -> Any:
    value: Any = object.__new__(layout.kind)
    for name, part in layout.fixed.items():
        # the object gets containers of its own, so that changing one result does not change the next
        copied = part.copy() if isinstance(part, list | dict | set) else part
        object.__setattr__(value, name, copied)
    numbers = tensor_numbers(layout.kind)
    for name, part in zip(layout.names, parts, strict=True):
        object.__setattr__(value, name, as_number(part) if name in numbers else part)
    return value


def holds_values(part: Any) -> bool:
    """Return whether a part of an object is flattened with it: it contains a tensor or another registered object."""
    # an object that holds nothing yet may be filled later, so it must be made anew as well
    return any(is_value(leaf) or type(leaf) in _REGISTERED for leaf in _leaves(part))


@dataclasses.dataclass
class Opened:
    """A registered object flattened further: its numbers are parts as well, because they may differ between calls."""

    parts: list[Any]
    layout: Layout


pytree.register_pytree_node(
    Opened,
    lambda value: (value.parts, value.layout),
    lambda parts, layout: Opened(list(parts), layout),
    flatten_with_keys_fn=lambda value: (
        [(pytree.GetAttrKey(name), part) for name, part in zip(value.layout.names, value.parts, strict=True)],
        value.layout,
    ),
)


def opened(value: Any) -> Any:
    """Return ``value`` with every registered object in it as :class:`Opened`; :func:`closed` is the inverse."""
    return pytree.tree_map(_open, value, is_leaf=lambda part: type(part) in _REGISTERED)


def _open(part: Any) -> Any:
    if type(part) not in _REGISTERED:
        return part
    parts = parts_of(part)
    # sorted, because an object that was made anew has its attributes in another order
    names = tuple(sorted(name for name, inner in parts.items() if _is_part(inner)))
    fixed = {name: inner for name, inner in parts.items() if name not in names}
    return Opened([opened(parts[name]) for name in names], Layout(type(part), names, fixed))


def _is_part(value: Any) -> bool:
    return type(value) in _NUMBERS or bool(marks_in(value)) or holds_values(value)


def marks_in(value: Any) -> dict[Any, bool]:
    """Return the dict itself if an object marks finished work by its keys, as caches do with layers; else an empty
    one.
    """
    return value if type(value) is dict and all(type(part) is bool for part in value.values()) else {}


def is_mark(path: str, value: Any) -> bool:
    """Return whether a part that :func:`fixed_numbers` found is one of :func:`marks_in`."""
    return type(value) is bool and path.endswith("]")


def fixed_numbers(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts that objects among the arguments of a call hold, by path, such as ``"cache.seen"``.

    They are in no leaf, and what Python computes from them is part of a graph.

    Args:
        names: of the arguments by position, as far as they have any.
        args: those by position.
        kwargs: those by keyword.
    """
    further = [f"args[{index}]" for index in range(len(names), len(args))]
    return {
        name + pytree.keystr(path): leaf
        for name, value in [*zip([*names, *further], args, strict=False), *kwargs.items()]
        for path, leaf in pytree.tree_flatten_with_path(opened(value))[0]
        if type(leaf) in _NUMBERS and leaf == leaf and any(isinstance(step, pytree.GetAttrKey) for step in path)
    }


def closed(value: Any) -> Any:
    """Return the value that :func:`opened` took apart, with new objects."""
    return pytree.tree_map(
        lambda part: _unflatten(map(closed, part.parts), part.layout) if isinstance(part, Opened) else part,
        value,
        is_leaf=lambda part: isinstance(part, Opened),
    )


def refill(old: Any, new: Any) -> None:
    """Give the lists, dicts and registered objects inside ``old`` the contents of those in ``new``."""
    if isinstance(old, tuple):
        for one, two in zip(old, new, strict=True):
            refill(one, two)
    elif isinstance(old, list):
        old[:] = [_refilled(one, two) for one, two in zip(old, new, strict=False)] + list(new[len(old) :])
    elif isinstance(old, dict):
        contents = {key: _refilled(old.get(key), part) for key, part in new.items()}
        old.clear()
        old.update(contents)
    elif type(old) in _REGISTERED:
        before = attributes(old)
        for name, part in attributes(new).items():
            object.__setattr__(old, name, _refilled(before.get(name), part))


def _refilled(old: Any, new: Any) -> Any:
    if type(old) is not type(new) or not isinstance(old, (list, dict, tuple, *_REGISTERED)):
        return new
    if isinstance(old, tuple) and len(old) != len(new):
        return new
    refill(old, new)
    return old


def holds_objects(value: Any) -> bool:
    """Return whether ``value`` contains an object of a class that was registered here."""
    return any(type(leaf) in _REGISTERED for leaf in _leaves(value))


def classes_in(value: Any) -> set[type]:
    """Return the classes of the objects in a value that were registered here."""
    found: set[type] = set()
    for leaf in _leaves(value):
        if type(leaf) in _REGISTERED:
            found |= {type(leaf), *classes_in(list(attributes(leaf).values()))}
    return found


def is_registered(kind: type) -> bool:
    """Return whether objects of a class are pytree nodes through this file."""
    return kind in _REGISTERED


def count_registered() -> int:
    """Return how many classes have been registered so far."""
    return len(_REGISTERED)


def _to_text(layout: Layout) -> Any:
    return {"names": list(layout.names), "type": f"{layout.kind.__module__}.{layout.kind.__qualname__}"}


def _from_text(text: Any) -> Any:
    raise NotImplementedError(
        f"{text['type']} can be read back only by the process that captured it: return tensors, tuples or dicts from "
        "the model to load the program elsewhere."
    )
