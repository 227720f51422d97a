"""Whatever a value is, what was changed inside it is put back, and it stays the same object."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prepbench.objects.restore import put_back_after


class _Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = [1, 2]


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda owner: setattr(owner, name, value)


def _item(key: Any, value: Any) -> Callable[[Any], None]:
    return lambda owner: owner.__setitem__(key, value)


VALUES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a list": (lambda: [1, 2], lambda it: it.reverse()),
    "a dict": (lambda: {"a": 1, "b": 2}, _item("a", 3)),
    "an ordered dict": (lambda: collections.OrderedDict(a=1, b=2), lambda it: it.move_to_end("a")),
    "a default dict": (lambda: collections.defaultdict(int, a=1), lambda it: it["b"]),
    "a set": (lambda: {1, 2}, lambda it: it.add(3)),
    "a deque": (lambda: collections.deque([1, 2], maxlen=2), lambda it: it.append(3)),
    "an array": (lambda: np.arange(4.0), _item(0, 9.0)),
    "an array of integers": (lambda: np.arange(4), lambda it: it.sort(kind="stable") or it.__isub__(1)),
    "a view of an array": (lambda: np.arange(8)[::2], _item(slice(None), 0)),
    "a namespace": (lambda: types.SimpleNamespace(calls=1), _set("calls", 2)),
    "slots": (_Slots, _set("value", None)),
    "a list in slots": (_Slots, lambda it: it.value.pop()),
    "an array in a dict in a list": (lambda: [{"seen": np.zeros(2)}], lambda it: _item(1, 1.0)(it[0]["seen"])),
}


def _content(value: Any) -> Any:
    """Return what a value holds, in its order, as plain lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return [[key, _content(part)] for key, part in value.items()]
    if isinstance(value, list | collections.deque):
        return [_content(part) for part in value]
    if isinstance(value, set):
        return sorted(value)
    return (
        _content(vars(value))
        if hasattr(value, "__dict__")
        else _content(value.value)
        if isinstance(value, _Slots)
        else value
    )


@pytest.mark.parametrize("name", VALUES)
def test_what_was_changed_inside_a_value_is_put_back(name: str) -> None:
    make, change = VALUES[name]
    value, holder = make(), types.SimpleNamespace()
    holder.part = value
    with put_back_after(holder):
        change(value)
        holder.part = None
        assert _content(value) != _content(make())
    assert holder.part is value
    assert _content(value) == _content(make())
