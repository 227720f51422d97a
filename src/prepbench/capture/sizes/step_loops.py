"""Loops over a dynamic length: one scan operator that runs a graph for each step, instead of unrolled steps.

The body of such a loop is a function of what one step takes from the step before (``capture/statements/loop_steps``).
It runs twice while torch traces: once to see which tensors it reads, and once into a graph of its own. Tensors that it
reads at the number of the step come in row by row, all others as they are.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat import pytree
from prepbench._torch_compat.scans import is_input_size, is_symbolic, scan, surely_equal, untraced
from prepbench._torch_compat.tensors import version_of

_TRIES = 4
"""The most tries of a step until its input states have the form of its output states."""

_JOINS = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_UNBINDS = (torch.unbind, torch.Tensor.unbind)


class StepLoops(TorchFunctionMode):
    """Let results of a loop's steps be joined, and tensors be iterated, during the block."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _JOINS:
            given = args[0] if args else kwargs.get("tensors")
            if isinstance(given, Rows):
                return _joined(given, func is torch.stack, *args[1:], **{k: v for k, v in kwargs.items() if k == "dim"})
        if func in _UNBINDS:
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if isinstance(args[0].shape[dim], torch.SymInt):
                return Rows(args[0].movedim(dim, 0))
        return func(*args, **kwargs)


def _joined(rows: Rows, is_stack: bool, dim: int = 0) -> torch.Tensor:
    stacked = rows.stacked
    if is_stack:
        return stacked.movedim(0, dim)
    dim %= stacked.dim() - 1
    return stacked.movedim(0, dim).flatten(dim, dim + 1)


def run_loop(
    items: Any, step: Callable[..., Any], states: Sequence[Any], lasts: int, lists: Sequence[Any], changed: int = 0
) -> tuple[Any, ...]:
    """Run a loop: ``step`` for each item, or one operator if their number is symbolic.

    Args:
        items: the iterable of the loop.
        step: the body; takes an item, the states and the lists; gives the next states, and what else is read later.
        states: the loop-carried values at the first step.
        lasts: the number of its other results.
        lists: the lists that it only appends to.
        changed: the number of leading states of which it only assigns entries.

    Returns:
        The last states, the values that the last step gave besides, and the lists.

    Raises:
        NotAScan: the steps cannot be one graph.
    """
    source = as_source(items)
    if source is not None:
        states = [_Outside(each) if i < changed and _is_tensor(each) else each for i, each in enumerate(states)]
        return _Scan(source, step, states, lasts, lists).run()
    found: tuple[Any, ...] | None = None
    for item in items:
        states, found = step(item, *states, *lists)
    if found is None and lasts:
        raise NotAScan("a loop without any step")
    return (*states, *(found or ()), *lists)


class _Appended(list[Any]):
    """Stands in for a list that steps append to, or prepend their result to."""

    is_reversed = False

    def insert(self, place: Any, value: Any) -> None:
        self.is_reversed = True
        super().insert(place, value)


@dataclass(frozen=True, eq=False)
class _Outside:
    """A tensor that all steps write into, each at its own index."""

    tensor: torch.Tensor


