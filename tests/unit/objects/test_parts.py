"""Every part of an object is found once, and its path leads back to it, however objects are nested and shared."""

from __future__ import annotations

import collections
import enum
import functools
import types
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from prepbench.objects.parts import PLAIN, data_parts, expression, functions_in, part_at, parts, reached, walk
from prepbench.package.leaves.handed_in import reached_functions, reached_texts

Pair = collections.namedtuple("Pair", "one other")


class Slotted:
    __slots__ = ("__hidden", "_last", "unset")

    def __init__(self, one: Any, other: Any) -> None:
        self._last, self.__hidden = one, other


@dataclass
class Record:
    one: Any = None
    others: list[Any] = field(default_factory=list)


class Named(dict[Any, Any]):
    """A dict with attributes."""


class Listed(list[Any]):
    """A list with attributes."""


class Colour(enum.Enum):
    RED = (1,)


def named(contents: list[Any], note: Any) -> Named:
    made = Named(enumerate(contents))
    made.note = note
    return made


def listed(contents: list[Any], note: Any) -> Listed:
    made = Listed(contents)
    made.note = note
    return made


def closed(one: Any, other: Any) -> Any:
    def function(first: Any = one, *, last: Any = other) -> Any:
        return one, other, first, last

    return function


def module(one: Any, other: Any) -> nn.Module:
    made = nn.Linear(1, 1)
    made.register_buffer("table", torch.ones(1))
    made.one, made.inner = one, nn.ReLU()
    made.inner.other = other
    return made


def array(one: Any, other: Any) -> Any:
    made = np.empty((1, 2), dtype=object)
    made[0, 0], made[0, 1] = one, other
    return made


LEAVES = st.sampled_from([None, True, 2, 2.5, "a", b"b", torch.float16, range(3), Colour.RED, slice(1), ...])
KINDS = [
    lambda one, other: [one, other], lambda one, other: (one, other), Pair, Slotted, module, closed, array,
    lambda one, other: {"one": one, 2: other}, lambda one, other: collections.deque([one, other]),
    lambda one, other: Record(one, [other]), lambda one, other: types.SimpleNamespace(one=one, other=other),
    lambda one, other: named([one], other), lambda one, other: listed([one], other),
    lambda one, other: functools.partial(closed, one, other=other), lambda one, other: Record(one).__eq__,
    lambda one, other: collections.OrderedDict(one=one, other=other), lambda one, other: property(closed(one, other)),
    lambda one, other: staticmethod(closed(one, other)),
]  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """An object and all that was put into it: later ones hold earlier ones, twice at times, and the first holds the
    last.
    """
    first = Record()
    made: list[Any] = [first, torch.ones(2)]
    for _ in range(draw(st.integers(1, 8))):
        one, other = (draw(st.one_of(LEAVES, st.sampled_from(made))) for _ in range(2))
        made.append(draw(st.sampled_from(KINDS))(one, other))
    first.others += made
    return made[-1], made


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_each_part_is_visited_once_and_its_path_leads_to_it(graph: tuple[Any, list[Any]]) -> None:
    root, made = graph
    top = [root, made[0]]
    found = list(walk(top))
    ids = [id(part) for _, part in found if not isinstance(part, PLAIN)]
    assert len(ids) == len(set(ids))
    assert {id(value) for value in made} <= set(ids)
    for steps, part in found:
        assert part_at(top, steps) is part
        assert eval(expression("root", steps), {"root": top}) is part  # noqa: S307


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_no_part_of_any_value_is_left_out(graph: tuple[Any, list[Any]]) -> None:
    """What Python's garbage collector knows of an object of Python, the walk knows too."""
    import gc

    root, _ = graph
    found = list(walk(root))
    known = {id(part) for _, part in found}
    kinds = (list, dict, tuple, Record, Slotted, torch.Tensor, nn.Module, types.FunctionType)
    for _, part in found:
        if type(part) in (list, dict, tuple, Named, Listed, Slotted, Pair, collections.deque):
            inside = [each for each in gc.get_referents(part) if isinstance(each, kinds) and each is not vars_of(part)]
            assert {id(each) for each in inside} <= known, (part, inside)


