"""The observers of activations and weights. Importing this module loads torchao: import it where it is first needed."""

from __future__ import annotations

import math
from typing import Any

import torch

from prepbench._torchao_compat import pt2e
from prepbench.jobs import check_cancelled
from prepbench.quantize.rounding import CachedRows
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme, integers, rows_of
from prepbench.settings.numbers import INT8

# how many values of one batch are kept for observers that need more than the extremes, and how many of all batches
_KEPT_OF_A_BATCH = 2**13
_KEPT = 2**15
# Ends of ranges are what many values are (backgrounds, what was clamped), and often lie in the middle between two
# integers, where runtimes round one way or the other. With few integers that is a large difference.
_OFF_HALVES = 1 + 2.0**-10


class ActivationObserver(pt2e().UniformQuantizationObserverBase):  # type: ignore[misc]
    """Learns the range of the values that pass through, and gives one scale and zero point for all of them.

    In its ``mode`` of ``"observe"`` it learns from a value, in that of ``"pass"`` it does nothing.

    Args:
        method: ``"minmax"``, ``"percentile"`` or ``"mse"``.
        percentile: for ``"percentile"``, how much of the values stays within the range, in percent.
        in_middle: the zero point is the middle of the integers unless no value is negative.
    """

    def __init__(
        self, method: str = "minmax", percentile: float = 99.99, in_middle: bool = False, **keywords: Any
    ) -> None:
        super().__init__(eps=EPSILON, **keywords)
        self.method = method
        self.percentile = percentile
        self.in_middle = in_middle
        self.mode = "observe"
        self.forget()

    def forget(self) -> None:
        """Reset the learned range."""
        self.low, self.high = math.inf, -math.inf
        self._kept: list[torch.Tensor] = []
        self._qparams: tuple[torch.Tensor, torch.Tensor] | None = None

    def learned(self) -> tuple[float, float, tuple[torch.Tensor, ...]]:
        """Return the learned state, for :meth:`recall`."""
        return self.low, self.high, tuple(self._kept)

    def recall(self, learned: tuple[float, float, tuple[torch.Tensor, ...]]) -> None:
        """Adopt the state that another observer learned from the same values."""
        self.forget()
        self.low, self.high, self._kept = learned[0], learned[1], list(learned[2])

    def fix(self, low: float, high: float) -> None:
        """Set a range that was learned elsewhere, whatever the method."""
        self.forget()
        self.low, self.high = low, high
        self._qparams = self._of_range(low, high)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_cancelled()
        if self.mode == "observe" and x.numel():
            self._observe(x.detach())
        return x

    def _observe(self, x: torch.Tensor) -> None:
        low, high = (float(value) for value in torch.aminmax(x))
        # NaN is kept, so that it is found
        self.low = low if math.isnan(low) else min(self.low, low)
        self.high = high if math.isnan(high) else max(self.high, high)
        self._qparams = None
        if self.method != "minmax":
            # in the order of memory, which copies nothing; any order will do for statistics
            flat = x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).flatten()
            self._kept.append(flat[:: _step(x)].float().clone())
            if sum(map(len, self._kept)) > _KEPT:
                self._kept = [torch.cat(self._kept)[::2]]

    @property
    def finite(self) -> bool:
        """Whether values were seen, and all of them finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def simulate(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize ``x``."""
        if not self.finite:
            return x
        scale, zero_point = self.calculate_qparams()
        return torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), self.quant_min, self.quant_max)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, tensors of one element."""
        if not self.finite:  # nothing ever passed: a branch that calibration did not take
            return torch.ones(1), torch.zeros(1, dtype=torch.int64)
        if self._qparams is None:
            self._qparams = self._of_range(*self._range())
        return self._qparams

    def represented(self) -> tuple[float, float]:
        """Return the smallest and the largest value that the integers represent."""
        scale, zero_point = (float(value) for value in self.calculate_qparams())
        return (self.quant_min - zero_point) * scale, (self.quant_max - zero_point) * scale

    def _of_range(self, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = self._in_steps(low, high)
        is_coarse = self.quant_max - self.quant_min < INT8.steps
        return scale * _OFF_HALVES if is_coarse else scale, zero_point

    def _in_steps(self, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
        if self.in_middle and low < 0:
            below = (self.quant_max - self.quant_min + 1) // 2
            scale = max(-low / below, high / (below - 1), EPSILON)
            return torch.tensor([scale]), torch.tensor([self.quant_min + below])
        result: tuple[torch.Tensor, torch.Tensor] = self._calculate_qparams(torch.tensor(low), torch.tensor(high))
        return result

    def _range(self) -> tuple[float, float]:
        if self.method == "minmax":
            return self.low, self.high
        values = torch.cat(self._kept)
        if self.method == "percentile":
            tail = (1 - self.percentile / 100) / 2
            low, high = torch.quantile(values, torch.tensor([tail, 1 - tail])).tolist()
            return low, high
        return self._least_error(values)

    def _least_error(self, values: torch.Tensor) -> tuple[float, float]:
        best, chosen = math.inf, (self.low, self.high)
        for step in range(40):
            clip = 1 - step / 50
            low, high = self.low * clip, self.high * clip
            scale, zero_point = self._of_range(low, high)
            fake = torch.fake_quantize_per_tensor_affine(
                values, float(scale), int(zero_point), self.quant_min, self.quant_max
            )
            error = float((fake - values).square().mean())
            if error < best:
                best, chosen = error, (low, high)
        return chosen


def _step(x: torch.Tensor) -> int:
    """Return n, where every n-th value of ``x`` is kept: coprime to its sizes, so that every channel is sampled."""
    step = max(1, math.ceil(x.numel() / _KEPT_OF_A_BATCH))
    while any(math.gcd(step, size) > 1 for size in x.shape):
        step += 1
    return step


# The observer of weights.


class WeightObserver(pt2e().ObserverBase):  # type: ignore[misc]
    """Reads a weight once and gives its integers for any scheme. It has a mode as all observers do."""

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
        return x

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
