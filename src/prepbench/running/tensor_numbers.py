"""Numbers in objects that graphs take and return as tensors, because no size determines them and each call changes
them.

A static cache of a sliding window counts its seen tokens in a Python integer, because its code branches on whether the
window is full. ``capture/sizes/library_caches`` has that code without the branch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from prepbench.objects.parts import attributes

_NUMBERS = {"transformers.cache_utils.StaticSlidingWindowLayer": frozenset({"cumulative_length_int"})}


def tensor_numbers(kind: Any) -> frozenset[str]:
    """Return the attributes of a class that hold such a number."""
    return _of_bases(kind)


@functools.cache
def _of_bases(kind: Any) -> frozenset[str]:
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return frozenset().union(*(_NUMBERS[base] for base in bases if base in _NUMBERS))


def as_tensor(number: Any) -> Any:
    """Return an integer as a tensor without dims; other values unchanged."""
    return torch.tensor(number) if type(number) is int else number


def as_number(value: Any) -> Any:
    """Return the integer in a tensor that holds data; other values, such as traced tensors, unchanged."""
    is_plain = type(value) is torch.Tensor and not value.is_meta and value.numel() == 1
    return int(value) if is_plain else value


def parts_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, with such numbers as tensors."""
    parts, numbers = attributes(value), tensor_numbers(type(value))
    return {name: as_tensor(part) if name in numbers else part for name, part in parts.items()} if numbers else parts
