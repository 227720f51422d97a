"""Other values for the tensors of a call, so that conditions take their other side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample

Change = Callable[[torch.Tensor], torch.Tensor]

_MOST_COLUMNS = 8


def usual_changes(samples: Sequence[Sample]) -> list[Change]:
    """Changes that are always tried: of floating-point numbers, and of integers within and beside what was seen."""
    return [*_USUAL, *_integer_changes(*_range(samples))]


def changes_apart(samples: Sequence[Sample]) -> list[Change]:
    """Changes that are tried on one tensor of several."""
    low, high = _range(samples)
    return [scaled(-100), scaled(0.01), _floats(_random), partial(_drawn, low=low, high=high)]


def further_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Changes that are tried while a condition has met one side only."""
    low, high = _range(samples)
    for value in (0.5, 2.0, -2.0, 10.0, 1e6, -1e6, torch.nan, torch.inf):
        yield _floats(partial(torch.full_like, fill_value=value))
    yield _floats(lambda t: t.flatten().sort().values.reshape(t.shape))
    yield _floats(lambda t: t.flatten().sort(descending=True).values.reshape(t.shape))
    yield lambda t: t[:1].expand_as(t).clone() if t.dim() else t
    yield _floats(lambda t: t + 50)
    yield _floats(lambda t: t - 50)
    for value in (50.0, -50.0):
        yield from (_floats(partial(_with_column, column=column, value=value)) for column in range(_MOST_COLUMNS))
        yield _floats(_with_first(value))
    for number in (high + 100, low - 100, 10 * high + 1000):
        yield partial(_filled, value=number)
    for number in (low, high, 0, low - 1, high + 1, high + 100):
        yield partial(_with_first_integer, value=number)


def changed(sample: Sample, change: Change, only: int | None = None) -> Sample:
    """The sample with other values in its tensors, or in one of them."""
    leaves, structure = pytree.tree_flatten((sample.args, sample.kwargs))
    tensors = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for index in tensors if only is None else tensors[only : only + 1]:
        leaves[index] = change(leaves[index])
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return replace(sample, args=args, kwargs=kwargs, index=-1)


def tensor_count(sample: Sample) -> int:
    """How many tensors a call gets."""
    return sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((sample.args, sample.kwargs)))


def scaled(factor: float) -> Change:
    """Floating-point numbers times a factor."""
    return _floats(lambda t: t * factor)


def moved(number: int) -> Change:
    """Integers plus a number."""
    return lambda t: t + number if is_integer(t) and t.dtype != torch.bool else t


def filled() -> Change:
    """Floating-point numbers with ones in the place of zeros, such as counts of what has not happened yet."""
    return _floats(lambda t: torch.where(t == 0, 1.0, t))


def is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _floats(change: Change) -> Change:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return change(tensor).to(tensor.dtype) if tensor.is_floating_point() else tensor

    return changed


def _with_first(value: float) -> Change:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        other = tensor.clone().contiguous()
        other.view(-1)[: 1 if other.numel() else 0] = value
        return other

    return changed


def _with_column(tensor: torch.Tensor, column: int, value: float) -> torch.Tensor:
    other = tensor.clone()
    if other.dim() and column < other.shape[-1]:
        other[..., column] = value
    return other


def _random(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor.device)


# in the order in which they are tried
_USUAL = tuple(
    _floats(change)
    for change in (
        lambda t: -t, lambda t: t.abs(), lambda t: -t.abs(), lambda t: t * 100, lambda t: t * 0.01,
        lambda t: t * -100, lambda t: t.abs() * 100, lambda t: t.abs() * -100, lambda t: t * 1e-9, lambda t: t + 1,
        lambda t: t - 1, lambda t: t * 1e5, lambda t: t * 3, lambda t: t * 0.3, lambda t: t.sigmoid(),
        torch.zeros_like, torch.ones_like, _random, _with_first(torch.nan), _with_first(torch.inf),
        _with_first(0.0), lambda t: t.flatten().flip(0).reshape(t.shape),
    )
)  # fmt: skip


def _range(samples: Sequence[Sample]) -> tuple[int, int]:
    """The least and the largest value of all integers; 0 and 0 where there are none."""
    leaves = [leaf for sample in samples for leaf in pytree.tree_leaves((sample.args, sample.kwargs))]
    integers = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and is_integer(leaf) and leaf.numel()]
    lows, highs = [int(leaf.min()) for leaf in integers], [int(leaf.max()) for leaf in integers]
    return min(lows, default=0), max(highs, default=0)


def _integer_changes(low: int, high: int) -> Iterator[Change]:
    """Other integers: the ends of what was seen, others near and far, and a draw; bools the other way round."""
    ends = (low, high, 0, 1, low - 1, high + 1, (low + high) // 2, low - 100, high + 100)
    for value in dict.fromkeys(ends):
        yield partial(_filled, value=value)
    yield partial(_drawn, low=low, high=high)
    yield lambda t: t.flatten().flip(0).reshape(t.shape) if is_integer(t) else t


def _filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    number: Any = bool(value) if tensor.dtype == torch.bool else value
    return torch.full_like(tensor, number) if is_integer(tensor) else tensor


def _with_first_integer(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return _with_first(value)(tensor) if is_integer(tensor) else tensor


def _drawn(tensor: torch.Tensor, low: int, high: int) -> torch.Tensor:
    if not is_integer(tensor):
        return tensor
    made = torch.randint(low, high + 1, tensor.shape, generator=torch.Generator().manual_seed(2))
    return made.to(tensor.device, tensor.dtype)
