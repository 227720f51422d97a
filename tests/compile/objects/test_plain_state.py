"""What a model's code can write to outside of tensors is put back: however deep, on classes, and in globals."""

from __future__ import annotations

import collections
import types
from typing import Any

import numpy as np
import pytest
from torch import nn

from prepbench.objects.copy import Twin
from prepbench.objects.restore import kept, restored
from prepbench.running.unchanged import unchanged
from tests.fingerprint import changes, fingerprint, left_as_it_was
from tests.zoo import ZOO

STATEFUL = [name for name, case in ZOO.items() if case.make.__module__ == "tests.zoo.state"]


@pytest.mark.parametrize("name", STATEFUL)
def test_models_that_keep_values_are_put_back(name: str) -> None:
    case = ZOO[name]
    model = case.make()
    before = fingerprint(model)
    with restored(model):
        model(*case.samples[:1])
        assert changes(before, fingerprint(model)), "the model keeps nothing"
    different = [change for change in changes(before, fingerprint(model)) if " random: " not in change]
    assert different == []


@pytest.mark.parametrize("name", STATEFUL)
def test_a_twin_that_runs_under_restored_leaves_its_original_alone(name: str) -> None:
    case = ZOO[name]
    model = case.make()
    with left_as_it_was(model):
        twin = Twin(model).model
        with unchanged(twin):
            twin(*case.samples[:1])


def put_back(*steps: Any) -> None:
    for step in steps:
        step()


def test_what_did_not_change_is_not_written_to() -> None:
    class Watched(dict[str, int]):
        writes = 0

        def __setitem__(self, key: str, value: int) -> None:
            self.writes += 1
            super().__setitem__(key, value)

    holder = types.SimpleNamespace(table=Watched(a=1), values=[1, 2])
    values = holder.values
    put_back(*kept(holder))
    assert holder.values is values
    assert holder.table.writes == 0


def test_circles_and_deep_chains_end() -> None:
    chain: list[Any] = []
    inner = chain
    for _ in range(5_000):
        inner.append([])
        inner = inner[0]
    inner.append(chain)
    steps = list(kept(chain))
    inner.append(1)
    put_back(*steps)
    assert inner == [chain]


def test_containers_keep_their_identity_order_and_length() -> None:
    table, recent, names = {"a": 1, "b": 2}, collections.deque([1, 2], maxlen=2), {1, 2}
    steps = list(kept([table, recent, names]))
    del table["a"]
    table["c"] = table["a"] = 3
    recent.append(9)
    names.clear()
    put_back(*steps)
    assert (list(table.items()), list(recent), recent.maxlen, names) == ([("a", 1), ("b", 2)], [1, 2], 2, {1, 2})


class Slots:
    __slots__ = ("__private", "later", "value")

    def __init__(self) -> None:
        self.__private, self.value = [1], 2

    def change(self) -> None:
        self.__private.append(3)
        self.later, self.value = 4, 5

    def all(self) -> Any:
        return self.__private, self.value, hasattr(self, "later")


class Closes:
    closed = 0

    def __init__(self) -> None:
        self.values: list[int] = []

    def __del__(self) -> None:
        Closes.closed += 1


class Holder(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part


def test_slots_are_copied_and_put_back() -> None:
    original = Slots()
    twin = Twin(Holder(original)).model.part
    assert twin is not original
    with restored(Holder(twin)):
        twin.change()
        assert twin.all() == ([1, 3], 5, True)
    assert twin.all() == original.all() == ([1], 2, False)
    twin.change()
    assert original.all() == ([1], 2, False)


def test_what_closes_something_has_no_copy_and_is_put_back() -> None:
    model = Holder(Closes())
    twin = Twin(model).model
    assert twin.part is model.part
    with restored(twin):
        twin.part.values.append(1)
    assert model.part.values == []
    del twin
    assert Closes.closed == 0


def test_arrays_and_namespaces_are_copied() -> None:
    model = Holder([np.zeros(2), types.SimpleNamespace(calls=[1])])
    array, space = Twin(model).model.part
    array[0], space.calls[0] = 1, 2
    assert model.part[0].tolist() == [0, 0]
    assert model.part[1].calls == [1]


def test_a_cell_that_was_empty_is_empty_again() -> None:
    def outer(is_full: bool = False) -> tuple[Any, Any]:
        if is_full:
            held = 0

        def read() -> Any:
            return held

        def write() -> None:
            nonlocal held
            held = 1

        return read, write

    read, write = outer()
    steps = list(kept(read))
    write()
    assert read() == 1
    put_back(*steps)
    with pytest.raises(NameError):
        read()