def vars_of(value: Any) -> Any:
    return getattr(value, "__dict__", None)


def test_each_place_is_given_where_that_is_asked_for_and_circles_end() -> None:
    shared = torch.ones(2)
    value: dict[str, Any] = {"a": [shared], "b": {"c": shared}}
    value["b"]["back"] = value
    places = [expression("x", steps) for steps, part in walk(value, once=False) if part is shared]
    assert places == ["x['a'][0]", "x['b']['c']"]
    assert [expression("x", steps) for steps, part in walk(value) if part is shared] == ["x['a'][0]"]
    assert [steps for steps, _ in walk(value, deepest=1)] == [(), (("item", "a"),), (("item", "b"),)]


def test_what_is_nested_deeper_than_the_stack_is_walked() -> None:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    assert sum(1 for _ in walk(value)) == 5_001


def test_sets_classes_and_references_have_parts() -> None:
    target = Record()
    reference = weakref.ref(target)
    members = frozenset({("a", 1)})
    for value in (members, reference, Record):
        assert parts(value), value
        for step, part in parts(value):
            assert part_at(value, (step,)) is part
    assert parts(reference) == [(("call", None), target), *parts(reference)[1:]]


def test_a_path_to_nothing_is_an_error() -> None:
    with pytest.raises(LookupError, match="no attribute 'missing'"):
        part_at(Record(), (("attr", "missing"),))
    with pytest.raises(LookupError):
        part_at({}, (("item", "missing"),))


def test_only_what_may_hold_arguments_counts_as_data() -> None:
    held = {"size": torch.Size([2]), "layer": nn.Linear(1, 1), "function": closed(1, 2), "colour": Colour.RED}
    assert [step for step, _ in data_parts(held)] == [("item", name) for name in held]
    assert [len(data_parts(part)) for part in held.values()] == [1, 0, 0, 0]
    assert {step for step, _ in data_parts(Slotted(1, 2))} == {("attr", "_last"), ("attr", "_Slotted__hidden")}


SCALE = [2.0]


TABLE = [1]


class User:
    table = TABLE

    def read(self) -> Any:
        return SCALE


def test_code_of_a_user_reaches_its_globals_and_classes_and_that_of_libraries_nothing() -> None:
    found = [part for _, part in walk(User(), reached)]
    for value in (SCALE, TABLE, User.read):
        assert any(part is value for part in found)
    assert reached(torch.no_grad) == []
    assert reached(functools.wraps) == []


def test_functions_are_found_behind_what_wraps_them() -> None:
    def inner() -> None: ...

    def outer() -> Any:
        return inner()

    cached = functools.lru_cache(outer)
    assert list(functions_in(property(outer, None, closed(1, 2))))[:2] == [outer, inner]
    for value in (outer, cached, functools.partial(cached), staticmethod(outer), types.MethodType(outer, 1)):
        assert list(functions_in(value)) == [outer, inner]
    assert list(functions_in(functools.partialmethod(outer))) == [outer, inner]
    assert list(functions_in([outer])) == list(functions_in(User)) == []


def test_functions_that_a_model_names_are_reached() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = {("names", 1): [User()], "mode": "last"}

        @functools.lru_cache(maxsize=1)  # noqa: B019
        def scaled(self, x: Any) -> Any:
            return x * SCALE[0]

        def forward(self, x: Any) -> Any:
            return self.held[("names", 1)][0].read(), self.scaled(x)

    model = Net()
    found = list(reached_functions(model))
    assert {User.read, Net.forward, Net.scaled.__wrapped__} <= set(found)
    assert {"names", "last"} <= reached_texts(model, found)
