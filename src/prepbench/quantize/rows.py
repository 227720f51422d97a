"""A weight in integers, and what is known about the inputs that it is multiplied by."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class InputMoments:
    """What the inputs of a layer were on samples.

    Attributes:
        products: of shape (in, in), the sum over all positions of each input with each other.
        count: how many positions were added.
    """

    products: torch.Tensor
    count: int

    @property
    def power(self) -> torch.Tensor:
        """The mean square of each input, of shape (in,)."""
        return self.products.diag() / max(1, self.count)


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

    def floats(self, weight: torch.Tensor, axis: int) -> torch.Tensor:
        """What the integers stand for, in the shape of the weight.

        Args:
            weight: any tensor of that shape.
            axis: the axis of output channels.
        """
        values = (self.integers.float() - self.zero_point[:, None]) * self.scale[:, None]
        if len(self.scale) == 1 and self.integers.numel() == weight.numel():
            return values.reshape(weight.shape)
        return values.reshape(weight.movedim(axis, 0).shape).movedim(0, axis).contiguous()