class _Scan:
    """One loop that becomes an operator."""

    def __init__(
        self, source: Source, step: Callable[..., Any], states: Sequence[Any], lasts: int, lists: Sequence[Any]
    ) -> None:
        if any(type(each) is not list or each for each in lists):
            raise NotAScan("the loop appends to a list that has entries before")
        self._source, self._step, self._lasts, self._lists = source, step, lasts, lists
        self._leaves, self._spec = pytree.tree_flatten(tuple(states))

    def run(self) -> tuple[Any, ...]:
        seen, results = self._fitted()
        given = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        kept = results[len(self._leaves) :]
        # a variable of which only the last step's value is read has none before the first step
        given += [like.new_zeros(like.shape) for like in kept[: self._lasts]]
        states = given or [torch.zeros(())]
        count, others = self._source.count, list(seen.others.values())
        # runtimes reject sequences without steps, so one without effect is added where there may be none
        may_be_none = not is_input_size(count)
        rows = [row if not may_be_none else _one_more(row) for row in self._source.rows]
        rows += [read.rows(one_more=may_be_none) for read in seen.reads.values()]
        if may_be_none:
            rows.append(torch.arange(count + 1) > 0)
        rows = rows or [torch.arange(count)]

        def one_step(*values: torch.Tensor) -> list[torch.Tensor]:
            own, left = values[: len(states)], values[len(states) :]
            steps, rest = list(left[: len(rows)]), left[len(rows) :]
            if may_be_none:
                *steps, is_real = steps
            mode = _InStep(self._source.count, dict(zip(seen.others, rest, strict=True)))
            mode.reads = dict(zip(seen.reads, steps[len(self._source.rows) :], strict=False))
            found = self._run_step(mode, [value.clone() for value in own] if seen.writes else own, steps)
            found = [
                *(x for x, at in zip(found, self._leaves, strict=False) if _is_tensor(at)),
                *found[len(self._leaves) :],
            ]
            found = found if given else [*own, *found]
            if may_be_none:
                chosen = [torch.where(is_real, new, old) for new, old in zip(found, own, strict=False)]
                found = [*chosen, *found[len(own) :]]
            # none may share memory with an argument or another one
            return [value.clone() for value in found]

        after = scan(one_step, states, rows, others)
        last, kept = after[: len(states)], after[len(states) :]
        kept = [each[1:] for each in kept] if may_be_none else kept
        left = iter(last)
        end = pytree.tree_unflatten([next(left) if _is_tensor(leaf) else leaf for leaf in self._leaves], self._spec)
        lasts = list(left)[: self._lasts]
        lists = [
            Rows(each.flip(0) if is_reversed else each)
            for each, is_reversed in zip(kept[: len(self._lists)], seen.reversed_lists, strict=True)
        ]
        for write, value in zip(seen.written.values(), kept[len(self._lists) :], strict=True):
            write.fill(value)
        return (*(each.tensor if isinstance(each, _Outside) else each for each in end), *lasts, *lists)

    def _fitted(self) -> tuple[_InStep, list[Any]]:
        """Repeat the step until input and output states have the same form; return what it read and returned."""
        for _ in range(_TRIES):
            mode = _InStep(self._source.count, None)
            with untraced():
                own = [leaf.clone() if _is_tensor(leaf) else leaf for leaf in self._leaves]
                steps = [row.select(0, 0).clone() for row in self._source.rows]
                before = [version_of(leaf) for leaf in own if _is_tensor(leaf)]
                results = self._run_step(mode, [leaf for leaf in own if _is_tensor(leaf)], steps)
                mode.writes = before != [version_of(leaf) for leaf in own if _is_tensor(leaf)]
            mode.check_writes()
            fitted = [_fit(leaf, after) for leaf, after in zip(self._leaves, results, strict=False)]
            if all(leaf is other for leaf, other in zip(fitted, self._leaves, strict=True)):
                return mode, results
            self._leaves = fitted
        raise NotAScan("the states of the loop have another form after each step")

    def _run_step(self, mode: _InStep, own: Sequence[torch.Tensor], steps: Sequence[torch.Tensor]) -> list[Any]:
        """Return the results of a step: states, values, appended values, writes."""
        left = iter(own)
        leaves = [next(left) if _is_tensor(leaf) else leaf for leaf in self._leaves]
        states = pytree.tree_unflatten(leaves, self._spec)
        appended = [_Appended() for _ in self._lists]
        mode.know([*own, *steps])
        with mode:
            given = [each.tensor if isinstance(each, _Outside) else each for each in states]
            after, lasts = self._step(self._source.item(steps), *given, *appended)
        after = [
            old if isinstance(old, _Outside) and old.tensor is new else new
            for old, new in zip(states, after, strict=True)
        ]
        found, spec = pytree.tree_flatten(tuple(after))
        if spec != self._spec:
            raise NotAScan("the states of the loop have another structure after a step")
        if any(len(each) != 1 for each in appended):
            raise NotAScan("a step does not append one entry to each list")
        mode.reversed_lists = [each.is_reversed for each in appended]
        written = [write.value for write in mode.written.values()]
        results = [*lasts, *(each[0] for each in appended), *written]
        if not all(_is_tensor(value) for value in results):
            raise NotAScan("a step gives other things than tensors")
        return [mode.own(value) for value in (*found, *results)]


