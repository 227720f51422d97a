"""Tensors are found and replaced inside anything; what holds no tensor stays the same object."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prepbench.objects.flatten import Rebuild, attributes, collect, map_values, paths, tensor_at


@dataclass
class Result:
    logits: torch.Tensor
    names: list[str]


class Slotted:
    __slots__ = ("keys", "name")

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.name = keys, "cache"


class Node:
    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.itself = value, self


class Listed(list[Any]):
    pass


class Mapped(dict[str, Any]):
    pass


ONE, TWO = torch.ones(2), torch.full((3,), 2.0)


@pytest.mark.parametrize(
    "value",
    [
        (ONE, TWO),
        [ONE, {"y": TWO}],
        Result(ONE, ["a"]),
        SimpleNamespace(a=ONE, b=[Slotted(TWO)]),
        Listed([ONE, 1, TWO]),
        Mapped(x=ONE, y="text", z=(TWO,)),
    ],
)
def test_every_tensor_is_found_and_replaced_in_a_copy(value: Any) -> None:
    before = collect(value)
    doubled = map_values(value, lambda leaf: leaf * 2)
    assert type(doubled) is type(value)
    assert [torch.equal(new, old * 2) for new, old in zip(collect(doubled), before, strict=True)] == [True] * len(
        before
    )
    assert all(now is old for now, old in zip(collect(value), before, strict=True)), "the value itself was changed"


def test_what_holds_no_tensor_stays_shared() -> None:
    settings = SimpleNamespace(size=3)
    result = map_values({"x": ONE, "settings": settings, "names": ["a"]}, torch.clone)
    assert result["settings"] is settings
    value = [settings, "text", (1, 2)]
    assert map_values(value, torch.clone) is value


def test_objects_that_refer_to_themselves_are_walked_once() -> None:
    node = Node(ONE)
    copied = map_values(node, torch.clone)
    assert copied is not node
    assert copied.itself is node
    assert len(collect(node)) == 1


def test_attributes_in_slots_count() -> None:
    assert attributes(Slotted(ONE)) == {"keys": ONE, "name": "cache"}


def test_paths_say_how_to_get_to_each_tensor() -> None:
    value = {"out": [Result(ONE, []), Listed([TWO])]}
    first, second = (path for path, _ in paths(value))
    assert first == (("item", "out"), ("item", 0), ("attr", "logits"))
    assert second == (("item", "out"), ("item", 1), ("item", 0))
    assert tensor_at(value, 1) is TWO


def test_a_value_is_made_again_with_other_tensors() -> None:
    make, values = Rebuild.of(Result(ONE, ["a"]))
    assert [value is ONE for value in values] == [True]
    made = make(TWO)
    assert isinstance(made, Result)
    assert (made.logits is TWO, made.names) == (True, ["a"])
    assert make.__name__ == "make_Result"
