"""Fake quantizers for training: they round as a compile does, gradients pass through them, and ranges keep adapting."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import WeightScheme, clipped_qparams, integers, rows_of, weight_clips

# in training, every how many calls the range of a value is looked at, and how much of it is believed
_EVERY = 4
_BELIEVED = 0.05
# in training, after how many calls the best clipping of a weight is looked for again
_CLIPS_EVERY = 200


class ActivationQuantizer(nn.Module):
    """Rounds the values that pass through. In training mode its range follows them, by a moving average.

    Gradients pass unchanged within the range, and not at all beyond it.

    Source: Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko, "Quantization and Training of Neural Networks
    for Efficient Integer-Arithmetic-Only Inference", 2017, section 3.1.

    Args:
        observer: an ``ActivationObserver``, calibrated or fresh, with the method by which the range is learned.
    """

    def __init__(self, observer: Any) -> None:
        super().__init__()
        self._observer = [observer]  # in a list, because it is a module, too, whose mode and state are of no interest
        known: tuple[float, float] = observer._range() if observer.finite else (math.inf, -math.inf)
        self.low, self.high = known
        self._calls = 0
        self._seen = 0
        self._is_calibrated = bool(observer.finite)
        self._known: tuple[tuple[float, float], float, int] | None = None

    @property
    def is_learned(self) -> bool:
        """Whether it has a range."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, tensors of one element."""
        found: tuple[torch.Tensor, torch.Tensor] = self._observer[0]._of_range(self.low, self.high)
        return found

    def state(self) -> Any:
        """Return the learned range, for :meth:`take`."""
        return self.low, self.high

    def take(self, state: Any) -> None:
        """Restore a learned range."""
        self.low, self.high = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.numel():
            if self._calls % _EVERY == 0:
                self._follow(x.detach())
            self._calls += 1
        if not self.is_learned:
            return x
        if self._known is None or self._known[0] != (self.low, self.high):
            scale, zero_point = self.qparams()
            self._known = (self.low, self.high), float(scale), int(zero_point)
        observer, (_, step, zero) = self._observer[0], self._known
        return torch.fake_quantize_per_tensor_affine(x, step, zero, observer.quant_min, observer.quant_max)

    def _follow(self, x: torch.Tensor) -> None:
        observer = self._observer[0]
        if observer.method == "minmax":
            low, high = torch.stack(torch.aminmax(x)).tolist()
        else:
            observer.forget()
            observer._observe(x)
            low, high = observer._range() if observer.finite else (math.nan, math.nan)
        if not (math.isfinite(low) and math.isfinite(high)):
            return  # a diverged step gives no usable range
        if not self.is_learned:
            self.low, self.high = low, high
        else:
            share = _BELIEVED if self._is_calibrated else max(_BELIEVED, 1 / (self._seen + 1))
            self.low += share * (low - self.low)
            self.high += share * (high - self.high)
        self._seen += 1


class WeightQuantizer(nn.Module):
    """Rounds a weight. Scales follow the weight; the clipping of each row's range is optimized from time to time.

    Args:
        scheme: bits, blocks, symmetry; rounds to nearest whatever its algorithm.
        axis: the axis of output channels.
    """

    def __init__(self, scheme: WeightScheme, axis: int) -> None:
        super().__init__()
        self.scheme = scheme
        self.axis = axis
        self._clips: list[torch.Tensor] = []
        self._calls = 0

    def state(self) -> Any:
        """Return the current clipping of ranges, for :meth:`take`."""
        return list(self._clips)

    def take(self, state: Any) -> None:
        """Restore the clipping of ranges."""
        self._clips = list(state)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        if self.training:
            if self._calls % _CLIPS_EVERY == 0:
                self._clips.clear()
            self._calls += 1
        rows = rows_of(weight, self.axis, self.scheme)
        found = self._rounded(rows, *self._qparams(rows, weight))
        if rows.numel() == weight.numel() and (weight.ndim < 2 or self.axis == 0 or not self.scheme.per_channel):
            return found.reshape(weight.shape)
        return found.reshape(weight.movedim(self.axis, 0).shape).movedim(0, self.axis)

    @torch.no_grad()
    def rows(self, weight: torch.Tensor) -> QuantizedRows:
        """Return the weight in integers, as :meth:`forward` rounds it."""
        rows = rows_of(weight.detach().float(), self.axis, self.scheme)
        scale, zero_point = self._qparams(rows, weight)
        # torch multiplies by the reciprocal of the scale, which takes numbers halfway between two integers, such as the
        # largest of a row, to another one than a division does
        rounded = self._rounded(rows, scale, zero_point)
        return QuantizedRows(integers(rounded, scale, zero_point, self.scheme), scale, zero_point)

    def _rounded(self, rows: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
        low, high = self.scheme.limits
        if len(scale) == 1:
            whole = (scale.reshape(()), zero_point.to(torch.int32).reshape(()))
            return torch.fake_quantize_per_tensor_affine(rows, *whole, low, high)
        return torch.fake_quantize_per_channel_affine(rows, scale, zero_point.to(torch.int32), 0, low, high)

    @torch.no_grad()
    def _qparams(self, rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.scheme.least_error:
            return clipped_qparams(rows, self.scheme, None)
        if not self._clips:
            clips = weight_clips(weight, self.axis, self.scheme)
            assert clips is not None
            self._clips.append(clips)
        return clipped_qparams(rows, self.scheme, self._clips[0].to(rows.device))
