"""Flatten nested values: find, replace and restore the tensors inside of anything that a forward takes or returns.

Pytrees cover tuples, dicts and registered classes. Models also pass caches, dataclasses and their own objects around;
those are walked through their attributes, and copied only along the way to a tensor: everything else stays shared.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.caches.transformers import tensor_numbers
from prepbench.objects.parts import (
    LEAVES,
    NO_DATA,
    PLAIN,
    SYMBOLS,
    Steps,
    attributes,
    data_parts,
    items,
    set_part,
    slots_of,
    walk,
)


@dataclass(frozen=True)
class Slot:
    """The place of the ``index``-th traced value in a structure."""

    index: int


_VALUES = (torch.Tensor, *SYMBOLS, Slot)


def is_value(value: Any) -> bool:
    """Return whether tracing follows this value itself: a tensor, or a symbolic number."""
    return isinstance(value, _VALUES)


def is_nothing(value: Any) -> bool:
    """Return whether a value stands for a missing tensor: None, or a tensor of one dim without entries."""
    return value is None or (isinstance(value, torch.Tensor) and value.dim() == 1 and not len(value))


def map_values(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``function`` applied to its tensors and symbolic numbers; unchanged parts are shared."""
    return _Mapper(function).visit(value)


def collect(value: Any) -> list[Any]:
    """Return the tensors and symbolic numbers inside ``value``, in the order of :func:`map_values`."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_values(value, keep)
    return found


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors inside ``value``."""
    return [leaf for leaf in collect(value) if isinstance(leaf, torch.Tensor)]


class _Mapper:
    """Copies a value with ``function`` applied to some of its parts; unchanged parts stay shared."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self._done: dict[int, tuple[Any, Any]] = {}  # also keeps originals alive, whose ids it holds

    def visit(self, value: Any) -> Any:
        if isinstance(value, _VALUES):
            return self.function(value)
        # one level, so that each part that is a tuple of a class of its own is looked at by itself
        leaves, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
        if len(leaves) == 1 and leaves[0] is value:
            return self._object(value)
        changed = list(map(self.visit, leaves))
        if all(map(operator.is_, changed, leaves)):
            return value
        if hasattr(value, "_fields") and all(old is part for old, part in zip(leaves, value, strict=False)):
            # classes such as PackedSequence look at what they are made of, which need not be tensors here
            return tuple.__new__(type(value), changed)
        return pytree.tree_unflatten(changed, spec)

    def _object(self, value: Any) -> Any:
        if isinstance(value, torch.Size):  # a plain value, but its sizes may be symbolic
            sizes = tuple(map(self.visit, value))
            return value if all(map(operator.is_, sizes, value)) else sizes
        if isinstance(value, NO_DATA):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = value, value  # a cycle meets the original
            self._done[id(value)] = value, self._copied(value)
        return self._done[id(value)][1]

    def _copied(self, value: Any) -> Any:
        held = items(value) if isinstance(value, dict | list) else []
        held += [(("attr", name), part) for name, part in attributes(value).items()]
        changed = [(step, new) for step, part in held if (new := self.visit(part)) is not part]
        if not changed:
            return value
        clone = copy.copy(value)
        for step, new in changed:
            set_part(clone, step, new)
        return clone


_DEEPEST_PATH = 9


def paths(value: Any) -> list[tuple[Steps, Any]]:
    """Return each tensor and symbolic number in ``value`` with the steps that lead to it at run time: ``("tensor", n)``
    where no path can be written.
    """
    found = walk(value, lambda part: [] if is_value(part) else data_parts(part), once=False, deepest=_DEEPEST_PATH)
    readable = {id(leaf): steps for steps, leaf in found if is_value(leaf)}
    return [(readable.get(id(leaf), (("tensor", index),)), leaf) for index, leaf in enumerate(collect(value))]


def tensor_at(value: Any, index: int) -> Any:
    """Return the ``index``-th tensor or symbolic number of ``value``; generated code calls it where no path exists."""
    return collect(value)[index]


class Rebuild:
    """Builds a value like ``template`` with other tensors; generated code calls it to return caches and objects.

    Example:
        >>> make, values = Rebuild.of({"logits": torch.ones(2)})
        >>> make(*values)
        {'logits': tensor([1., 1.])}
    """

    def __init__(self, template: Any, name: str) -> None:
        self.template = template
        # FX writes a call by the name of its target
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    @classmethod
    def of(cls, value: Any) -> tuple[Rebuild, list[Any]]:
        """Return the recipe for ``value``, and the tensors to call it with."""
        values: list[Any] = []

        def slot(leaf: Any) -> Slot:
            values.append(leaf)
            return Slot(len(values) - 1)

        return cls(map_values(value, slot), f"make_{type(value).__name__}"), values

    def __call__(self, *values: Any) -> Any:
        return map_values(self.template, lambda slot: values[slot.index] if isinstance(slot, Slot) else slot)

    def __repr__(self) -> str:
        return f"Rebuild({self.__name__})"


class Applied:
    """A call of a custom ``torch.autograd.Function``; the target of its node in a graph."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.__name__ = self.__qualname__ = kind.__name__
        self.__module__ = kind.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.apply(*args, **kwargs)


