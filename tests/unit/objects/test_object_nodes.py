"""Classes that hold tensors become pytree nodes when an object of them arrives."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.flatten import closed, count_registered, opened, refill, register_nodes


class Cache:
    def __init__(self, keys: torch.Tensor, steps: int = 0) -> None:
        self.keys, self.steps, self.names = keys, steps, ["a"]


class Outer:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Empty:
    def __init__(self) -> None:
        self.size = 3


class Parent:
    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.children = value, [Child(self, value + 1)]


class Child:
    def __init__(self, parent: Parent, value: torch.Tensor) -> None:
        self.parent, self.value = parent, value


def test_tensors_of_nested_objects_become_leaves() -> None:
    value = {"cache": Outer([Cache(torch.ones(2), 7)])}
    register_nodes(value)
    leaves, spec = pytree.tree_flatten(value)
    assert [leaf.shape for leaf in leaves] == [(2,)]
    made = pytree.tree_unflatten([torch.zeros(3)], spec)["cache"].inner[0]
    assert isinstance(made, Cache)
    assert (made.keys.shape, made.steps, made.names) == ((3,), 7, ["a"])
    made.names.append("b")
    assert value["cache"].inner[0].names == ["a"], "two objects have one list"


def test_a_class_is_registered_once_and_only_if_it_holds_tensors() -> None:
    class New(Cache):
        pass

    before = count_registered()
    register_nodes([New(torch.ones(1)), New(torch.ones(2)), Empty()])
    assert count_registered() == before + 1
    assert len(pytree.tree_leaves(Empty())) == 1


def test_objects_that_refer_back_to_themselves_stay_leaves() -> None:
    parent = Parent(torch.ones(2))
    register_nodes(parent)
    assert pytree.tree_leaves(parent) == [parent]


def test_numbers_of_opened_objects_are_leaves_too() -> None:
    cache = Cache(torch.ones(2), 7)
    register_nodes(cache)
    leaves, spec = pytree.tree_flatten(opened((cache, 5)))
    assert [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)] == [7, 5]
    made, number = closed(pytree.tree_unflatten([torch.zeros(3), 8, 6], spec))
    assert isinstance(made, Cache)
    assert (made.keys.shape, made.steps, number) == ((3,), 8, 6)


def test_refill_changes_the_objects_themselves() -> None:
    cache, layers = Cache(torch.ones(2)), [torch.ones(1)]
    register_nodes(cache)
    value = ({"cache": cache, "gone": 1}, layers)
    refill(value, ({"cache": Cache(torch.zeros(3), 4)}, [torch.zeros(1), torch.zeros(2)]))
    assert (cache.keys.shape, cache.steps) == ((3,), 4)
    assert [layer.shape for layer in layers] == [(1,), (2,)]
    assert set(value[0]) == {"cache"}
