"""Forms of calls: the nesting of arguments, and the non-tensor contents of objects among them.

A call that has the form of an earlier one need not be looked through again. A form is made once of a call and compared
in one pass, because a cache of many layers is looked at for each token that a small model makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.parts import PLAIN, Steps, attributes
from prepbench.running.empty_caches import is_nothing
from prepbench.running.nested_values import as_tensor, tensor_numbers
from prepbench.running.object_nodes import holds_values, is_registered

_IMMUTABLE = (*PLAIN, type)
Take = Callable[[Any, list[Any]], bool]
"""Whether a value is nested alike; adds its leaves to a list."""


class CallForm:
    """The form of one call: nesting of the arguments and non-tensor contents of objects.

    Args:
        take: compares arguments by position, then those by keyword.
    """

    def __init__(self, take: Take) -> None:
        self._take = take

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        counted: Collection[Steps] = (),
    ) -> CallForm | None:
        """Return the form of a call; None if an object in it holds other things than tensors, plain values, and dicts
        and lists of these.

        Args:
            names: of the arguments by position.
            args: those by position.
            kwargs: those by keyword.
            counted: numbers that may differ between calls of this form.
        """
        parts = [*zip(names, args, strict=True), *kwargs.items()]
        takes = [_take(value, (("item", name),), counted) for name, value in parts]
        found = [take for take in takes if take is not None]
        return cls(_take_all(found)) if len(found) == len(takes) else None

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Return the leaves of a call of this form, in pytree order; None for a call of another form. Keyword arguments
        keep their order.
        """
        found: list[Any] = []
        return found if self._take([*args, *kwargs.values()], found) else None


def _take(value: Any, steps: Steps, counted: Collection[Steps]) -> Take | None:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _take_tensor
    if kind in (tuple, list):
        items = [_take(part, (*steps, ("item", index)), counted) for index, part in enumerate(value)]
        known = [item for item in items if item is not None]
        return _take_items(kind, _take_all(known)) if len(known) == len(items) else None
    if kind is dict:
        parts = [_take(part, (*steps, ("item", key)), counted) for key, part in value.items()]
        known = [part for part in parts if part is not None]
        return _take_dict(list(value), _take_all(known)) if len(known) == len(parts) else None
    if is_registered(kind):
        return _take_object(value, steps, counted)
    return None if kind in pytree.SUPPORTED_NODES else _take_constant(kind)


def _take_tensor(value: Any, found: list[Any]) -> bool:
    found.append(value)
    return isinstance(value, torch.Tensor) and (value.dim() != 1 or not is_nothing(value))


def _take_number(value: Any, found: list[Any]) -> bool:
    found.append(as_tensor(value))
    return type(value) is int


def _take_constant(kind: type) -> Take:
    def take(value: Any, found: list[Any]) -> bool:
        found.append(value)
        return type(value) is kind

    return take


def _take_all(takes: Sequence[Take]) -> Take:
    count = len(takes)

    def take(values: Any, found: list[Any]) -> bool:
        if len(values) != count:
            return False
        for each, value in zip(takes, values, strict=True):  # noqa: SIM110 (a generator takes twice as long)
            if not each(value, found):
                return False
        return True

    return take


def _take_items(kind: type, inner: Take) -> Take:
    return lambda value, found: type(value) is kind and inner(value, found)


def _take_dict(keys: list[Any], inner: Take) -> Take:
    return lambda value, found: type(value) is dict and list(value) == keys and inner(value.values(), found)


def _take_object(value: Any, steps: Steps, counted: Collection[Steps]) -> Take | None:
    kind, parts = type(value), attributes(value)
    if parts.keys() != getattr(value, "__dict__", {}).keys():  # it has slots as well
        return None
    inner: dict[str, Take] = {}
    fixed: dict[str, Any] = {}
    containers: dict[str, Hashable] = {}
    numbers = tensor_numbers(kind)
    for name, part in parts.items():
        path: Steps = (*steps, ("attr", name))
        if path in counted:
            inner[name] = _ignore(type(part))
        elif name in numbers:
            inner[name] = _take_number
        elif isinstance(part, _IMMUTABLE):
            fixed[name] = part
        elif (held := _frozen(part)) is not None:
            containers[name] = held
        elif holds_values(part) and (take := _take(part, path, counted)) is not None:
            inner[name] = take
        else:
            return None
    names, takes = list(parts), tuple(inner.items())
    values, types = list(fixed.values()), list(map(type, fixed.values()))

    def take_object(given: Any, found: list[Any]) -> bool:
        if type(given) is not kind:
            return False
        held = vars(given)
        if list(held) != names:
            return False
        now = [held[name] for name in fixed]
        if now != values or list(map(type, now)) != types:
            return False
        for name, frozen in containers.items():
            if _frozen(held[name]) != frozen:
                return False
        for name, take in takes:  # noqa: SIM110 (a generator takes twice as long)
            if not take(held[name], found):
                return False
        return True

    return take_object


def _ignore(kind: type) -> Take:
    return lambda value, found: type(value) is kind


def _frozen(value: Any) -> Hashable | None:
    """Return a plain value with its type; None for other values."""
    if type(value) is dict:
        return _frozen([[key, part] for key, part in value.items()])
    if type(value) not in (list, tuple):
        return (type(value), value) if isinstance(value, _IMMUTABLE) else None
    parts = tuple(map(_frozen, value))
    return None if None in parts else (type(value), parts)
