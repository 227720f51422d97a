"""Packed sequences under torch.export: packing, padding, and the sizes that recurrent layers need.

torch packs and pads in C++, with sizes that it reads from the lengths. Here the same is written with operators whose
result may have a size that depends on data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_packed_sequence

from prepbench._torch_compat.sizes import assume


@dataclass(frozen=True)
class Packing:
    """The layout of a packed sequence relative to the padded batch that it was made from.

    Attributes:
        batch_sizes: the attribute of a ``PackedSequence``.
        lengths: of shape (batch,).
        mask: of shape (time, batch), true where there is a row.
        rows: the indices of these in the flattened mask.
        longest: the largest length, a size that depends on data.
    """

    batch_sizes: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    longest: Any

    @classmethod
    def of(cls, lengths: torch.Tensor, time: Any) -> Packing:
        """Return the packing of a batch with ``time`` steps."""
        longest = lengths.max().item()
        assume(longest >= 1)
        assume(longest <= time)
        mask = lengths > torch.arange(time).unsqueeze(1)
        return cls(mask.sum(1)[:longest], lengths, mask, mask.flatten().nonzero().squeeze(1), longest)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of a batch of shape (time, batch, ...)."""
        return padded.flatten(0, 1).index_select(0, self.rows.to(padded.device))

    def pad(self, data: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
        """Return the batch of shape (time, batch, ...) with these rows."""
        place = (self.mask.flatten().cumsum(0) - 1).clamp(min=0).to(data.device)
        padded = data.index_select(0, place).unflatten(0, tuple(self.mask.shape))
        mask = self.mask.to(data.device).reshape(*self.mask.shape, *[1] * (data.ndim - 1))
        return torch.where(mask, padded, padding)

    def padded_to(self, total: Any, data: torch.Tensor, padding: float) -> torch.Tensor:
        """Return the padded batch with ``total`` steps."""
        padded = self.pad(data, padding)
        if _expression(total) == _expression(padded.shape[0]):
            return padded
        padded = padded[: self.longest]
        if _expression(total) == _expression(self.longest):
            return padded
        further = padded.new_full((total - self.longest, *padded.shape[1:]), padding)
        return torch.cat([padded, further])


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


class Packings:
    """The packings made during one export, found by their ``batch_sizes``."""

    def __init__(self) -> None:
        self._known: dict[int, Packing] = {}

    def find(self, batch_sizes: Any) -> Packing | None:
        """Return the packing that these batch sizes belong to."""
        found = self._known.get(id(batch_sizes))
        return found if found is not None and found.batch_sizes is batch_sizes else None

    def pack(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Implement ``torch._VF._pack_padded_sequence``."""
        x = x.transpose(0, 1) if batch_first else x
        packing = Packing.of(lengths, x.shape[0])
        self._known[id(packing.batch_sizes)] = packing
        return packing.pack(x), packing.batch_sizes

    def pad(self, data: torch.Tensor, batch_sizes: Any, batch_first: bool, padding: float, total: Any) -> Any:
        """Implement ``torch._VF._pad_packed_sequence``; ``NotImplemented`` for sequences that were packed elsewhere."""
        packing = self.find(batch_sizes)
        if packing is None:
            return NotImplemented
        padded = packing.padded_to(total, data, padding)
        return padded.transpose(0, 1) if batch_first else padded, packing.lengths

    def size(self, batch_sizes: Any, dim: Any = None) -> Any:
        """Return ``batch_sizes.size(0)``, which is the largest length."""
        packing = self.find(batch_sizes)
        if packing is None or dim != 0:
            return NotImplemented
        assume_total_length(packing.longest)
        return packing.longest

    def first_batch_size(self, batch_sizes: Any, index: Any = None) -> Any:
        """Return ``batch_sizes[0]``, which is the batch size; ``NotImplemented`` for all other items and tensors."""
        packing = self.find(batch_sizes)
        return NotImplemented if packing is None or index != 0 else packing.mask.shape[1]


def assume_total_length(longest: Any) -> None:
    """Assume, while ``pad_packed_sequence(total_length=...)`` compares it, that no sequence is longer.

    torch raises otherwise, and so does a later check.
    """
    caller = inspect.currentframe()
    while caller is not None and caller.f_code is not pad_packed_sequence.__code__:
        caller = caller.f_back
    total = None if caller is None else caller.f_locals["total_length"]
    if total is not None and isinstance(longest, torch.SymInt):
        assume(longest <= total)


def without_packed_checks(original: Callable[..., None]) -> Callable[..., None]:
    """Replace ``check_forward_args`` of recurrent layers, which would specialise the batch size of packed sequences."""

    def check(self: Any, input: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            original(self, input, hidden, batch_sizes)

    return check
