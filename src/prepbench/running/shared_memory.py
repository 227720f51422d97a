"""Which tensors of a call share memory: a graph of separate tensors would lose what is written through one of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from prepbench._torch_compat.tensors import memory_of


def describe_shared_memory(inputs: Sequence[Any], changed: Collection[int], outputs: Sequence[Any]) -> str:
    """Which tensors of one call share memory, in words; empty if a graph of separate tensors does the same.

    Args:
        inputs: the leaves that the call received.
        changed: positions of the inputs that the call wrote into.
        outputs: the leaves that it returned.
    """
    first: dict[int, int] = {}
    for index, leaf in enumerate(inputs):
        memory = _memory(leaf)
        other = index if memory is None else first.setdefault(memory, index)
        if inputs[other] is not leaf and (index in changed or other in changed):
            return "writes into one of two arguments that share memory"
    seen: dict[int, Any] = {}
    for leaf in outputs:
        memory = _memory(leaf)
        if memory is None:
            continue
        if memory in first:
            return "returns " + ("its argument" if any(leaf is given for given in inputs) else "a view of its argument")
        if seen.setdefault(memory, leaf) is not leaf:
            return "returns two tensors that share memory"
    return ""


def _memory(leaf: Any) -> int | None:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_nested or leaf.numel() == 0:
        return None
    return memory_of(leaf)
