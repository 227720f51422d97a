"""A weight in integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from prepbench.patching import warnings_ignored_here


@dataclass(frozen=True)
class QuantizedRows:
    """A weight in integers.

    Attributes:
        integers: int8, a row for each scale, as :func:`rows_of` orders them.
        scale: float32, one for each row.
        zero_point: int64, likewise.
    """

    integers: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence[QuantizedRows]) -> QuantizedRows:
        """Join the rows of several parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            torch.cat([part.integers for part in parts]),
            torch.cat([part.scale for part in parts]),
            torch.cat([part.zero_point for part in parts]),
        )

    def floats(self, weight: torch.Tensor, axis: int) -> torch.Tensor:
        """Return the dequantized values in the shape of ``weight``, whose output channels lie along ``axis``."""
        values = self.integers.float()
        if bool(self.zero_point.any()):
            values -= self.zero_point[:, None]
        values *= self.scale[:, None]
        if len(self.scale) == 1 and self.integers.numel() == weight.numel():
            return values.reshape(weight.shape)
        return values.reshape(weight.movedim(axis, 0).shape).movedim(0, axis).contiguous()


@dataclass(frozen=True)
class PackedRows:
    """Rows packed into as few bytes as possible.

    Attributes:
        numbers: the integers; of 4 bits and fewer, uint8 with the even places in the low half of each byte.
        shape: of the integers.
        scale: float32, one for each row.
        zero_point: int8, likewise; None for none.
    """

    numbers: torch.Tensor
    shape: torch.Size
    scale: torch.Tensor
    zero_point: torch.Tensor | None

    @classmethod
    def of(cls, rows: QuantizedRows, bits: int) -> PackedRows:
        """Pack rows whose integers have this many bits."""
        numbers = rows.integers
        if bits <= 4 and numbers.numel() % 2 == 0:
            pairs = numbers.view(torch.uint8).reshape(-1, 2)
            numbers = (pairs[:, 0] & 15) | (pairs[:, 1] << 4)
        zero_point = rows.zero_point.to(torch.int8) if bool(rows.zero_point.any()) else None
        return cls(numbers, rows.integers.shape, rows.scale, zero_point)

    def unpacked(self) -> QuantizedRows:
        """Return the unpacked rows."""
        integers = self.numbers
        if integers.dtype == torch.uint8:
            signed, pairs = integers.view(torch.int8), torch.empty(len(integers), 2, dtype=torch.int8)
            # shifted to the top and back, which repeats the sign
            torch.bitwise_right_shift(signed << 4, 4, out=pairs[:, 0])
            torch.bitwise_right_shift(signed, 4, out=pairs[:, 1])
            integers = pairs.reshape(self.shape)
        zero_point = torch.zeros(()).expand(len(self.scale)) if self.zero_point is None else self.zero_point
        return QuantizedRows(integers, self.scale, zero_point.to(torch.int64))


# Weights with a scale for each block of inputs: one operator, which targets translate or decompose.


Program = torch.export.ExportedProgram


def dequantize_blocks_reference(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    """Compute ``prepbench::dequantize_blocks`` in operators of PyTorch.

    Args:
        q: int8 of shape (out, in).
        scale: float32 of shape (out, in / block_size).
        zero_point: int8 of the shape of ``scale``, or None for none.
        block_size: inputs that share a scale.
        bits: bits of the integers, which decides how a target stores them.

    Returns:
        float32 of shape (out, in).
    """
    blocks = q.to(scale.dtype).reshape(scale.shape[0], scale.shape[1], block_size)
    if zero_point is not None:
        blocks = blocks - zero_point.to(scale.dtype).unsqueeze(-1)
    return (blocks * scale.unsqueeze(-1)).reshape(q.shape)


@torch.library.custom_op("prepbench::dequantize_blocks", mutates_args=())
def dequantize_blocks(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    """The operator; see :func:`dequantize_blocks_reference`."""
    blocks = q.to(scale.dtype).reshape(scale.shape[0], scale.shape[1], block_size)
    if zero_point is not None:
        blocks -= zero_point.to(scale.dtype).unsqueeze(-1)
    return blocks.mul_(scale.unsqueeze(-1)).reshape(q.shape)


@dequantize_blocks.register_fake
def _(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int, bits: int
) -> torch.Tensor:
    return torch.empty(q.shape, dtype=scale.dtype, device=q.device)


OPERATOR = torch.ops.prepbench.dequantize_blocks.default


def decompose_blocks(program: Program) -> Program:
    """Replace ``dequantize_blocks`` by plain operators, for targets that have no kernel for it."""
    if not any(node.target is OPERATOR for node in program.graph.nodes):
        return program
    with warnings_ignored_here():  # torch warns about its own internals
        decomposed: Program = program.run_decompositions({OPERATOR: dequantize_blocks_reference})
    return decomposed
