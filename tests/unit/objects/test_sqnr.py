"""SQNR: its value, the worst value for NaN and infinities, nested values, and errors for structures that differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from prepbench.objects.compare import Powers, powers, sqnr

INF, NAN = math.inf, math.nan
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.complex64]


@dataclass
class Cache:
    keys: torch.Tensor
    values: list[torch.Tensor]


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_ratio_of_the_powers_in_decibels(dtype: torch.dtype) -> None:
    reference, result = torch.tensor([3, 4, 5], dtype=dtype), torch.tensor([3, 4, 6], dtype=dtype)
    assert sqnr(reference, result) == pytest.approx(10 * math.log10(50 / 1), rel=1e-9)


def test_dtypes_may_differ() -> None:
    assert sqnr(torch.tensor([3, 4, 5]), torch.tensor([3.0, 4.0, 6.0])) == pytest.approx(10 * math.log10(50))
    assert sqnr(torch.ones(2, dtype=torch.float64), torch.ones(2)) == INF


@pytest.mark.parametrize(
    "value",
    [torch.ones(3), torch.zeros(3), torch.tensor([1.0, INF, NAN]), torch.tensor([True]), torch.ones(0), 1, True, 0.5],
)
def test_equal_values_are_infinitely_good(value: Any) -> None:
    assert sqnr(value, value) == INF


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_what_only_one_of_them_holds_is_the_worst_value(wrong: float, dtype: torch.dtype) -> None:
    good, bad = torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([1.0, wrong], dtype=dtype)
    assert sqnr(good, bad) == -INF
    assert sqnr(bad, good) == -INF
    assert sqnr([good, good], [good, bad]) == -INF
    assert sqnr(torch.tensor([INF, 1.0], dtype=dtype), torch.tensor([-INF, 1.0], dtype=dtype)) == -INF


def test_infinities_and_nans_that_both_share_are_left_out() -> None:
    reference, result = torch.tensor([3.0, 4.0, -INF, NAN]), torch.tensor([3.0, 4.5, -INF, NAN])
    assert sqnr(reference, result) == pytest.approx(sqnr(reference[:2], result[:2])) == pytest.approx(20)


def test_noise_without_a_signal_is_the_worst_value() -> None:
    assert sqnr(torch.zeros(2), torch.tensor([0.0, 1e-6])) == -INF


def test_bools_and_large_integers() -> None:
    true, false = torch.tensor([True, True, True, True]), torch.tensor([True, True, True, False])
    assert sqnr(true, false) == pytest.approx(10 * math.log10(4))
    large = torch.tensor([2**60])
    assert math.isfinite(sqnr(large, large + 1))


def test_sums_are_taken_in_double_precision() -> None:
    reference = torch.full((2**20,), 0.1)
    assert sqnr(reference, reference * 2) == pytest.approx(0, abs=1e-9)
    huge = torch.tensor([1e38, 1.0])
    assert sqnr(huge, huge * -3) == pytest.approx(10 * math.log10(1 / 16), abs=1e-5)


def test_all_tensors_of_nested_values_count() -> None:
    one, two = torch.tensor([3.0]), torch.tensor([4.0])
    reference = {"logits": one, "cache": Cache(two, [one]), "length": 2, "names": ("a", None)}
    result = {"logits": one, "cache": Cache(two, [one + 1]), "length": 2, "names": ("a", None)}
    assert sqnr(reference, result) == pytest.approx(10 * math.log10((9 + 16 + 9 + 4) / 1))
    assert sqnr((one, two), [one, two]) == INF


@pytest.mark.parametrize(
    ("reference", "result", "message"),
    [
        (torch.ones(2, 1), torch.ones(1, 2), r"Shapes differ at value: \(2, 1\) in the reference, \(1, 2\)"),
        ({"a": [torch.ones(2)]}, {"a": [torch.ones(1)]}, r"at value\['a'\]\[0\]"),
        ((torch.ones(1), torch.ones(1)), (torch.ones(1),), r"The reference has a value at value\[1\] and the result"),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}, r"The reference has a value at value\['a'\]"),
        ([], [torch.ones(1)], r"The result has a value at value\[0\] and the reference has none"),
        ({"a": "text"}, {"a": "text"}, "A dict without tensors or numbers in it has no SQNR"),
    ],
)
def test_structures_and_shapes_must_agree(reference: Any, result: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sqnr(reference, result)


def test_batches_are_added_before_the_ratio_is_taken() -> None:
    reference, result = torch.randn(8, 5), torch.randn(8, 5)
    parts = [powers(*pair) for pair in zip(reference.split(2), result.split(2), strict=True)]
    assert sum(parts, Powers()).decibels == pytest.approx(sqnr(reference, result))
    assert (powers(reference, reference) + powers(reference, result)).decibels < INF


def test_the_arguments_stay_as_they_are() -> None:
    value = torch.ones(2, requires_grad=True)
    sqnr(value, value * 2)
    assert value.grad is None
    assert value.tolist() == [1.0, 1.0]
