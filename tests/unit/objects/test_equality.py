"""Equality of results: every kind of difference is found, at its place, and rounding is let through where it may be."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from prepbench.objects.compare import EXACT, ROUNDED, Closeness, Outcome, difference

INF, NAN = math.inf, math.nan
LOWERED = Closeness(sqnr=20.0, integers=0.05)
ALL = [EXACT, ROUNDED, LOWERED]
A, B = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3) * 7 - 3
Pair = namedtuple("Pair", "first second")


@dataclass
class Layer:
    keys: torch.Tensor
    length: int = 2


@dataclass
class Cache:
    layers: list[Layer]
    name: str = "cache"


def cache(keys: torch.Tensor = A, length: int = 2, name: str = "cache") -> Cache:
    return Cache([Layer(A.clone()), Layer(keys.clone(), length)], name)


DIFFERENT: dict[str, tuple[Any, Any, str]] = {
    "missing output": ((A, B), (A,), "output: expected 2 values"),
    "one output more": ((A,), (A, B), "output: expected 1 values"),
    "no output": ((A,), (), "output: expected 1 values"),
    "swapped outputs": ((A, B), (B, A), "output[0]"),
    "missing key": ({"a": A, "b": B}, {"a": A}, "output['b']: expected a tensor (2, 3) torch.float32, got nothing"),
    "another key": ({"a": A}, {"a": A, "b": B}, "output['b']: expected nothing"),
    "order of keys": (OrderedDict(a=A, b=B), OrderedDict(b=B, a=A), "output: expected the order"),
    "list for tuple": ((A, B), [A, B], "output: expected tuple, got list"),
    "tuple for its names": (Pair(A, B), (A, B), "output: expected Pair, got tuple"),
    "integers": (torch.tensor([1, 5, 2]), torch.tensor([0, 4, 1]), "output at (0,): expected 1, got 0 (3 of 3"),
    "one integer": (torch.tensor(5), torch.tensor(6), "output: expected 5, got 6"),
    "large integers": (torch.tensor(2**60), torch.tensor(2**60 + 1), "output: expected"),
    "bools": (torch.tensor([True, False]), torch.tensor([False, True]), "output at (0,): expected True, got False"),
    "dtype": (A, A.double(), "output: expected torch.float32, got torch.float64"),
    "integer dtype": (torch.tensor([1]), torch.tensor([1], dtype=torch.int32), "output: expected torch.int64"),
    "shape": (A, A.reshape(3, 2), "output: expected the shape (2, 3), got the shape (3, 2)"),
    "shape that broadcasts": (torch.ones(2, 1), torch.ones(2, 3), "output: expected the shape (2, 1)"),
    "rank": (A, A[None], "output: expected the shape (2, 3), got the shape (1, 2, 3)"),
    "shape of empty tensors": (torch.ones(0, 3), torch.ones(0, 4), "output: expected the shape (0, 3)"),
    "dtype of empty tensors": (torch.ones(0), torch.ones(0, dtype=torch.int64), "output: expected torch.float32"),
    "empty for filled": (torch.ones(2, 3), torch.ones(0, 3), "output: expected the shape (2, 3)"),
    "NaN where none was": (torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN]), "output at (1,): expected 2, got nan"),
    "missing NaN": (torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), "output at (1,): expected nan, got 2"),
    "missing infinity": (torch.tensor([1.0, -INF]), torch.tensor([1.0, -3e38]), "output at (1,): expected -inf"),
    "sign of infinity": (torch.tensor([1.0, -INF]), torch.tensor([1.0, INF]), "output at (1,): expected -inf, got inf"),
    "NaN for infinity": (torch.tensor([1.0, INF]), torch.tensor([1.0, NAN]), "output at (1,): expected inf, got nan"),
    "NaN in complex": (torch.tensor([1j]), torch.tensor([complex(NAN, 1)]), "output at (0, 0): expected 0, got nan"),
    "floats": (A, A + 1, "output"),
    "float16": (A.half(), A.half() * 1.5, "output"),
    "only zeros": (torch.zeros(3), torch.full((3,), 1e-3), "output"),
    "nested caches": ([A, cache()], [A, cache(keys=B)], "output[1].layers[1].keys"),
    "number in a cache": ([A, cache()], [A, cache(length=3)], "output[1].layers[1].length: expected 2, got 3"),
    "text": ((A, "one"), (A, "two"), "output[1]: expected 'one', got 'two'"),
    "int": ((A, 3), (A, 4), "output[1]: expected 3, got 4"),
    "float": ((A, 3.0), (A, 4.0), "output[1]: expected 3.0, got 4.0"),
    "NaN as float": ((A, 3.0), (A, NAN), "output[1]: expected 3.0, got nan"),
    "bool for int": ((A, 1), (A, True), "output[1]: expected 1, got True"),
    "float for int": ((A, 1), (A, 1.0), "output[1]: expected 1, got 1.0"),
    "tensor for int": ((A, 3), (A, torch.tensor(3)), "output[1]: expected 3, got a tensor () torch.int64"),
    "None for tensor": ((A, B), (A, None), "output[1]: expected a tensor (2, 3) torch.float32, got None"),
    "tensor for None": ((None, B), (A, B), "output[0]: expected None"),
    "array": (np.ones(2), np.zeros(2), "output"),
    "array of objects": (np.array([None, "a"]), np.array([None, "b"]), "output[(1,)]: expected 'a', got 'b'"),
    "longer array of objects": (np.array([None]), np.array([None, "b"]), "output[(1,)]: expected nothing, got 'b'"),
    "set": ({1, 2}, {1, 3}, "output: expected {1, 2}, got {1, 3}"),
    "sparse": (A.to_sparse(), B.to_sparse(), "output"),
}  # fmt: skip


@pytest.mark.parametrize("closeness", ALL, ids=["exact", "rounded", "lowered"])
@pytest.mark.parametrize("kind", DIFFERENT)
def test_every_kind_of_difference_is_found_at_its_place(kind: str, closeness: Closeness) -> None:
    expected, got, text = DIFFERENT[kind]
    found = difference(expected, got, closeness)
    assert not found.equal
    assert found.text.startswith(text), found.text
    assert difference(expected, expected, closeness).equal
    assert difference(got, got, closeness).equal


@pytest.mark.parametrize("place", ["output", "inputs", "buffers"])
def test_what_a_call_leaves_behind_counts(place: str) -> None:
    expected = Outcome(A, {0: A}, {"count": torch.tensor(1)})
    values: dict[str, Any] = {"output": B, "inputs": {0: B}, "buffers": {"count": torch.tensor(2)}}
    found = difference(expected, replace(expected, **{place: values[place]}))
    assert found.path.startswith({"output": "output"}.get(place, "after the call, "))
    lost = difference(expected, replace(expected, buffers={}))
    assert lost.text == "after the call, buffer ['count']: expected a tensor () torch.int64, got nothing"
    assert difference(expected, expected).equal


def test_minus_zero_is_another_number_only_where_nothing_may_be_rounded() -> None:
    zero, minus = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert difference(zero, minus).text == "output at (0,): expected 0, got -0"
    assert not difference(torch.tensor([0j]), torch.tensor([complex(-0.0, 0.0)])).equal
    assert difference(zero, minus, ROUNDED).equal
    assert difference(zero, minus, LOWERED).equal


def test_shared_nans_and_infinities_are_equal() -> None:
    value = torch.tensor([NAN, INF, -INF, 1.0])
    assert all(difference(value, value.clone(), closeness).equal for closeness in ALL)
    assert all(difference([NAN], [float("nan")], closeness).equal for closeness in ALL)
    assert difference(value, value + 1e-6, ROUNDED).equal


def test_rounding_is_let_through_and_measured() -> None:
    found = difference(A, A * (1 + 1e-5), ROUNDED)
    assert found.equal
    assert found.largest == pytest.approx(5e-5, rel=0.1)
    assert found.relative == pytest.approx(1e-5, rel=0.1)
    assert not difference(A, A * (1 + 1e-5)).equal
    assert difference(A, A * 1.05, LOWERED).equal
    assert not difference(A, A * 1.05, ROUNDED).equal
    assert "got 13.97 dB" in difference(A, A * 1.2, LOWERED).text


def test_a_share_of_the_integers_may_differ() -> None:
    right = torch.arange(100)
    near, far = right.clone(), right.clone()
    near[:5] += 1
    far[:6] += 1
    assert difference(right, near, LOWERED).equal
    assert not difference(right, far, LOWERED).equal
    assert not difference(right, near, ROUNDED).equal
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3]), LOWERED).equal
    assert not difference(torch.tensor([1]), torch.tensor([3]), LOWERED).equal


def test_shapes_that_broadcast_are_let_through_where_asked_for() -> None:
    found = difference(torch.ones(2, 1), torch.ones(2, 3), Closeness(broadcasts=True))
    assert (found.equal, found.has_broadcast) == (True, True)
    assert not difference(torch.ones(2, 2), torch.ones(2, 3), Closeness(broadcasts=True)).equal


def test_circles_and_subclasses_are_walked() -> None:
    class Own(dict):  # type: ignore[type-arg]
        pass

    one, other = cache(), cache()
    one.name, other.name = one, other  # type: ignore[assignment]
    assert difference(one, other).equal
    assert difference({"a": A}, Own(a=A)).equal
    assert difference(torch.Size([2]), (2,)).equal
    assert difference(Own(a=A), {"a": A}).text == "output: expected Own, got dict"
    deep, deeper = [A], [A]
    for _ in range(3_000):
        deep, deeper = [deep], [deeper]
    deep.append(deep)
    deeper.append(deeper)
    assert difference(deep, deeper).equal
