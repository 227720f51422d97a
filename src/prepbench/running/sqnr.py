"""SQNR: the distance of a result from its reference, in dB. All reports of SQNR use this file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.running.nested_values import paths


@dataclass(frozen=True)
class Powers:
    """The power of a signal and of its noise. Add those of several batches, then take the SQNR once.

    Attributes:
        signal: sum of the squares of the reference.
        noise: sum of the squares of the difference; infinite where one of the two is NaN or infinite and the other is
            another value.
    """

    signal: float = 0.0
    noise: float = 0.0

    def __add__(self, other: Powers) -> Powers:
        return Powers(self.signal + other.signal, self.noise + other.noise)

    @property
    def noise_to_signal(self) -> float:
        """The ratio of the powers: 0 without noise, infinite for noise without a signal."""
        if self.noise == 0:
            return 0.0
        return self.noise / self.signal if self.signal else math.inf

    @property
    def decibels(self) -> float:
        """The SQNR in dB: ``inf`` without noise, ``-inf`` for noise without a signal."""
        ratio = self.noise_to_signal
        if ratio == 0:
            return math.inf
        return -10 * math.log10(ratio) if math.isfinite(ratio) else -math.inf


def decibels_text(value: float) -> str:
    """Return an SQNR in dB, rounded down, so that one below a floor is never shown as the floor itself.

    Example:
        >>> decibels_text(19.9999)
        '19.99'
    """
    return f"{math.floor(value * 100) / 100:.2f}" if math.isfinite(value) else str(value)


def sqnr(reference: Any, result: Any) -> float:
    """Return the signal-to-quantization-noise ratio of ``result`` in dB: larger is better.

    ``10 log10(sum(reference**2) / sum((reference - result)**2))`` over all numbers of all tensors, added in double
    precision.

    Equal values give ``inf``; an infinity equals itself, and so does NaN. A NaN or an infinity in one of the two, where
    the other holds another value, gives ``-inf``, the worst SQNR. So does a difference from a reference that is zero
    throughout. Infinities and NaNs that both share are left out of the sums. Integers count as numbers, ``False`` as 0
    and ``True`` as 1; dtypes may differ.

    Args:
        reference: a tensor, a number, or tuples, dicts and objects with those inside.
        result: the same structure, with tensors of the same shapes.

    Raises:
        ValueError: the structures or the shapes differ (the message names the place), or there is no number at all.

    Example:
        >>> round(sqnr(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])), 1)
        27.0
        >>> sqnr(torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]))
        -inf
    """
    return powers(reference, result).decibels


def powers(reference: Any, result: Any) -> Powers:
    """Return the two sums that :func:`sqnr` divides; it takes and raises the same."""
    expected, found = _tensors(reference), _tensors(result)
    if different := sorted(expected.keys() ^ found.keys()):
        place = different[0]
        holder, other = ("reference", "result") if place in expected else ("result", "reference")
        raise ValueError(
            f"The {holder} has a value at {_named(place)} and the {other} has none. Compare values of one structure."
        )
    if not expected:
        raise ValueError(f"A {type(reference).__name__} without tensors or numbers in it has no SQNR.")
    total = Powers()
    for place, tensor in expected.items():
        if tensor.shape != found[place].shape:
            raise ValueError(
                f"Shapes differ at {_named(place)}: {tuple(tensor.shape)} in the reference, "
                f"{tuple(found[place].shape)} in the result. Compare tensors of one shape."
            )
        total += _powers(tensor, found[place])
    return total


def _tensors(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors and numbers in ``value`` by path; all else is left out."""
    found: dict[str, torch.Tensor] = {}
    for path, leaf in pytree.tree_leaves_with_path(value):
        place = pytree.keystr(path)
        if isinstance(leaf, bool | int | float | complex):
            found[place] = torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
            continue
        for steps, tensor in paths(leaf):
            found[place + "".join(f"[{key!r}]" if kind == "item" else f".{key}" for kind, key in steps)] = tensor
    return found


def _named(place: str) -> str:
    return f"value{place}"


def _powers(reference: torch.Tensor, result: torch.Tensor) -> Powers:
    reference, result = reference.detach(), result.detach().to(reference.device)
    if reference.dtype == result.dtype == torch.float32:
        # without copies in double precision: float32 loses nothing that counts in one subtraction
        quick = Powers(_square_sum(reference), _square_sum(result - reference))
        if math.isfinite(quick.signal + quick.noise):
            return quick
    same = (reference == result) | ((reference != reference) & (result != result))
    wide = torch.complex128 if reference.is_complex() or result.is_complex() else torch.float64
    difference = torch.where(same, 0.0, result.to(wide) - reference.to(wide)).abs()
    if not (reference.is_floating_point() or reference.is_complex()) and result.dtype == reference.dtype:
        difference = torch.where(same, 0.0, difference.clamp_min(1.0))  # int64 has neighbours that float64 has not
    noise = _square_sum(difference)
    signal = _square_sum(torch.where(reference.isfinite(), reference, 0.0).to(wide).abs())
    return Powers(signal, noise if math.isfinite(noise) else math.inf)


def _square_sum(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2 if values.numel() else 0.0
