"""The iterables of dynamic loops: numbers, rows of tensors, and zipped ones.

During tracing, ``range(x.shape[1])`` would specialise the length. The functions of this file replace Python's in the
head of such a loop, and return a :class:`Source` for a symbolic length; otherwise Python's own result.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from prepbench._torch_compat.scans import is_symbolic, surely_equal


class NotAScan(RuntimeError):
    """Raised if the steps of a loop cannot be one graph; the message has the reason."""


class StepNumber:
    """The number of a step, as long as its value is not needed: ``start + sign * step``.

    Attributes:
        start: at the first step; a number or a symbol.
        sign: 1 or -1.
        count: the number of steps.
    """

    def __init__(self, start: Any, sign: int, count: Any) -> None:
        self.start, self.sign, self.count = start, sign, count

    def __add__(self, other: Any) -> StepNumber:
        return StepNumber(self.start + _size(other), self.sign, self.count)

    def __sub__(self, other: Any) -> StepNumber:
        return StepNumber(self.start - _size(other), self.sign, self.count)

    def __rsub__(self, other: Any) -> StepNumber:
        return StepNumber(_size(other) - self.start, -self.sign, self.count)

    __radd__ = __add__

    def __neg__(self) -> StepNumber:
        return StepNumber(-self.start, -self.sign, self.count)

    def _refused(self, *_: Any) -> NoReturn:
        raise NotAScan("the loop asks for the number of the step, which is another one in each")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused
    __bool__ = __int__ = __float__ = __index__ = __hash__ = _refused
    __mul__ = __rmul__ = __mod__ = __floordiv__ = __truediv__ = __and__ = __iter__ = _refused

    def rows_of(self, tensor: torch.Tensor, dim: int, length: int = 1, *, one_more: bool = False) -> torch.Tensor:
        """Return the parts of a tensor at the numbers of all steps, with the steps as first dim.

        Args:
            tensor: read only where that is inside of it.
            dim: the dim that the number indexes.
            length: the number of entries from there on; if not 1, they are the last dim.
            one_more: with any row before the first.
        """
        dim %= tensor.dim()
        if length != 1:
            tensor = tensor.unfold(dim, length, 1)
        first = self.start if self.sign == 1 else self.start - self.count + 1
        if type(first) is int and first < 0:
            raise NotAScan("the loop reads before the first entry, which is the last one for Python")
        if one_more:
            steps = torch.arange(self.count + 1, device=tensor.device) - 1
            # a place for the row before the first that is inside of any tensor with this number of steps
            places = self.start + steps if self.sign == 1 else self.start - steps.clamp(min=0)
            return torch.index_select(tensor, dim, places.clamp(min=0)).movedim(dim, 0)
        if not (surely_equal(first, 0) and surely_equal(self.count, tensor.shape[dim])):
            # index_select, because a view would make torch guard on its memory layout
            tensor = torch.index_select(tensor, dim, torch.arange(first, first + self.count, device=tensor.device))
        tensor = tensor.movedim(dim, 0)
        return tensor if self.sign == 1 else tensor.flip(0)


class Rows(list[Any]):
    """A list of one tensor per step, stored as one tensor with the steps as first dim.

    The mode around the loop handles joining them (``torch.stack``, ``torch.cat``). One list item stands for all,
    because torch inspects lists before modes see them.
    """

    def __init__(self, stacked: torch.Tensor) -> None:
        super().__init__([stacked])
        self.stacked = stacked

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            return self.stacked.select(0, index)
        if isinstance(index, slice) and (index.start, index.stop, index.step) == (None, None, -1):
            return Rows(self.stacked.flip(0))
        if isinstance(index, slice) and index.step in (None, 1):
            return Rows(self.stacked[index])
        return self._refused()

    def reverse(self) -> None:
        self.stacked = self.stacked.flip(0)

    def __reversed__(self) -> Rows:  # type: ignore[override]
        return Rows(self.stacked.flip(0))

    def _refused(self, *_: Any) -> NoReturn:
        raise NotAScan("what the steps gave is read one by one, and their number is dynamic")

    __iter__ = __len__ = __add__ = __iadd__ = __mul__ = __contains__ = __eq__ = _refused
    append = extend = insert = pop = remove = copy = index = count = sort = clear = _refused  # type: ignore[assignment]


@dataclass(frozen=True)
class Source:
    """The iterable of a loop.

    Attributes:
        count: the number of steps.
        rows: tensors with the steps first.
        item: makes the body's argument from a row of each of these.
    """

    count: Any
    rows: tuple[torch.Tensor, ...]
    item: Callable[[Sequence[torch.Tensor]], Any]


def as_source(items: Any) -> Source | None:
    """Return an iterable of a loop as a source; None if Python can iterate it."""
    if isinstance(items, Source):
        return items
    if isinstance(items, torch.Tensor) and items.dim() and is_symbolic(items.shape[0]):
        items = Rows(items)
    if isinstance(items, Rows):
        return Source(items.stacked.shape[0], (items.stacked,), lambda rows: rows[0])
    return None


def range_of(*bounds: Any) -> Any:
    """Replace ``range``."""
    if not any(isinstance(bound, torch.SymInt) for bound in bounds):
        return builtins.range(*bounds)
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step not in (1, -1):
        raise NotAScan("a range of dynamic length with steps other than 1 and -1")
    number = StepNumber(start, step, (stop - start) * step)
    return Source(number.count, (), lambda _: number)


def enumerate_of(items: Any, start: Any = 0) -> Any:
    """Replace ``enumerate``."""
    source = as_source(items)
    if source is None:
        return builtins.enumerate(items, start)
    number = StepNumber(start, 1, source.count)
    return Source(source.count, source.rows, lambda rows: (number, source.item(rows)))


def zip_of(*parts: Any, strict: bool = False) -> Any:
    """Replace ``zip``."""
    sources = [as_source(part) for part in parts]
    found = [source for source in sources if source is not None]
    if not found:
        return builtins.zip(*parts, strict=strict)
    # their equality becomes a condition of the graph, as in an addition
    if len(found) < len(parts) or not all(bool(source.count == found[0].count) for source in found):
        raise NotAScan("a zip of sequences of which one is not dynamic, or whose lengths differ")

    def item(rows: Sequence[torch.Tensor]) -> Any:
        left = iter(rows)
        return tuple(source.item([next(left) for _ in source.rows]) for source in found)

    return Source(found[0].count, tuple(row for source in found for row in source.rows), item)


def reversed_of(items: Any) -> Any:
    """Replace ``reversed``."""
    source = as_source(items)
    if source is None:
        return builtins.reversed(items)
    given = source.item([row.select(0, 0) for row in source.rows])
    if isinstance(given, StepNumber):
        number = StepNumber(given.start + given.sign * (given.count - 1), -given.sign, given.count)
        return Source(source.count, (), lambda _: number)
    return Source(source.count, tuple(row.flip(0) for row in source.rows), source.item)


def len_of(items: Any) -> Any:
    """Replace ``len``."""
    source = as_source(items)
    return builtins.len(items) if source is None else source.count


def list_of(*items: Any) -> Any:
    """Replace ``list`` and ``tuple`` of a loop's iterable."""
    return items[0] if items and as_source(items[0]) is not None else builtins.list(*items)


IN_HEADS: dict[str, Callable[..., Any]] = {
    "range": range_of,
    "enumerate": enumerate_of,
    "zip": zip_of,
    "reversed": reversed_of,
    "len": len_of,
    "list": list_of,
}
"""The replacements of Python's own functions in the head of a loop."""


def number_in(index: Any) -> Iterator[tuple[int, StepNumber, int]]:
    """Yield where a step's number occurs in an index: positions, numbers, and the count of entries from there."""
    for place, part in builtins.enumerate(index if isinstance(index, tuple) else (index,)):
        if isinstance(part, StepNumber):
            yield place, part, 0
        elif isinstance(part, slice) and any(isinstance(end, StepNumber) for end in (part.start, part.stop)):
            ends = part.start, part.stop
            if not all(isinstance(end, StepNumber) for end in ends) or part.step is not None:
                raise NotAScan("a slice that has another length in each step")
            length = part.stop.start - part.start.start
            if part.stop.sign != part.start.sign or type(length) is not int or length < 1:
                raise NotAScan("a slice that has another length in each step")
            yield place, part.start, length


def _size(value: Any) -> Any:
    if type(value) is int or isinstance(value, torch.SymInt):
        return value
    raise NotAScan("the number of the step is computed with")
