"""Compare results of calls: the one judgement of equality, and SQNR, the distance of a result from its reference.

All checks of a changed model's results, and all reports of SQNR, use this file.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat import pytree
from prepbench.objects.flatten import paths
from prepbench.objects.parts import NO_DATA, PLAIN, SYMBOLS, Step, attributes, expression, items

# SQNR, in dB.


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


# Equality of two tensors within tolerances: the first difference, and its size.


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
class _Comparison:
    """Compares two values part by part, and records the largest differences of tensors."""

    closeness: Closeness
    largest: float = 0.0
    relative: float = 0.0
    has_broadcast: bool = False

    def measured(self, found: Difference) -> Difference:
        """Return ``found`` with the recorded measurements."""
        return replace(found, largest=self.largest, relative=self.relative, has_broadcast=self.has_broadcast)

    def first(self, one: Any, other: Any, path: str) -> Difference | None:
        """Return the first difference of two values."""
        # pairs that were met, kept alive because an id is valid only as long as its object
        met: dict[tuple[int, int], tuple[Any, Any]] = {}
        waiting = [(path, one, other)]
        while waiting:
            path, one, other = waiting.pop()
            arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            if arrays and one.dtype.kind == other.dtype.kind != "O":
                one, other = torch.as_tensor(one.copy()), torch.as_tensor(other.copy())
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                found = next(self.compare(one, other, path), None)
            elif not _are_alike(one, other):
                found = Difference(path, _described(one), _described(other))
            elif isinstance(one, PLAIN):
                found = self._plain(one, other, path)
            elif one is other or isinstance(one, NO_DATA) or (id(one), id(other)) in met:
                continue
            else:
                met[id(one), id(other)] = one, other
                mine, theirs = _inside(one), _inside(other)
                found = _outline(one, other, mine, theirs, path)
                waiting += [(expression(path, (at,)), mine[at], theirs.get(at)) for at in reversed(mine)]
            if found is not None:
                return found
        return None

    def _plain(self, one: Any, other: Any, path: str) -> Difference | None:
        if isinstance(one, float | complex):
            left, right = (torch.tensor(value, dtype=torch.complex128) for value in (one, other))
            is_equal = next(self.compare(left, right, path), None) is None
        else:
            is_equal = one == other
        return None if is_equal else Difference(path, repr(one), repr(other))

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


EXACT = Closeness()
ROUNDED = Closeness(
    tolerances={torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}, floor=1e-3
)
"""The same operations, perhaps in other kernels: what a captured program may differ by."""

REWRITTEN = Closeness(tolerances={torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1})
"""Other operations that compute the same, in the same kernels: what a prepared or fixed model may differ by."""

GRADIENTS = replace(REWRITTEN, floor=1e-2)
"""Gradients of results of about 1: what rounding leaves where others cancel, such as 2e-8 in place of 0, is equal."""


@dataclass(frozen=True)
class Outcome:
    """All effects of one call: its output, and the values of the caller's tensors and of the model's buffers after it.

    ``inputs`` holds the tensors that were given, by place; ``buffers`` those of the model, by name.
    """

    output: Any
    inputs: dict[int, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def difference(expected: Any, got: Any, closeness: Closeness = EXACT, name: str = "output") -> Difference:
    """Compare two results of a call and return the first difference.

    Structure, number and order of values, shapes, dtypes, strings and non-tensor numbers must be equal. NaN and
    infinities must be at the same places. ``closeness`` has the tolerances of floating-point numbers, and of some
    integers and bools. Containers, registered pytree classes and the attributes of other objects are walked; devices,
    strides and gradients are not compared.

    Args:
        expected: the right one: a result, or an :class:`Outcome`, whose buffers and caller's tensors count too.
        got: the one to compare.
        closeness: the tolerances; nothing by default, so that even -0.0 is not 0.0.
        name: the name of the result in the answer.

    Returns:
        A :class:`Difference`. Its ``equal`` is true, or it holds the path, what was expected there, and what is there.

    Example:
        >>> difference((torch.ones(2), "a"), (torch.ones(2), "b")).text
        "output[1]: expected 'a', got 'b'"
        >>> difference([torch.tensor([1.0])], [torch.tensor([float("nan")])], ROUNDED).text
        'output[0] at (0,): expected 1, got nan'
    """
    pairs = [(name, expected, got)]
    if isinstance(expected, Outcome):
        pairs = [
            (name, expected.output, got.output),
            ("after the call, the caller's tensor ", expected.inputs, got.inputs),
            ("after the call, buffer ", expected.buffers, got.buffers),
        ]
    comparison = _Comparison(closeness)
    found = next((first for path, one, other in pairs if (first := comparison.first(one, other, path))), None)
    return comparison.measured(found or Difference())


def _inside(value: Any) -> dict[Step, Any]:
    """Return the parts of a value that are compared."""
    if isinstance(value, Mapping):
        return {("item", key): part for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return dict(items(value))
    if type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
        return {("item", number): part for number, part in enumerate(children)}
    return {("attr", name): part for name, part in attributes(value).items()}


def _outline(one: Any, other: Any, mine: dict[Step, Any], theirs: dict[Step, Any], path: str) -> Difference | None:
    """Return how two values differ in which parts they have, or as a whole if they have none."""
    if isinstance(one, Mapping | np.ndarray):
        for at in [*mine, *theirs]:
            if (at in mine) != (at in theirs):
                left, right = (_described(side[at]) if at in side else "nothing" for side in (mine, theirs))
                return Difference(expression(path, (at,)), left, right)
        if isinstance(one, OrderedDict) and list(one) != list(other):
            return Difference(path, f"the order {list(one)}", f"the order {list(other)}")
    elif isinstance(one, list | tuple) or type(one) in pytree.SUPPORTED_NODES:
        return Difference(path, _counted(mine), _counted(theirs)) if len(mine) != len(theirs) else None
    elif not mine and _has_equality(one) and one != other:
        return Difference(path, repr(one), repr(other))
    return None


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two values are of one kind; a subclass of the expected class is accepted."""
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    if isinstance(one, SYMBOLS):
        return isinstance(other, (int, float, *SYMBOLS))
    return isinstance(other, tuple if isinstance(one, torch.Size) else type(one))


def _has_equality(value: object) -> bool:
    return getattr(type(value), "__eq__", None) is not getattr(object, "__eq__", None)


def _counted(values: Mapping[Any, Any]) -> str:
    kinds = ", ".join(_described(value) for value in list(values.values())[:4])
    return f"{len(values)} values ({kinds}{', ...' if len(values) > 4 else ''})"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)} {value.dtype}"
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return repr(value)
    return type(value).__name__
