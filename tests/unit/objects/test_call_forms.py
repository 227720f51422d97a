"""Calls of a known form are recognised in one pass, and only these."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from prepbench._torch_compat import pytree
from prepbench.objects.flatten import CallForms, register_nodes


class Layer:
    def __init__(self, size: int) -> None:
        self.seen, self.keys, self.values = size, torch.ones(1, size), torch.zeros(1, size)


class Cache:
    def __init__(self, size: int = 2) -> None:
        self.layers, self.kind, self.names = [Layer(size), Layer(size)], "dynamic", ["a", {"b": 1}]


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self) -> None:
        self.tensor = torch.ones(2)


SEEN = (("item", "cache"), ("attr", "layers"), ("item", 0), ("attr", "seen"))


class Known:
    """The form of one call."""

    def __init__(self, *args: Any, counted: Any = (), **kwargs: Any) -> None:
        register_nodes((args, kwargs))
        self._forms = CallForms(counted)
        self.is_form = self._forms.add(self._named(args, kwargs))

    def leaves(self, args: Any, kwargs: Any) -> list[Any] | None:
        return self._forms.leaves(self._named(args, kwargs))

    def _named(self, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
        return [*((f"args[{index}]", value) for index, value in enumerate(args)), *kwargs.items()]


def test_the_leaves_are_those_of_pytrees() -> None:
    call = (torch.ones(2), [1, (torch.zeros(3), None)]), {"cache": Cache(), "more": {"z": torch.ones(1), "a": True}}
    known = Known(*call[0], **call[1])
    found, expected = known.leaves(*call), pytree.tree_leaves(call)
    assert found is not None
    assert all(one is two for one, two in zip(found, expected, strict=True))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def test_the_parts_of_a_named_tuple_are_leaves() -> None:
    pair = Pair(torch.ones(2), torch.zeros(3))
    known = Known(pair)
    found = known.leaves((Pair(*pair),), {})
    assert found is not None
    assert all(one is two for one, two in zip(found, pair, strict=True))
    assert known.leaves(((*pair,),), {}) is None, "of another class"


def _set(value: Any, name: str, part: Any) -> None:
    setattr(value, name, part)


CHANGES = {
    "a number": lambda cache: _set(cache.layers[0], "seen", 5),
    "a truth value for a number": lambda cache: _set(cache.layers[1], "seen", 2.0),
    "a text": lambda cache: _set(cache, "kind", "static"),
    "a list in an object": lambda cache: cache.names.append("c"),
    "a dict in a list in an object": lambda cache: cache.names[1].update(b=2),
    "fewer layers": lambda cache: cache.layers.pop(),
    "a tensor that is not there": lambda cache: _set(cache.layers[0], "keys", None),
    "a tensor that holds nothing": lambda cache: _set(cache.layers[0], "keys", torch.ones(0)),
    "a further attribute": lambda cache: _set(cache, "more", 1),
    "a tensor where a number was": lambda cache: _set(cache.layers[0], "seen", torch.ones(1)),
    "another class": lambda cache: _set(cache, "layers", tuple(cache.layers)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_form_is_not_taken(name: str) -> None:
    known = Known(cache=Cache())
    other = Cache(7)
    for layer in other.layers:
        layer.seen = 2
    assert known.leaves((), {"cache": other}) is not None
    CHANGES[name](other)
    assert known.leaves((), {"cache": other}) is None


def test_the_form_is_not_changed_with_the_call_it_was_made_of() -> None:
    cache = Cache()
    known = Known(cache=cache)
    cache.names.append("b")
    assert known.leaves((), {"cache": cache}) is None
    assert known.leaves((), {"cache": Cache()}) is not None


def test_numbers_that_are_counted_may_differ() -> None:
    known = Known(cache=Cache(), counted={SEEN})
    other = Cache()
    other.layers[0].seen = 9
    assert known.leaves((), {"cache": other}) is not None
    other.layers[1].seen = 9
    assert known.leaves((), {"cache": other}) is None


@pytest.mark.parametrize("odd", [object(), lambda: None, {1, 2}])
def test_what_cannot_be_compared_has_no_form(odd: Any) -> None:
    cache = Cache()
    cache.names = odd
    assert not Known(cache=cache).is_form


def test_objects_with_slots_have_no_form() -> None:
    assert not Known(Slotted()).is_form


def test_numbers_among_the_arguments_keep_their_type() -> None:
    known = Known(torch.ones(1), 3)
    assert known.leaves((torch.ones(1), 4), {}) is not None  # whose value the caller compares
    assert known.leaves((torch.ones(1), True), {}) is None
    assert known.leaves((torch.ones(1), torch.ones(1)), {}) is None
    assert known.leaves((3, torch.ones(1)), {}) is None
    assert known.leaves((torch.ones(1),), {}) is None
