"""A tensor's memory, and its count of in-place changes (``torch.Tensor._version``)."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for

with needed_for("telling which tensors share memory or were changed in place"):
    # looked up once, because the functions below run for every call of a traced model
    _probe = torch.empty(0)
    _ = _probe.untyped_storage()._cdata, _probe._version, _probe._is_view

VERSION = "_version"
"""The attribute that counts in-place changes."""


def memory_of(tensor: torch.Tensor) -> int:
    """Return an identifier of a strided tensor's memory, which its views share, also without data."""
    memory: int = tensor.untyped_storage()._cdata
    return memory


def version_of(tensor: Any) -> int:
    """Return how often a tensor was changed in place; 0 for one made in inference mode, where torch does not count, and
    for other values.
    """
    return tensor._version if isinstance(tensor, torch.Tensor) and not tensor.is_inference() else 0


def is_part(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of another one, or a part of a larger piece of memory."""
    if tensor.layout is not torch.strided:
        return False
    whole = tensor.numel() * tensor.element_size()
    return bool(tensor._is_view()) or tensor.storage_offset() != 0 or tensor.untyped_storage().nbytes() != whole