# Numbers in objects that graphs take and return as tensors (see :func:`tensor_numbers`).


def as_tensor(number: Any) -> Any:
    """Return an integer as a tensor without dims; other values unchanged."""
    return torch.tensor(number) if type(number) is int else number


def as_number(value: Any) -> Any:
    """Return the integer in a tensor that holds data; other values, such as traced tensors, unchanged."""
    is_plain = type(value) is torch.Tensor and not value.is_meta and value.numel() == 1
    return int(value) if is_plain else value


def parts_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, with such numbers as tensors."""
    parts, numbers = attributes(value), tensor_numbers(type(value))
    return {name: as_tensor(part) if name in numbers else part for name, part in parts.items()} if numbers else parts


# Register objects that hold tensors as pytree nodes on first sight, so that export can look into them.
#
# Hugging Face caches, dataclasses and the user's own result classes are flattened through their attributes. Nothing is
# imported for this: a class is registered when an instance of it arrives, once per process.


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
        if not isinstance(leaf, LEAVES):
            _register_object(leaf, ())


_REGISTERED: set[type] = set()
_CYCLIC: set[type] = set()
"""Classes whose objects refer back to themselves: pytrees would walk them without end."""


def _leaves(value: Any) -> list[Any]:
    # what is inside a known object may be of a class that no earlier object held
    return pytree.tree_leaves(value, is_leaf=lambda part: type(part) in _REGISTERED)


def _register_object(value: Any, around: tuple[int, ...]) -> bool:
    """Register an object's class if it holds tensors; return whether it does. ``around``: ids of enclosing objects."""
    if is_value(value):
        return True
    kind = type(value)
    if isinstance(value, LEAVES) or callable(value) or len(around) > _DEEPEST or kind.__module__ == "builtins":
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
            flatten_with_keys_fn=lambda value: _with_keys(*_flatten(value)),
            serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
            to_dumpable_context=_to_text,
            from_dumpable_context=_from_text,
        )
    return found


def _flatten(value: Any) -> tuple[list[Any], Layout]:
    parts = parts_of(value)
    return _split(value, parts, tuple(name for name, part in parts.items() if holds_values(part)))


def _split(value: Any, parts: Mapping[str, Any], names: tuple[str, ...]) -> tuple[list[Any], Layout]:
    fixed = {name: part for name, part in parts.items() if name not in names}
    return [parts[name] for name in names], Layout(type(value), names, fixed)


def _with_keys(parts: Iterable[Any], layout: Layout) -> tuple[list[tuple[Any, Any]], Layout]:
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
    flatten_with_keys_fn=lambda value: _with_keys(value.parts, value.layout),
)


def opened(value: Any) -> Any:
    """Return ``value`` with every registered object in it as :class:`Opened`; :func:`closed` is the inverse."""
    return pytree.tree_map(_open, value, is_leaf=lambda part: type(part) in _REGISTERED)


def _open(part: Any) -> Any:
    if type(part) not in _REGISTERED:
        return part
    parts = parts_of(part)
    # sorted, because an object that was made anew has its attributes in another order
    held, layout = _split(part, parts, tuple(sorted(name for name, inner in parts.items() if _is_part(inner))))
    return Opened(list(map(opened, held)), layout)


def _is_part(value: Any) -> bool:
    return type(value) in _NUMBERS or bool(marks_in(value)) or holds_values(value)


def marks_in(value: Any) -> dict[Any, bool]:
    """Return the dict if an object marks finished work by its keys, as caches do with layers; else an empty one."""
    return value if type(value) is dict and all(type(part) is bool for part in value.values()) else {}


