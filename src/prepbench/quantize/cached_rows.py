"""A cache of the integers of a weight by scheme."""

from __future__ import annotations

import torch

from prepbench.quantize.hessian import InputHessian
from prepbench.quantize.rounding import quantized_rows
from prepbench.quantize.rows import PackedRows, QuantizedRows
from prepbench.quantize.weights import WeightScheme


class CachedRows:
    """The integers of one weight for each requested scheme, computed once; all its observers share them.

    Attributes:
        weight: the weight, once it was read.
        hessian: of the inputs that it is multiplied by, while they are known.
    """

    def __init__(self) -> None:
        self.weight: torch.Tensor | None = None
        self.hessian: InputHessian | None = None
        self._rows: dict[tuple[int, WeightScheme], PackedRows] = {}

    def rows(self, axis: int, scheme: WeightScheme) -> QuantizedRows:
        """Return the weight in integers.

        Args:
            axis: the axis of output channels.
            scheme: of the weight.
        """
        assert self.weight is not None
        if (axis, scheme) not in self._rows:
            found = quantized_rows(self.weight, axis, scheme, self.hessian)
            self._rows[axis, scheme] = PackedRows.of(found, scheme.bits)
        return self._rows[axis, scheme].unpacked()

    def fixed(self, axis: int, scheme: WeightScheme, rows: QuantizedRows) -> CachedRows:
        """Return the same weight with integers that were computed elsewhere."""
        other = CachedRows()
        other.weight = self.weight
        other._rows[axis, scheme] = PackedRows.of(rows, scheme.bits)
        return other