def _one_more(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows.new_zeros((1, *rows.shape[1:])), rows])


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _fit(before: Any, after: Any) -> Any:
    """Return an initial state in the form of the state after a step; unchanged if it has that form."""
    if not _is_tensor(after):
        if _is_tensor(before) or type(before) is not type(after) or before != after:
            raise NotAScan("a step changes a number or an object")
        return before
    if type(before) in (int, float):
        return torch.full(after.shape, before, dtype=after.dtype, device=after.device)
    if not _is_tensor(before):
        raise NotAScan("a state is no tensor before the first step")
    if before.dtype != after.dtype:
        if torch.promote_types(before.dtype, after.dtype) != after.dtype:
            raise NotAScan("a state has another dtype after each step")
        before = before.to(after.dtype)
    if before.dim() > after.dim():
        raise NotAScan("a state has another shape after each step")
    same = before.dim() == after.dim() and all(
        surely_equal(one, other) for one, other in zip(before.shape, after.shape, strict=True)
    )
    return before if same else before.expand(after.shape)


class _Place:
    """The index at which a step reads or writes a tensor."""

    def __init__(self, tensor: torch.Tensor, dim: int, number: StepNumber, length: int) -> None:
        self.tensor, self.dim, self.number, self.length = tensor, dim, number, length
        self.value: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        return id(self.tensor), self.dim, str(self.number.start), self.number.sign, self.length

    def rows(self, *, one_more: bool = False) -> torch.Tensor:
        """Return the rows of all steps; ``one_more`` as in :meth:`StepNumber.rows_of`."""
        return self.number.rows_of(self.tensor, self.dim, self.length or 1, one_more=one_more)

    def example(self) -> torch.Tensor:
        """Return one row."""
        if self.length > 1:
            return self.tensor.narrow(self.dim, 0, self.length).movedim(self.dim, -1).clone()
        return self.tensor.select(self.dim, 0).clone()

    def fill(self, values: torch.Tensor) -> None:
        """Write the values of all steps."""
        number = self.number
        if number.sign == -1:
            number, values = StepNumber(number.start - number.count + 1, 1, number.count), values.flip(0)
        places = torch.arange(number.start, number.start + number.count, device=values.device)
        self.tensor.index_copy_(self.dim, places, values.movedim(0, self.dim).to(self.tensor.dtype))


