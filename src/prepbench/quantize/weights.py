"""Weight schemes: how a weight is quantized, its scales and zero points, and its integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prepbench.settings import QuantizationSettings, activation_format, weight_formats
from prepbench.settings.numbers import INT8, NumberFormat

# A range of nothing but zeros still needs a scale above zero; a larger bound would round small weights away.
EPSILON = 2.0**-40
# The largest of a row would lie in the middle between two integers, where one division rounds to the one and another to
# the other: what is measured and what is stored would differ by a step.
_OFF_HALVES = 1 - 2.0**-20
_CLIPS = 32
# the meaning of "auto": with 8 bits, with fewer
_BEST = ("nearest", "gptq")


@dataclass(frozen=True)
class WeightScheme:
    """How one weight is quantized.

    Attributes:
        format: of the numbers; one of floating point has no zero points.
        symmetric: no zero points.
        full_range: whether symmetric integers include -128 (or -8).
        per_channel: a scale for each output channel, otherwise one for all.
        block_size: inputs that share a scale; 0 is all of a channel. Needs a matrix with output channels first.
        least_error: take the range with the least squared error instead of the whole one.
        reduce_range: use 7 of 8 bits, so that sums of products fit into 16 bits (the name in torch and ONNX Runtime).
        algorithm: how integers are found, see :func:`prepbench.quantize.rounding.quantized_rows`.
        multiplies_in_float: the layer computes with the dequantized weights, although its settings quantize its
            activations. Only layers that find the ranges of these in each call have the choice.
    """

    format: NumberFormat = INT8
    symmetric: bool = True
    full_range: bool = True
    per_channel: bool = True
    block_size: int = 0
    least_error: bool = False
    reduce_range: bool = False
    algorithm: str = "nearest"
    multiplies_in_float: bool = False

    @classmethod
    def of(cls, settings: QuantizationSettings, *, reduce_range: bool = False) -> WeightScheme:
        """Return the scheme for settings with one number of bits and one block size (see
        ``QuantizationSettings.candidates``).

        Weights of few bits lose little at the edge of their range and much within it, so with fewer than 8 bits the
        range of least error is taken whatever the observer. With ``reduce_range``, 8-bit weights leave a bit unused
        where activations have 8 bits too.
        """
        (kind,), block_size = weight_formats(settings), settings.weights_only_quantization_block_size
        assert isinstance(block_size, int)
        return cls(
            kind,
            settings.weights_symmetric or kind.is_float,
            settings.weights_utilize_full_int_range,
            settings.per_channel,
            block_size if settings.prefer_weights_only_quantization else 0,
            settings.observer == "mse" or kind.bits < INT8.bits,
            reduce_range and kind == activation_format(settings) == INT8,
            _algorithm(settings, kind),
        )

    @property
    def bits(self) -> int:
        """Return the bits of each integer."""
        return self.format.bits

    @property
    def limits(self) -> tuple[int, int]:
        """Return the smallest and largest number."""
        top = int(self.format.high) >> self.reduce_range
        if self.format.is_float:
            return -top, top
        return (-top if self.symmetric and not self.full_range else -top - 1), top

    @property
    def in_blocks(self) -> bool:
        """Whether ``dequantize_blocks`` reads the weight, because torch's own operators cannot."""
        return self.block_size > 0 or self.format.is_float

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Round values, in units of their scales, to numbers of the format, in place."""
        values.clamp_(*self.limits) if self.format.is_float else values.round_().clamp_(*self.limits)
        return values.copy_(values.to(self.format.dtype)) if self.format.is_float else values

    def fits(self, weight: torch.Tensor, axis: int) -> bool:
        """Return whether the weight can be cut into blocks of this size."""
        return self.block_size == 0 or (weight.ndim == 2 and axis == 0 and weight.shape[1] % self.block_size == 0)


def _algorithm(settings: QuantizationSettings, kind: NumberFormat) -> str:
    if kind.is_float:
        return _BEST[0]  # the others search among integers
    return _BEST[kind.bits < INT8.bits] if settings.weights_algorithm == "auto" else settings.weights_algorithm


def rows_of(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> torch.Tensor:
    """Return the weight as a matrix with a row for each scale; rows of blocks come channel by channel."""
    if not scheme.per_channel and scheme.block_size == 0:
        return weight.reshape(1, -1)
    rows = weight.movedim(axis, 0).flatten(1) if weight.ndim > 1 else weight.reshape(-1, 1)
    return rows.reshape(-1, scheme.block_size) if scheme.block_size else rows


@torch.no_grad()
def weight_qparams(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, importance: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point of each row of :func:`rows_of`: two vectors, float32 and int64.

    Args:
        weight: in its own shape.
        axis: the axis of output channels.
        scheme: bits, blocks, and whether the range of least error is taken; with an importance, it is.
        importance: how much the squared error of each weight counts, in the shape of the weight; alike when left out.
    """
    clips = weight_clips(weight, axis, scheme, importance)
    return clipped_qparams(rows_of(weight.detach().float(), axis, scheme), scheme, clips)


