"""The observer of weights. Importing this module loads torchao, so it is imported where it is first needed."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torchao_compat import pt2e
from prepbench.quantize.cached_rows import CachedRows
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import WeightScheme, integers, rows_of


class WeightObserver(pt2e().ObserverBase):  # type: ignore[misc]
    """Reads a weight once and gives its integers for any scheme. It has the modes of ``ActivationObserver``."""

    def __init__(
        self, scheme: WeightScheme | None = None, ch_axis: int | None = None, dtype: Any = torch.int8, **_: Any
    ) -> None:
        super().__init__(dtype=dtype)
        self.mode = "observe"
        self.axis = ch_axis or 0
        self.scheme = scheme if scheme is not None else WeightScheme()
        self.found = CachedRows()
        self._least_scale: torch.Tensor | None = None

    @property
    def weight(self) -> torch.Tensor | None:
        """The weight that it has read."""
        return self.found.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.found.weight is None:
            self.found.weight = x.detach()
        return self.simulate(x) if self.mode == "simulate" else x

    def take(self, scheme: WeightScheme) -> None:
        """Use another scheme from now on."""
        self.scheme, self._least_scale = scheme, None

    def widen(self, least_scale: torch.Tensor) -> None:
        """Raise scales to at least these, one for each channel."""
        self._least_scale = least_scale

    def rows(self) -> QuantizedRows:
        """Return the weight in integers."""
        found, least = self.found.rows(self.axis, self.scheme), self._least_scale
        if least is None:
            return found
        least = least if len(found.scale) == len(least) else least.max().expand_as(found.scale)
        if bool((least <= found.scale).all()):
            return found
        assert self.weight is not None
        scale, rows = torch.maximum(found.scale, least), rows_of(self.weight.float(), self.axis, self.scheme)
        return QuantizedRows(integers(rows, scale, found.zero_point, self.scheme), scale, found.zero_point)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scales and zero points, one for each row of :func:`rows_of`."""
        rows = self.rows()
        return rows.scale, rows.zero_point

    def simulate(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize the weight."""
        if self.found.weight is None:
            self.found.weight = x.detach()
        return self.rows().floats(x, self.axis)

    @property
    def quant_min(self) -> int:
        return self.scheme.limits[0]

    @property
    def quant_max(self) -> int:
        return self.scheme.limits[1]

    @property
    def ch_axis(self) -> int:
        return int(self.axis)

    @property
    def qscheme(self) -> torch.qscheme:
        if not self.scheme.per_channel:
            return torch.per_tensor_symmetric if self.scheme.symmetric else torch.per_tensor_affine
        return torch.per_channel_symmetric if self.scheme.symmetric else torch.per_channel_affine
