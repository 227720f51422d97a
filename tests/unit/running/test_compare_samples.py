"""Samples may differ in sizes only; every other difference is named by its argument and its samples."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.objects.flatten import register_nodes
from prepbench.running.check_inputs import is_same, tensor_shapes


def nothing(**arguments: Any) -> None: ...


class Cache:
    def __init__(self, size: int, seen: int) -> None:
        self.keys, self.seen = torch.ones(size), seen


register_nodes(Cache(1, 1))


def samples(*kwargs: dict[str, Any]) -> list[Sample]:
    return [Sample((), one, index) for index, one in enumerate(kwargs)]


def test_shapes_of_all_samples_by_path() -> None:
    given = samples(*({"x": torch.empty(n, 4), "past": [torch.empty(n)], "flag": True} for n in (2, 3)))
    assert tensor_shapes(nothing, given) == {"x": [(2, 4), (3, 4)], "past[0]": [(2,), (3,)]}


@pytest.mark.parametrize(
    "first, second, words",
    [
        ({"a": torch.ones(1)}, {"a": torch.ones(1), "mask": torch.ones(1)}, ["'mask'", "sample 1", "not in sample 0"]),
        ({"a": torch.ones(1)}, {"a": None}, ["'a'", "None in sample 1", "Tensor in sample 0"]),
        ({"a": None}, {"a": {"k": torch.ones(1)}}, ["'a'", "None in sample 0", "in sample 1"]),
        ({"a": [torch.ones(1)]}, {"a": None}, ["'a'", "None in sample 1", "in sample 0"]),
        ({"a": {"k": None}}, {"a": {"k": Cache(1, 3)}}, ["a['k']", "None in sample 0", "in sample 1"]),
        ({"a": Cache(1, 3)}, {"a": Cache(2, 9)}, ["'a.seen'", "3 and 9", "sample 0 and sample 1"]),
        ({"a": [Cache(1, 3)]}, {"a": [Cache(2, 9)]}, ["'a[0].seen'", "3 and 9"]),
        ({"a": torch.ones(2)}, {"a": torch.ones(2, 1)}, ["'a'", "rank", "(2,)", "(2, 1)"]),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).int()}, ["'a'", "dtype", "float32", "int32"]),
        ({"a": 1}, {"a": 2}, ["'a'", "1 and 2", "sample 0 and sample 1"]),
        ({"a": True}, {"a": False}, ["'a'", "True and False"]),
        ({"a": "x"}, {"a": "y"}, ["'a'", "'x' and 'y'"]),
        ({"a": 1}, {"a": 1.0}, ["'a'", "type", "int and float"]),
        ({"a": [torch.ones(1)] * 2}, {"a": [torch.ones(1)] * 3}, ["'a'", "2 values", "3 in sample 1"]),
        ({"a": {"p": torch.ones(1)}}, {"a": {"q": torch.ones(1)}}, ["'a'", "keys"]),
    ],
)
def test_differences_that_no_axis_can_express_name_the_argument(first: Any, second: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        tensor_shapes(nothing, samples(first, second))
    for word in words:
        assert word in str(caught.value)


def test_the_later_of_three_samples_is_named() -> None:
    with pytest.raises(InputError, match="sample 0 and sample 2"):
        tensor_shapes(nothing, samples({"n": 1}, {"n": 1}, {"n": 3}))


def test_values_without_an_answer_to_equality_are_the_same_only_as_one_object() -> None:
    array = np.ones(2)
    assert is_same(array, array)
    assert not is_same(array, np.ones(2))
    assert is_same(1, 1.0)


def test_calls_of_a_generation_may_be_taken_apart() -> None:
    class Counting:
        def get_seq_length(self) -> int:
            return 0

    cache = Counting()
    given = samples({"x": None, "past": cache}, {"x": torch.ones(1), "past": cache})
    with pytest.raises(InputError, match=r"'x' is None in sample 0.*or give the later steps of a generation alone"):
        tensor_shapes(nothing, given)


class Plain:
    """An object without tensors, such as a cache that a model takes and never fills."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Plain(), Plain(), True),
        (Plain(layers=[Plain(n=1), {"a": Plain()}]), Plain(layers=[Plain(n=1), {"a": Plain()}]), True),
        (Plain(layers=[Plain(n=1)]), Plain(layers=[Plain(n=2)]), False),
        (Plain(n=1), Plain(m=1), False),
        (Plain(), Counter(), False),
        (object(), object(), False),
        (lambda: 1, lambda: 1, False),
        (np.ones(3), np.ones(3), False),
    ],
)
def test_objects_of_plain_values_are_compared_by_these(one: Any, other: Any, same: bool) -> None:
    assert is_same(one, other) is same


class Ring:
    """An object that holds itself."""

    def __init__(self, size: int) -> None:
        self.ring, self.size = [self], size


def test_objects_that_hold_themselves_are_compared_by_the_rest() -> None:
    assert is_same(Ring(1), Ring(1))
    assert not is_same(Ring(1), Ring(2))


def test_a_chain_of_many_objects_is_given_up() -> None:
    def chain() -> Plain:
        last = Plain(size=1)
        for _ in range(3000):
            last = Plain(after=last)
        return last

    assert not is_same(chain(), chain())