class _InStep(TorchFunctionMode):
    """Runs a step on its own tensors.

    Args:
        count: the number of steps.
        others: the replacements of outer tensors, by id; None to find out which are read.

    Attributes:
        reads: the places that the step reads at its number; while it is traced, the rows.
        written: the places that it writes at its number.
        others: tensors from outside, or what stands for them.
        writes: whether it changes states in place.
        reversed_lists: for each list, whether the step puts what it gives in front of it.
    """

    def __init__(self, count: Any, others: dict[int, torch.Tensor] | None) -> None:
        super().__init__()
        self._count, self._finds = count, others is None
        self._made: dict[int, torch.Tensor] = {}
        self._versions: dict[int, int] = {}
        self.others: dict[int, torch.Tensor] = others or {}
        self.reads: dict[tuple[Any, ...], Any] = {}
        self.written: dict[tuple[Any, ...], _Place] = {}
        self.writes = False
        self.reversed_lists: list[bool] = []

    def know(self, tensors: Sequence[torch.Tensor]) -> None:
        """Register these as the step's own."""
        self._made |= {id(tensor): tensor for tensor in tensors}

    def check_writes(self) -> None:
        """Raise :class:`NotAScan` if the step wrote into outer tensors."""
        if any(version_of(tensor) != self._versions[key] for key, tensor in self.others.items()):
            raise NotAScan("a step writes into a tensor that other steps read")
        written = {write.key[0] for write in self.written.values()}
        if not written.isdisjoint([*self.others, *(key[0] for key in self.reads)]):
            raise NotAScan("a step reads a tensor that steps write into")

    def own(self, value: Any) -> Any:
        """Return the step's own tensor for one that may be an outer one."""
        if not _is_tensor(value) or id(value) in self._made:
            return value
        if not self._finds:
            if id(value) not in self.others:
                raise NotAScan("a step reads other tensors when it runs again")
            return self.others[id(value)]
        if id(value) not in self.others:
            self.others[id(value)], self._versions[id(value)] = value, version_of(value)
        return value

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            found = list(number_in(args[1]))
            if found:
                return self._at_number(found, *args)
        if getattr(func, "__name__", "") == "__get__" and not _is_tensor(args[0]):
            return func(*args, **kwargs)
        is_size = func in _ABOUT
        if not is_size:
            args, kwargs = pytree.tree_map(self.own, (args, kwargs))
        result = func(*args, **kwargs)
        self.know([leaf for leaf in pytree.tree_leaves(result) if _is_tensor(leaf)])
        return result

    def _at_number(self, found: list[tuple[int, StepNumber, int]], tensor: Any, index: Any, value: Any = None) -> Any:
        (place, number, length), *more = found
        parts = list(index) if isinstance(index, tuple) else [index]
        if more or id(tensor) in self._made or not all(_is_plain(part) for i, part in enumerate(parts) if i != place):
            raise NotAScan("a step reads something by its number in a way that is not known")
        before = parts[:place]
        if Ellipsis in before:
            dim = tensor.dim() - sum(part is not None for part in parts[place:])
        else:
            dim = sum(part is not None for part in before)
        at = _Place(tensor, dim, number, length)
        rest: tuple[Any, ...] = (*before, *([slice(None)] if length else []), *parts[place + 1 :])
        if value is not None:
            whole = not length and all(part in (slice(None), Ellipsis) for part in rest)
            if not whole or at.key in self.written or not _is_tensor(value) or value.dim() != tensor.dim() - 1:
                raise NotAScan("a step writes a part of what belongs to its number")
            at.value = value
            self.written[at.key] = at
            return None
        if at.key not in self.reads:
            if not self._finds:
                raise NotAScan("a step reads other tensors when it runs again")
            self.reads[at.key] = at
        row = at.example() if self._finds else self.reads[at.key]
        if length:  # the entries of the slice lie where the dim was
            row = row.movedim(-1, dim) if length > 1 else row.unsqueeze(dim)
        result = row[rest] if rest else row
        self.know([row, result])
        return result


_ABOUT: frozenset[Any] = frozenset(
    [
        *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "is_floating_point", "__len__")),
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad")),
    ]
)
"""Attributes of a tensor's form; a tensor of which a step reads nothing else is no input of the step."""


def _is_plain(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return part is Ellipsis or all(end is None or type(end) is int or isinstance(end, torch.SymInt) for end in ends)


# The iterables of dynamic loops: numbers, rows of tensors, and zipped ones.
#
# During tracing, ``range(x.shape[1])`` would specialise the length. The functions of this file replace Python's in the
# head of such a loop, and return a :class:`Source` for a symbolic length; otherwise Python's own result.


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
    """The iterable of a loop: how many steps, tensors with the steps first, and what makes an item of their rows."""

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
