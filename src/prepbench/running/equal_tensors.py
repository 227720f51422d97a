"""Equality of two tensors within tolerances: the first difference, and its size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from prepbench.running.sqnr import decibels_text, sqnr


@dataclass(frozen=True)
class Closeness:
    """The tolerated differences between two results that count as equal.

    Attributes:
        tolerances: the largest difference of two floating-point numbers, relative to the largest number of the
            expected tensor, by dtype (the real one for complex numbers). A dtype that is not named may not differ, not
            even in the sign of zero.
        floor: smaller largest numbers count as this one.
        sqnr: the lowest SQNR of a floating-point tensor in dB; it takes the place of ``tolerances``.
        integers: the share of the integers and bools of a tensor that may differ, where rounding decides them, as in
            ``argmax`` of near ties. Where it is not 0, one of several values may differ.
        broadcasts: whether shapes may differ that broadcast to one shape.
    """

    tolerances: Mapping[torch.dtype, float] = field(default_factory=dict)
    floor: float = 1e-12
    sqnr: float | None = None
    integers: float = 0.0
    broadcasts: bool = False


@dataclass(frozen=True)
class Difference:
    """The first difference of two results; equal if ``path`` is empty.

    Attributes:
        path: the place, e.g. ``"output['logits'] at (0, 3)"``.
        expected: the value there in the right result.
        got: the value there in the other one.
        largest: the largest difference of two floating-point numbers that were compared.
        relative: the largest difference, relative to the largest number of its tensor.
        has_broadcast: whether shapes differ that broadcast to one shape.
    """

    path: str = ""
    expected: str = ""
    got: str = ""
    largest: float = 0.0
    relative: float = 0.0
    has_broadcast: bool = False

    @property
    def equal(self) -> bool:
        """Whether all differences are tolerated."""
        return not self.path

    @property
    def text(self) -> str:
        """The difference as one sentence without its full stop; empty if the results are equal."""
        return f"{self.path}: expected {self.expected}, got {self.got}" if self.path else ""


@dataclass
class TensorComparison:
    """Compares pairs of tensors and records the largest differences."""

    closeness: Closeness
    largest: float = 0.0
    relative: float = 0.0
    has_broadcast: bool = False

    def measured(self, found: Difference) -> Difference:
        """Return ``found`` with the recorded measurements."""
        return replace(found, largest=self.largest, relative=self.relative, has_broadcast=self.has_broadcast)

    def compare(self, one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[Difference]:
        if one.dtype != other.dtype:
            yield Difference(path, str(one.dtype), str(other.dtype))
            return
        if one.is_nested or other.is_nested:
            yield from self._nested(one, other, path)
            return
        if one.shape != other.shape:
            if not self.closeness.broadcasts or not _broadcasts(one, other):
                yield Difference(path, f"the shape {tuple(one.shape)}", f"the shape {tuple(other.shape)}")
                return
            self.has_broadcast = True
            one, other = torch.broadcast_tensors(one, other)
        if one.numel() == 0 or one.device.type == "meta" or other.device.type == "meta":
            return
        one, other = _plain(one), _plain(other).to(one.device)
        if one.dtype.is_floating_point or one.is_complex():
            yield from self._floats(one, other, path)
        else:
            yield from self._integers(one, other, path)

    def _nested(self, one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[Difference]:
        left, right = (list(tensor.unbind()) if tensor.is_nested else [tensor] for tensor in (one, other))
        if len(left) != len(right):
            yield Difference(path, f"{len(left)} nested tensors", f"{len(right)} nested tensors")
        for index, pair in enumerate(zip(left, right, strict=False)):
            yield from self.compare(*pair, f"{path}[{index}]")

    def _integers(self, one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[Difference]:
        if torch.equal(one, other):
            return
        wrong = one != other
        count, share = int(wrong.sum()), self.closeness.integers
        if count > max(share * wrong.numel(), 1 if share and wrong.numel() > 1 else 0):
            yield _at(path, one, other, wrong, f" ({count} of {wrong.numel()} values differ)")

    def _floats(self, one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[Difference]:
        dtype = one.real.dtype if one.is_complex() else one.dtype
        allowed = self.closeness.tolerances.get(dtype, 0.0)
        is_exact = self.closeness.sqnr is None and not allowed
        if not is_exact and torch.equal(one, other):
            return
        left, right = _wide(one), _wide(other)
        finite = left.isfinite() & right.isfinite()
        same = (left == right) | (left.isnan() & right.isnan())
        if is_exact:
            same &= (left.signbit() == right.signbit()) | left.isnan()
        apart = torch.where(finite, left - right, 0.0).abs()
        largest = float(apart.max())
        relative = largest / max(float(torch.where(left.isfinite(), left, 0.0).abs().max()), self.closeness.floor)
        wrong = ~same if is_exact else ~same & ~finite
        special = bool((~same & ~finite).any())
        self.largest = max(self.largest, math.inf if special else largest)
        self.relative = max(self.relative, math.inf if special else relative)
        if bool(wrong.any()):
            yield _at(path, left, right, wrong)
        elif self.closeness.sqnr is not None:
            found = sqnr(left, right)
            if found < self.closeness.sqnr:
                yield Difference(
                    path, f"an SQNR of at least {self.closeness.sqnr:.0f} dB", f"{decibels_text(found)} dB"
                )
        elif relative > allowed:
            what = f" (relative difference {relative:.3g}, allowed {allowed:.0e})"
            yield _at(path, left, right, apart == largest, what)


def _at(path: str, one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor, what: str = "") -> Difference:
    """Return the difference at the first marked place."""
    place = tuple(int(index) for index in torch.nonzero(wrong)[0])
    values = (
        f"{tensor[place].item():.6g}" if tensor.is_floating_point() else f"{tensor[place].item()}"
        for tensor in (one, other)
    )
    expected, got = values
    return Difference(f"{path} at {place}" if place else path, expected, got + what)


def _broadcasts(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor as a strided one."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in double precision; a complex one with one more dim, for real and imaginary part."""
    if not tensor.is_complex():
        return tensor.double()
    return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
