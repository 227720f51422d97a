"""A digest of a function changes with what it reads, and with nothing else."""

from __future__ import annotations

import collections
import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prepbench.measure import metrics
from prepbench.objects.function_digest import read_function

NUMBER: Any = 1
TABLE: dict[str, Any] = {"weights": [1, 2]}
TENSOR, ARRAY, LAYER = torch.ones(3), np.ones(3), nn.Linear(2, 2)
LOG: list[int] = []
LOCK = threading.Lock()
WORDS = re.compile("a+")


def function_digest(function: Callable[..., Any]) -> str:
    return read_function(function).digest()


def helper() -> int:
    return 1


def other_helper() -> int:
    return 2


class Metric:
    factor: Any = 1

    def __init__(self, threshold: Any = 1) -> None:
        self.threshold = threshold

    def __call__(self, output: Any, target: Any) -> Any:
        return self.threshold * self.factor * NUMBER

    def method(self, output: Any, target: Any) -> Any:
        return self.threshold


class Slotted:
    __slots__ = ("threshold",)

    def __call__(self, output: Any, target: Any) -> Any:
        return self.threshold


def reads_globals(output: Any, target: Any) -> Any:
    return NUMBER, TABLE, TENSOR, ARRAY, LAYER(output), WORDS


def calls_helper(output: Any, target: Any) -> Any:
    return helper()


def inner(value: Any) -> Callable[[Any, Any], Any]:
    def metric(output: Any, target: Any) -> Any:
        return value

    return metric


def logs(output: Any, target: Any) -> Any:
    LOG.append(1)
    return NUMBER


def locks(output: Any, target: Any) -> Any:
    with LOCK:
        return 1


def plain(weight: Any, output: Any, target: Any) -> Any:
    return weight


def by_keyword(output: Any, target: Any, *, threshold: Any = 0.5, reduce: Any = None) -> Any:
    return threshold, reduce


def set_item(holder: Any, key: Any, value: Any) -> Callable[[], None]:
    return lambda: holder.__setitem__(key, value)


@pytest.mark.parametrize("metric", [reads_globals, Metric()], ids=["function", "object"])
@pytest.mark.parametrize("value", [2, "1", None])
def test_a_global_counts(metric: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_digest(metric)
    assert function_digest(metric) == before
    monkeypatch.setitem(globals(), "NUMBER", value)
    assert function_digest(metric) != before


@pytest.mark.parametrize(
    "change",
    [
        set_item(TABLE["weights"], 0, 5),
        set_item(TENSOR, 0, 5.0),
        set_item(ARRAY, 0, 5.0),
        lambda: nn.init.constant_(LAYER.weight, 5.0),
        lambda: globals().update(WORDS=re.compile("b")),
    ],
    ids=["list in a dict", "tensor", "array", "module", "object of C"],
)
def test_what_globals_hold_counts(change: Callable[[], None]) -> None:
    before = function_digest(reads_globals)
    change()
    assert function_digest(reads_globals) != before


def test_a_helper_that_is_defined_again_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = function_digest(calls_helper)
    monkeypatch.setitem(globals(), "helper", other_helper)
    assert function_digest(calls_helper) != before


def test_attributes_of_objects_and_classes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert function_digest(Metric()) == function_digest(Metric())
    assert function_digest(Metric(2)) != function_digest(Metric())
    assert function_digest(Metric(2).method) != function_digest(Metric().method)
    slotted, before = Slotted(), function_digest(Metric())
    slotted.threshold = 1
    first = function_digest(slotted)
    slotted.threshold = 2
    assert function_digest(slotted) != first
    monkeypatch.setattr(Metric, "factor", 3)
    assert function_digest(Metric()) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [([1], [2]), (torch.ones(2), torch.zeros(2)), ({1}, {2}), (np.float32(1), np.float32(2)), (helper, other_helper),
     (collections.Counter("a"), collections.Counter("b")), (None, [0]), (Metric(1), Metric(2))],
    ids=["list", "tensor", "set", "number of numpy", "function", "counter", "nothing", "object"],
)  # fmt: skip
def test_closures_and_arguments_count(one: Any, other: Any) -> None:
    for make in (
        inner,
        functools.partial(functools.partial, plain),
        lambda value: functools.partial(plain, target=value),
    ):
        assert function_digest(make(one)) == function_digest(make(one))
        assert function_digest(make(one)) != function_digest(make(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.25, 0.75), (torch.sum, torch.mean), ({"a": 1}.get, {"a": 2}.get), (None, 1), ([1], 1)],
    ids=["number", "function of torch", "method of a dict", "nothing", "list"],
)
def test_what_a_partial_gives_counts_whatever_the_kind_of_parameter(one: Any, other: Any) -> None:
    for parameter, function in (("threshold", by_keyword), ("reduce", by_keyword), ("target", plain)):
        digests = [function_digest(functools.partial(function, **{parameter: value})) for value in (one, other)]
        assert digests[0] != digests[1], parameter
    for given in ((TENSOR, one), (one, None)):
        changed = tuple(other if value is one else value for value in given)
        assert function_digest(functools.partial(plain, *given)) != function_digest(functools.partial(plain, *changed))


def test_the_order_of_what_is_captured_counts() -> None:
    def pair(one: Any, other: Any) -> Callable[[Any, Any], Any]:
        return lambda output, target: (one, other)

    assert function_digest(pair(1, None)) != function_digest(pair(None, 1))


def test_metrics_that_functions_make_count_by_what_they_are_made_of() -> None:
    assert function_digest(metrics.bits_per_byte(1.0)) == function_digest(metrics.bits_per_byte(1.0))
    assert function_digest(metrics.bits_per_byte(1.0)) != function_digest(metrics.bits_per_byte(2.0))
    assert function_digest(metrics.top_k(1)) != function_digest(metrics.top_k(2))


def test_what_calls_change_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        before = read_function(logs)
        logs(None, None)
        found.append(before.digest(read_function(logs)))
    monkeypatch.setitem(globals(), "NUMBER", 7)
    found.append(read_function(logs).digest(read_function(logs)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("metric", "told"),
    [(locks, "LOCK (lock)"), (inner({"a": (n for n in range(2))}), "cell 0.item 'a' (generator)")],
    ids=["lock", "generator"],
)
def test_what_cannot_be_read_equals_nothing(metric: Any, told: str) -> None:
    reading = read_function(metric)
    assert reading.unread == (told,)
    assert reading.digest() != reading.digest()
