"""Map and iterate over arguments of a call, nested in tuples, lists, dicts and slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OtherStructure(ValueError):
    """Raised if two values have different nesting."""


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``function`` applied to every part that is not a container, in order."""
    if isinstance(value, tuple):
        return tuple(mapped(item, function) for item in value)
    if isinstance(value, list):
        return [mapped(item, function) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*[mapped(item, function) for item in _ends(value)])
    return function(value)


def parts(value: Any) -> list[Any]:
    """Return every part of ``value`` that is not a container, in the order of :func:`mapped`."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


def mapped_together(one: Any, two: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Apply ``function`` to the matching parts of two values with the same nesting.

    The result is nested as ``one`` is. Where only one of the two is a container, ``function`` gets it whole.

    Raises:
        OtherStructure: two containers have other lengths or keys.
    """
    if isinstance(one, tuple | list) and isinstance(two, tuple | list):
        if len(one) != len(two):
            raise OtherStructure(f"{len(one)} items and {len(two)} items")
        items = [mapped_together(a, b, function) for a, b in zip(one, two, strict=True)]
        return tuple(items) if isinstance(one, tuple) else items
    if isinstance(one, dict) and isinstance(two, dict):
        if set(one) != set(two):
            raise OtherStructure(f"keys {list(one)} and {list(two)}")
        return {key: mapped_together(one[key], two[key], function) for key in one}
    if isinstance(one, slice) and isinstance(two, slice):
        return slice(*[mapped_together(a, b, function) for a, b in zip(_ends(one), _ends(two), strict=True)])
    return function(one, two)


def _ends(value: slice) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step