def is_mark(path: str, value: Any) -> bool:
    """Return whether a part that :func:`fixed_numbers` found is one of :func:`marks_in`."""
    return type(value) is bool and path.endswith("]")


def fixed_numbers(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts that objects among the arguments of a call hold, by path, such as ``"cache.seen"``.

    They are in no leaf, and what Python computes from them is part of a graph.
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


# Forms of calls: the nesting of arguments, and the non-tensor contents of objects among them.
#
# A call that has the form of an earlier one need not be looked through again. One pass makes the form and the leaves,
# because a cache of many layers is looked at for each token that a small model makes.

_MOST_FORMS = 16
_FIXED = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, type})
"""The most frequent kinds of plain values."""


class CallForms:
    """The forms of calls that were accepted.

    Args:
        counted: numbers, by the steps from the arguments by name, that may differ between calls of one form.
    """

    def __init__(self, counted: Collection[Steps] = ()) -> None:
        self._known: list[Any] = []
        self._counted: dict[Any, Any] = {}
        for steps in counted:
            inside = self._counted
            for step in steps:
                inside = inside.setdefault(step, {})

    def add(self, arguments: Iterable[tuple[str, Any]]) -> bool:
        """Remember the form of a call, given by its arguments with their names; return whether it has one.

        It has none if an object in it holds other things than tensors, plain values, and dicts and lists of these.
        """
        found = self._read(arguments) if len(self._known) < _MOST_FORMS else None
        self._known += [] if found is None else [found[0]]
        return found is not None

    def leaves(self, arguments: Iterable[tuple[str, Any]]) -> list[Any] | None:
        """Return the leaves of a call of a known form, in pytree order; None for a call of another form."""
        found = self._read(arguments) if self._known else None
        return found[1] if found is not None and found[0] in self._known else None

    def _read(self, arguments: Iterable[tuple[str, Any]]) -> tuple[Any, list[Any]] | None:
        form = _Form()
        counted = self._counted.get
        try:
            return [(name, form.of(value, counted(("item", name)))) for name, value in arguments], form.leaves
        except _NoForm:
            return None


class _NoForm(Exception):
    """Raised for a call whose form cannot be compared."""


class _Form:
    """Makes the form of values: nested lists that are equal for values nested alike; collects their leaves."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self._held = 0  # tensors and objects so far

    def of(self, value: Any, counted: Mapping[Any, Any] | None) -> Any:
        kind = type(value)
        if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return kind, [self.of(part, counted and counted.get(("item", n))) for n, part in enumerate(value)]
        if kind is dict:
            parts = [self.of(part, counted and counted.get(("item", key))) for key, part in value.items()]
            return kind, list(value), parts
        if kind in _REGISTERED:
            return self._object(value, counted)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind in pytree.SUPPORTED_NODES:
            raise _NoForm
        self.leaves.append(value)
        return kind

    def _tensor(self, value: torch.Tensor) -> Any:
        if value.dim() == 1 and is_nothing(value):
            raise _NoForm
        self.leaves.append(value)
        self._held += 1
        return torch.Tensor

    def _object(self, value: Any, counted: Mapping[Any, Any] | None) -> list[Any]:
        kind = type(value)
        if _slots(kind):
            raise _NoForm
        held, numbers = vars(value), tensor_numbers(kind)
        form: list[Any] = [kind, *held]
        self._held += 1
        for name, part in held.items():
            inside, kind = counted and counted.get(("attr", name)), type(part)
            if kind is torch.Tensor:
                form.append(self._tensor(part))
            elif inside is not None and not inside:
                form.append(kind)
            elif name in numbers:
                form.append(kind)
                self.leaves.append(as_tensor(part))
            elif kind in _FIXED:
                form += kind, part
            else:
                before, count = self._held, len(self.leaves)
                inner = self.of(part, inside)
                if self._held == before:  # no leaves, but a value of the object
                    del self.leaves[count:]
                    inner = _frozen(part)
                form.append(inner)
        return form


_slots: Callable[[Any], list[str]] = functools.cache(slots_of)


def _frozen(value: Any) -> Any:
    """Return a plain value, or a dict or list of those, with its type.

    Raises:
        _NoForm: for other values.
    """
    kind = type(value)
    if kind is dict:
        return kind, _frozen(list(value)), _frozen(list(value.values()))
    if kind in (list, tuple):
        return kind, list(map(_frozen, value))
    if not isinstance(value, (*PLAIN, type)):
        raise _NoForm
    return kind, value
