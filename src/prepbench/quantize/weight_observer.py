"""The observer of weights. Importing this module loads torchao, so it is imported where it is first needed."""

from __future__ import annotations

from typing import Any

import torch

from prepbench.quantize._torchao import pt2e
from prepbench.quantize.weights import WeightScheme, rounded, weight_qparams


class WeightObserver(pt2e().ObserverBase):  # type: ignore[misc]
    """Reads a weight once and gives its integers for any scheme. It has the modes of ``ActivationObserver``."""

    def __init__(
        self, scheme: WeightScheme | None = None, ch_axis: int | None = None, dtype: Any = torch.int8, **_: Any
    ) -> None:
        super().__init__(dtype=dtype)
        self.mode = "observe"
        self.axis = ch_axis or 0
        self.scheme = scheme if scheme is not None else WeightScheme()
        self.weight: torch.Tensor | None = None
        self._qparams: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rounded: torch.Tensor | None = None
        self._least_scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight is None:
            self.weight = x.detach()
        return self.simulate(x) if self.mode == "simulate" else x

    def take(self, scheme: WeightScheme) -> None:
        """Use another scheme from now on."""
        self.scheme, self._qparams, self._rounded = scheme, None, None

    def widen(self, least_scale: torch.Tensor) -> None:
        """Raise scales that are smaller than these, which are one for each channel."""
        scale, zero_point = self.calculate_qparams()
        least = least_scale if len(scale) == len(least_scale) else least_scale.max().expand_as(scale)
        self._qparams, self._rounded = (torch.maximum(scale, least), zero_point), None

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and zero points, a vector of one for each row of :func:`rows_of`."""
        assert self.weight is not None
        if self._qparams is None:
            self._qparams = weight_qparams(self.weight, self.axis, self.scheme)
        return self._qparams

    def simulate(self, x: torch.Tensor) -> torch.Tensor:
        """The weight after quantizing and dequantizing."""
        self.weight = x.detach() if self.weight is None else self.weight
        if self._rounded is None:
            self._rounded = rounded(self.weight, self.axis, self.scheme, self.calculate_qparams())
        return self._rounded

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
