"""A mark of a model's values: another one after every write, whatever kinds of tensors there are, and at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.running.value_mark import value_mark


class Kept(torch.Tensor):
    """A tensor of another class, that no operator is defined for."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("reshape", "__getitem__", "view", "cpu"):
            raise NotImplementedError(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def holding(value: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("value", value)
    return module


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 5),
        torch.randn(5, 3).t(),
        torch.randn(2, 3, 4, 5).permute(3, 1, 0, 2),
        torch.tensor(2.0),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(300).bfloat16(),
    ],
    ids=["plain", "transposed", "permuted", "number", "bool", "conjugated", "half"],
)
def test_a_write_that_torch_does_not_see_is_seen(value: torch.Tensor) -> None:
    module = holding(value)
    before = value_mark(module)
    assert value_mark(module) == before
    value.data[...] = 0
    assert value_mark(module) != before


@pytest.mark.parametrize(
    "value",
    [torch.empty(0, 3), torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.ones(2).as_subclass(Kept)],
)
def test_what_has_no_plain_values_has_a_mark(value: torch.Tensor) -> None:
    assert value_mark(holding(value)) == value_mark(holding(value))


def test_a_large_transposed_tensor_is_not_copied() -> None:
    module = holding(torch.zeros(4000, 8000).t())
    copied, taken = [], []
    for call, times in ((lambda: module.value.contiguous(), copied), (lambda: value_mark(module), taken)):
        for _ in range(3):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    assert min(taken) < min(copied) / 5
