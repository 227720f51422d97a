"""A weight in integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


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
        """Return the dequantized values, in the shape of the weight.

        Args:
            weight: any tensor of that shape.
            axis: the axis of output channels.
        """
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