@torch.no_grad()
def weight_clips(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, importance: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return the share of its range that each row keeps for the least error, from 0 to 1; None for all of it."""
    counts = None if importance is None else rows_of(importance, axis, scheme)
    if not scheme.least_error and counts is None:
        return None
    rows = rows_of(weight.detach().float(), axis, scheme)
    low, high = torch.aminmax(rows, dim=1)
    best = _row_error(rows, *_from_range(low, high, scheme), scheme, counts)
    clips = torch.ones_like(low)
    for step in range(1, _CLIPS):
        clip = 1 - 0.6 * step / _CLIPS
        error = _row_error(rows, *_from_range(low * clip, high * clip, scheme), scheme, counts)
        better = error < best
        best = torch.where(better, error, best)
        clips = torch.where(better, torch.full_like(clips, clip), clips)
    return clips


@torch.no_grad()
def clipped_qparams(
    rows: torch.Tensor, scheme: WeightScheme, clips: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point of each row whose range is clipped as :func:`weight_clips` says."""
    low, high = torch.aminmax(rows, dim=1)
    return _from_range(low, high, scheme) if clips is None else _from_range(low * clips, high * clips, scheme)


def integers(rows: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """Return the rows as numbers of the scheme's format, integers but for a floating-point one."""
    values = rows / scale[:, None]
    if not scheme.symmetric:
        values = values.round_().add_(zero_point[:, None])
    return scheme.rounded(values).to(scheme.format.dtype)


def _from_range(low: torch.Tensor, high: torch.Tensor, scheme: WeightScheme) -> tuple[torch.Tensor, torch.Tensor]:
    smallest, largest = scheme.limits
    low, high = low.clamp(max=0), high.clamp(min=0)
    if scheme.symmetric:
        scale = (torch.maximum(-low, high) / ((largest - smallest) / 2)).clamp(min=EPSILON)
        if scheme.full_range and not scheme.format.is_float:
            scale = scale * _OFF_HALVES
        return scale, torch.zeros_like(scale, dtype=torch.int64)
    scale = ((high - low) / (largest - smallest)).clamp(min=EPSILON)
    zero_point = (smallest - (low / scale).round()).clamp(smallest, largest)
    return scale, zero_point.to(torch.int64)


def _row_error(
    rows: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, scheme: WeightScheme, counts: torch.Tensor | None
) -> torch.Tensor:
    errors = rows / scale[:, None]
    if scheme.symmetric:
        scheme.rounded(errors)
    else:
        zero_point = zero_point[:, None].to(torch.float32)
        scheme.rounded(errors.round_().add_(zero_point)).sub_(zero_point)
    squares = errors.mul_(scale[:, None]).sub_(rows).square_()
    return squares.sum(1) if counts is None else squares.mul_(counts).sum(1)
