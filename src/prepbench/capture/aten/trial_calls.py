"""Trial calls: calls of sizes that no sample has, and whether a captured graph agrees with the model on them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from prepbench._torch_compat import pytree
from prepbench.capture.aten.export_program import Program
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.conditions import Asked, SizeCondition
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, size_key
from prepbench.capture.sizes.resizing import linked_axes, resized_to_fit
from prepbench.inputs import Sample, arguments_by_name
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.objects.compare import EXACT, ROUNDED, difference
from prepbench.objects.parts import attributes, part_at
from prepbench.running.unchanged import NotedState, outcome, without_output

Place = tuple[int, int]
"""The number of a leaf of a call, and a dim of it."""
Sizes = Mapping[Place, int]

LONGEST = 5.0
"""Seconds for a made call of the model: a loop until a sum is large enough never ends for an empty tensor."""
_LONGER = (1, 4, 2, 8, 16, 64)
"""By how much the other sizes of a call with a small size may grow."""
_FARTHER, _FARTHEST = (3, 6), 512
"""How many times as large the sizes of far calls are, and the largest that is made: attention takes its square."""
_FAR = 16
"""By how much the other sizes of a call grow in which equal sizes are apart."""
MOST_TRIALS = 12
"""The most trial calls that break torch's guards."""
_APART = 6
"""The most parts of sizes that change together in all samples which are tried apart from the others."""
_FEW = 8
"""Up to how many entries of a tensor agree with the graph by chance."""


def _no_call() -> None:
    """Make no call: a trial without a larger one."""


@dataclass(frozen=True)
class Trial:
    """A trial call: sizes that no sample has, and whether the graph agrees with the model there.

    Attributes:
        sample: the call.
        sizes: of its tensors.
        equal: whether the graph agrees with the model.
        made: the dim that was given a size of 0 or 1, its name, and that size; None for other calls. Of two dims the
            one with the smaller size.
        refused: the condition that a wrong result makes, where none that is known tells the call apart; by default
            that the size of ``made`` is another.
        larger: makes the same call with 2 in the place of a size of 0 or 1: where that is wrong, too, the small size
            is not the reason. None where it cannot be made.
        wrong_at: the sizes of the larger call where that is wrong, too; else None.
    """

    sample: Sample
    sizes: Sizes
    equal: bool
    made: tuple[Place, str, int] | None = None
    refused: SizeCondition | None = None
    larger: Callable[[], tuple[Sample, Sizes] | None] = _no_call
    wrong_at: Sizes | None = None


def breaks_any(trial: Trial, conditions: Iterable[SizeCondition]) -> bool:
    return breaks_any_of(trial.sizes, conditions)


def breaks_any_of(sizes: Sizes, conditions: Iterable[SizeCondition]) -> bool:
    """Return whether any condition does not hold for these sizes."""
    return any(breaks(sizes, condition) for condition in conditions)


def breaks(sizes: Sizes, condition: SizeCondition) -> bool:
    """Return whether a condition does not hold for these sizes."""
    return condition.holds([sizes[place] for place in condition.places]) is False


def _beyond(place: Place, name: str, size: int, seen: Sequence[int], tried: Sequence[int]) -> SizeCondition:
    """Return the condition that refuses a size which no sample has, and all others between samples, or up to the next
    size towards them that is tried, too.
    """
    n = sympy.Symbol("s", integer=True, positive=True)
    low = max((one for one in seen if one < size), default=None)
    high = min((one for one in seen if one > size), default=None)
    if low is not None and high is not None:
        asked, text = sympy.Or(n <= low, n >= high), f"at most {low} or at least {high}"
    elif high is not None:
        low = min(one for one in (*tried, high) if one > size)
        asked, text = n >= low, f"at least {low}"
    else:
        high = max(one for one in (*tried, seen[-1]) if one < size)
        asked, text = n <= high, f"at most {high}"
    condition = Asked(asked, {n: name}, None, is_own=False).condition({size_key(name): place})
    return replace(condition, text=f"{name} must be {text}")


def unequal_size(place: Place, name: str, size: int) -> SizeCondition:
    symbol = sympy.Symbol("s", integer=True, positive=True)
    asked = Asked(sympy.Ne(symbol, size, evaluate=False), {symbol: name}, None, is_own=False)
    text = f"{name} must not be {size}: no sample has this size, and the graph computes something else for it"
    return replace(asked.condition({size_key(name): place}), text=text)


def _unequal_sizes(places: Sequence[Place], names: Sequence[str], pair: Sequence[int]) -> SizeCondition:
    symbols = [positive_symbol(f"s{index}") for index in range(len(places))]
    differ = [sympy.Ne(symbol, size, evaluate=False) for symbol, size in zip(symbols, pair, strict=True)]
    asked = Asked(sympy.Or(*differ, evaluate=False), dict(zip(symbols, names, strict=True)), None, is_own=False)
    condition = asked.condition({size_key(name): place for name, place in zip(names, places, strict=True)})
    both = " and ".join(f"{name} {size}" for name, size in zip(names, pair, strict=True))
    text = f"must not be {both}: no sample has these sizes, and the graph computes something else for them"
    return replace(condition, text=text)


def _sizes_that_differ_by(more: int, places: Sequence[Place], names: Sequence[str]) -> SizeCondition:
    one, other = [positive_symbol(f"s{index}") for index in range(2)]
    equal = sympy.Eq(one, other + more, evaluate=False)
    asked = Asked(equal, dict(zip((one, other), names, strict=True)), None, is_own=False)
    condition = asked.condition({size_key(name): place for name, place in zip(names, places, strict=True)})
    wanted = f"{names[1]} {'+' if more > 0 else '-'} {abs(more)}" if more else names[1]
    return replace(condition, text=f"{names[0]} must equal {wanted}, as in all samples")


def positive_symbol(name: str) -> Any:
    return sympy.Symbol(name, integer=True, positive=True)


class MadeCalls:
    """Makes trial calls, each of other sizes.

    Args:
        model: takes the calls.
        samples: that the program is right for. An axis has the sizes of all samples, also of such that take another
            variant, and what these have is no reason to trust this program.
        axes: the dynamic axes of the model.
        firm: conditions that each call meets.
        of: gives the sizes of a call.
        places: those of the sizes by their names.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        samples: Sequence[Sample],
        axes: DynamicAxes,
        firm: Sequence[SizeCondition],
        of: Callable[[Sample], dict[Place, int]],
        places: Mapping[tuple[str, ...], Place],
    ) -> None:
        self._seen = [of(sample) for sample in samples]
        # the smallest sample, because every trial is made from it, and runs the model and the program; one with a size
        # of 0 has no entries to repeat, and what it makes is empty, and equal whatever the graph does
        base = min(samples, key=lambda sample: (0 in of(sample).values(), sum(of(sample).values())))
        self._model, self._base, self._firm, self._of, self._places = model, base, firm, of, places
        self._groups, self._now = linked_axes(axes), of(base)
        self._samples = sorted(samples, key=lambda sample: sum(of(sample).values()))
        self._limits = _CountLimits(model, samples)
        self._done: set[tuple[tuple[Place, int], ...]] = set()
        self._left = MOST_TRIALS

    def small(self, others: Sequence[SizeCondition]) -> Iterator[Trial]:
        """Yield calls with sizes of 0 and 1, and with the smallest sizes allowed.

        Args:
            others: conditions that one call of each size meets, if there is one: what is wrong where they are broken
                says nothing about the small size.
        """
        for symbol, group in self._groups.items():
            where = {
                (axis.path, axis.dim): self._places.get(size_key(f"{axis.path}.shape[{axis.dim}]")) for axis in group
            }
            axis = min(group, key=lambda axis: axis.sizes[0])
            place = where[axis.path, axis.dim]
            # samples are resized by repeating entries, and an empty one has none
            if place is None or not self._now.get(place):
                continue
            sizes = {seen[place] for seen in self._seen if place in seen}
            for size in (1, 0, *_smallest_allowed(self._firm, place, min(sizes))):
                if size in sizes or not axis.allows(size):
                    continue
                if size > 1:
                    call = self._made({symbol: size - self._now[place]})
                    if call is not None and call[1][place] == size:
                        yield Trial(*call, equal=False)
                    continue
                further = [other for other in others if other.places != (place,)]
                is_met, count, enough = False, 0, 1 + 2 * min(2, len(self._groups) - 1)
                for base, longer in self._longer(symbol):
                    trial = self._small_call(axis, symbol, size, base, longer)
                    if trial is None:
                        continue
                    meets = not breaks_any(trial, further)
                    if count < enough or meets:
                        yield trial
                    is_met, count = is_met or meets, count + 1
                    if is_met and count >= enough:
                        break

        yield from self._small_pairs()

    def _small_pairs(self) -> Iterator[Trial]:
        """Yield calls in which two sizes are 0 or 1: each alone may be right."""
        for symbol, other in itertools.combinations(self._groups, 2):
            axes = [min(self._groups[one], key=lambda axis: axis.sizes[0]) for one in (symbol, other)]
            places = [place for axis in axes if (place := self._place(axis)) is not None and self._now.get(place)]
            if len(places) < 2:
                continue
            seen = {tuple(sizes.get(place) for place in places) for sizes in self._seen}
            names = [f"{axis.path}.shape[{axis.dim}]" for axis in axes]
            for pair in itertools.product((1, 0), repeat=2):
                if pair in seen or not all(axis.allows(size) for axis, size in zip(axes, pair, strict=True)):
                    continue
                steps = [size - self._now[place] for place, size in zip(places, pair, strict=True)]
                call = self._made({symbol: steps[0], other: steps[1]})
                if call is not None and tuple(call[1][place] for place in places) == pair:
                    small = min(zip(pair, places, names, strict=True))
                    refused = _unequal_sizes(places, names, pair)
                    yield Trial(*call, equal=False, made=(small[1], small[2], small[0]), refused=refused)

    def apart(self) -> Iterator[Iterator[Trial]]:
        """Yield calls of sizes that are apart: one is 0 or 1, and another not what it is beside it in all samples.

        Trials change sizes that are equal in all samples, or differ by the same number, together. So they tell nothing
        about calls where they differ otherwise.
        """
        for symbol, group in self._groups.items():
            for part in itertools.islice(_parts(group), _APART):
                rest = [axis for axis in group if axis not in part]
                if rest:
                    yield self._apart(symbol, part, rest)

    def _apart(self, symbol: str, part: list[Axis], rest: list[Axis]) -> Iterator[Trial]:
        axis, other = part[0], next((one for one in rest if self._place(one) is not None), rest[0])
        place, same = self._place(axis), self._place(other)
        if place is None or same is None:
            return
        steps = {sizes[place] - sizes[same] for sizes in self._seen if place in sizes and same in sizes}
        base = next((one for one in self._samples if self._of(one).get(place, 0) > 1), None)
        if base is None or len(steps) != 1:
            return
        more, now = steps.pop(), self._of(base)[place]
        groups = {**self._groups, symbol: part, f"{symbol} apart": rest}
        others = dict.fromkeys([one for one in self._groups if one != symbol], _FAR)
        changes: tuple[dict[str, int], ...] = ({}, others, {**others, f"{symbol} apart": _FAR})
        for size, change in itertools.product((1, 0), changes):
            call = self._made({**change, symbol: size - now}, groups, base) if axis.allows(size) else None
            if call is not None and call[1][place] == size and call[1][same] != size - more:
                names = [f"{one.path}.shape[{one.dim}]" for one in (axis, other)]
                refused = _sizes_that_differ_by(more, [place, same], names)
                yield Trial(*call, equal=False, made=(place, names[0], size), refused=refused)
        yield from self._beside_apart(symbol, groups)

    def _beside_apart(self, symbol: str, groups: dict[str, list[Axis]]) -> Iterator[Trial]:
        """Yield calls in which a size is 0 or 1 that no sample has, beside a part of a group that is longer or 0."""
        none = -self._now.get(self._place(groups[symbol][0]) or (-1, -1), 0)
        for small, group in self._groups.items():
            axis = min(group, key=lambda axis: axis.sizes[0])
            seen = {sizes.get(self._place(axis) or (-1, -1)) for sizes in self._seen}
            for size, step in ((1, 1), (0, 1), (0, none)) if small != symbol else ():
                if size not in seen and axis.allows(size):
                    trial = self._small_call(axis, small, size, self._base, {symbol: step}, groups)
                    yield from [] if trial is None else [trial]

    def beside_none(self) -> Iterator[Iterator[Trial]]:
        """Yield calls in which a size is 0, beside many others.

        Only the shape of a result without entries tells whether the graph is right, and other sizes decide it.
        """
        for symbol, group in self._groups.items():
            axis = min(group, key=lambda axis: axis.sizes[0])
            if not axis.allows(0) or any(sizes.get(self._place(axis) or (-1, -1)) == 0 for sizes in self._seen):
                continue
            yield self._beside_none(symbol, axis, self._groups)
            for part in itertools.islice(_parts(group), _APART // 2):
                if rest := [one for one in group if one not in part]:
                    yield self._beside_none(symbol, part[0], {**self._groups, symbol: part, f"{symbol} apart": rest})

    def _beside_none(self, symbol: str, axis: Axis, groups: dict[str, list[Axis]]) -> Iterator[Trial]:
        others = {other: self._now.get(self._place(axes[0]) or (-1, -1)) for other, axes in groups.items()}
        for first in range(4):  # such that remainders of 2, 3, and 4 differ
            wanted = {other: 2 + (first + 3 * index) % 7 for index, other in enumerate(others)}
            steps = {other: wanted[other] - now for other, now in others.items() if now and other != symbol}
            trial = self._small_call(axis, symbol, 0, self._base, steps, groups)
            yield from [] if trial is None else [trial]

    def at_ones_of_samples(self) -> Iterator[Trial]:
        """Yield calls in which a size is 1 that is 1 in a sample, too, beside other sizes than there."""
        for symbol, group in self._groups.items():
            axis = next((axis for axis in group if self._now.get(self._place(axis) or (-1, -1))), None)
            place = None if axis is None else self._place(axis)
            if axis is None or place is None or not any(sizes.get(place) == 1 for sizes in self._seen):
                continue
            others = [other for other in self._groups if other != symbol]
            # the largest sample, too: a few entries may agree with the graph by chance, however often they are repeated
            changes = [*((self._base, dict.fromkeys(others, more)) for more in range(3)), (self._samples[-1], {})]
            calls = (self._small_call(axis, symbol, 1, *change) for change in changes)
            yield from (call for call in calls if call is not None)

    def _small_call(
        self,
        axis: Axis,
        symbol: str,
        size: int,
        base: Sample,
        longer: Mapping[str, int],
        groups: dict[str, list[Axis]] | None = None,
    ) -> Trial | None:
        """Return a call in which an axis has a size of 0 or 1, and others are longer than in a sample."""
        place = self._place(axis)
        now = None if place is None else self._of(base).get(place)
        if place is None or not now:
            return None
        call = self._made({**longer, symbol: size - now}, groups, base)
        if call is None or call[1][place] != size:
            return None
        larger = functools.partial(self._call, {**longer, symbol: 2 - now}, groups, base)
        return Trial(*call, equal=False, made=(place, f"{axis.path}.shape[{axis.dim}]", size), larger=larger)

    def _longer(self, symbol: str) -> Iterator[tuple[Sample, dict[str, int]]]:
        """Yield samples with changes of their other sizes; a few of each kind first.

        With the other sizes as in one sample alone, a wrong result may have the right shape by chance, e.g. by
        broadcasting. And a small size may meet the firm conditions beside larger others only. The sizes of another
        sample come before large ones, which may mean what no real call has: a cache that counts more than it holds.
        """
        others = [other for other in self._groups if other != symbol]
        yield self._base, {}
        yield self._base, dict.fromkeys(others, _LONGER[0])
        if others:
            yield self._samples[-1], {}
        if len(others) > 1:
            yield from ((self._base, {other: _LONGER[1]}) for other in others)
        for more in _LONGER[1:]:
            yield self._base, dict.fromkeys(others, more)
        for more in _LONGER if len(others) > 1 else ():
            yield from ((self._base, {other: more}) for other in others)

    def breaking(
        self, conditions: Iterable[SizeCondition], others: Sequence[SizeCondition] = (), *, again: int = 0
    ) -> Iterator[Trial]:
        """Yield calls that break conditions, as long as there are some left of the number that may be made.

        Args:
            conditions: to break, each by the two smallest calls.
            others: conditions that the calls meet, so that they tell about the broken one alone.
            again: how many further calls may be made, of middle and of large sizes, too: near the samples a graph may
                agree by chance, e.g. where a slice is longer than what it cuts.
        """
        self._left = again or self._left
        for condition in conditions:
            changes = list(itertools.islice(self._breaking(condition, others), 200 if again else 2))
            chosen = dict.fromkeys([0, 1, len(changes) // 2, len(changes) - 1])
            for change in (changes[index] for index in chosen if 0 <= index < len(changes)):
                if self._left and (call := self._made(change)) is not None and breaks(call[1], condition):
                    self._left -= 1
                    yield Trial(*call, equal=False)

    def beside(self, disproved: Iterable[SizeCondition]) -> Iterator[Trial]:
        """Yield calls with sizes between and beside those of the samples, where these disprove a guard on the size.

        The graph is right for the samples on both sides of it, which says nothing about further sizes.
        """
        places = {condition.places[0]: condition.sizes[0] for condition in disproved if len(condition.places) == 1}
        for symbol, group in self._groups.items():
            for place, name in places.items():
                if place not in map(self._place, group) or not self._now.get(place):
                    continue
                seen = sorted({sizes[place] for sizes in self._seen if place in sizes})
                tried = _beside(seen)
                for size in tried:
                    if not all(axis.allows(size) for axis in group if self._place(axis) == place):
                        continue
                    call = self._made({symbol: size - self._now[place]})
                    if call is not None and call[1][place] == size:
                        yield Trial(*call, equal=False, refused=_beyond(place, name, size, seen, tried))

    def far(self, idle: Sequence[SizeCondition], others: Sequence[SizeCondition]) -> Iterator[Trial]:
        """Yield calls of far larger sizes than the samples have, where nearer ones have shown guards to be idle.

        A guard is often narrower than the branch that it comes from: of a list of one piece, where the model asks for
        more than two. The next sizes do not reach the other side then.

        Args:
            idle: guards that make no difference for nearer sizes.
            others: conditions that the calls meet.
        """
        for symbol, group in self._groups.items():
            axis = next((axis for axis in group if self._now.get(self._place(axis) or (-1, -1))), None)
            place = None if axis is None else self._place(axis)
            if axis is None or place is None:
                continue
            now, name = self._now[place], f"{axis.path}.shape[{axis.dim}]"
            seen = sorted({sizes[place] for sizes in self._seen if place in sizes})
            for size in (more * now + 8 * more for more in _FARTHER):
                call = self._made({symbol: size - now}) if size <= _FARTHEST and axis.allows(size) else None
                if call is None or call[1][place] != size or breaks_any_of(call[1], (*self._firm, *others)):
                    continue
                if breaks_any_of(call[1], idle):
                    yield Trial(*call, equal=False, refused=_beyond(place, name, size, seen, _beside(seen)))

    def _breaking(self, condition: SizeCondition, others: Sequence[SizeCondition]) -> Iterator[dict[str, int]]:
        """Yield changes of one or two sizes that break a condition, and meet the others and the firm ones, the smallest
        first.
        """
        now, met = self._now, (*self._firm, *others)
        behind = {
            symbol: [where for axis in group if (where := self._places.get(size_key(f"{axis.path}.shape[{axis.dim}]")))]
            for symbol, group in self._groups.items()
        }
        moved = [symbol for symbol, where in behind.items() if set(where) & set(condition.places)]
        for symbols in (*((symbol,) for symbol in moved), *itertools.combinations(moved, 2)):
            for change in _changes(symbols, behind, now):
                sizes = dict(now)
                for symbol, step in change.items():
                    sizes |= {where: now[where] + step for where in behind[symbol] if where in now}
                is_call = min(sizes.values(), default=0) >= 0 and not any(breaks(sizes, one) for one in met)
                if is_call and breaks(sizes, condition):
                    yield change

    def _place(self, axis: Axis) -> Place | None:
        return self._places.get(size_key(f"{axis.path}.shape[{axis.dim}]"))

    def _made(
        self, change: Mapping[str, int], groups: dict[str, list[Axis]] | None = None, base: Sample | None = None
    ) -> tuple[Sample, dict[Place, int]] | None:
        """Return a call, and its sizes; None for one that was made before."""
        call = self._call(change, groups, base)
        if call is None or (key := tuple(sorted(call[1].items()))) in self._done or call[1] == self._now:
            return None
        self._done.add(key)
        return call

    def _call(
        self, change: Mapping[str, int], groups: dict[str, list[Axis]] | None = None, base: Sample | None = None
    ) -> tuple[Sample, dict[Place, int]] | None:
        try:
            with TimeLimit(LONGEST):
                sample = resized_to_fit(self._model, base or self._base, change, groups or self._groups)
        except TimeLimitReached:
            return None
        sizes = self._of(sample)
        is_real = self._limits.allow(self._model, sample)
        return (sample, sizes) if is_real and not breaks_any_of(sizes, self._firm) else None


class _CountLimits:
    """Tells calls of inconsistent sizes by numbers that objects count, such as the tokens in a cache.

    A mask that is shorter than the tokens makes a cache that has seen less than none, or less than it holds. No real
    call has that, so what a graph does there is no reason to refuse a size.

    Args:
        model: takes the calls.
        samples: in all of which a number that is no limit by chance is at least 0, or at least a size beside it.
    """

    def __init__(self, model: torch.nn.Module, samples: Sequence[Sample]) -> None:
        found = [self._room(model, sample) for sample in samples if sample.counted]
        known = set.intersection(*map(set, found)) if found else set()
        lowest = {place: min(room[place] for room in found) for place in known}
        self._places = {place for place, room in lowest.items() if room == 0 or (room > 0 and not place[1])}

    def allow(self, model: torch.nn.Module, sample: Sample) -> bool:
        """Return whether the numbers that a call counts are as large as those of the samples are."""
        room = self._room(model, sample) if self._places else {}
        return all(room.get(place, 0) >= 0 for place in self._places)

    def _room(self, model: torch.nn.Module, sample: Sample) -> dict[tuple[str, str, int], int]:
        """Return by how much each number is above 0, and above each size of the tensors beside it."""
        named, found = arguments_by_name(model, sample.args, sample.kwargs), {}
        for number in sample.counted:
            count = number.value(named)
            found[number.path, "", 0] = count
            beside = attributes(part_at(named, number.steps[:-1]))
            for name, part in beside.items():
                for dim, size in enumerate(part.shape if isinstance(part, torch.Tensor) else ()):
                    found[number.path, name, dim] = count - size
        return found


def _parts(group: Sequence[Axis]) -> Iterator[list[Axis]]:
    """Yield parts of axes that change together: those with the same sizes, and one axis of each tensor."""
    same: dict[tuple[int, ...], list[Axis]] = {}
    for axis in group:
        same.setdefault(tuple(axis.sizes), []).append(axis)
    if len(same) > 1:
        yield from same.values()
    single = {axis.path: axis for axis in group if len(same) == 1 or len(same[tuple(axis.sizes)]) > 1}
    if len(single) > 1:
        yield from ([axis] for axis in single.values())


def _beside(seen: Sequence[int]) -> list[int]:
    """Return sizes from 2 on that no sample has: the nearest, some between, the smallest, some up to twice the size."""
    below, last = [*range(seen[0] - 1, 1, -1)], seen[-1]
    between = [size for one, other in itertools.pairwise(seen) for size in (one + 1, (one + other) // 2, other - 1)]
    found = dict.fromkeys([*below[:3], *below[-1:], *between, last + 1, last + 2, last + last // 2, 2 * last + 1])
    return [size for size in found if size > 1 and size not in seen]


def _smallest_allowed(firm: Sequence[SizeCondition], place: Place, seen: int) -> list[int]:
    """Return the smallest size from 2 on that the conditions on it alone allow, where they do not allow 1."""
    own = [condition for condition in firm if condition.places == (place,)]
    if all(condition.holds((1,)) is not False for condition in own):
        return []
    allowed = (size for size in range(2, seen) if all(condition.holds((size,)) is not False for condition in own))
    return list(itertools.islice(allowed, 1))


def _changes(symbols: Sequence[str], behind: Mapping[str, Sequence[Place]], now: Sizes) -> Iterator[dict[str, int]]:
    steps = {}
    for symbol in symbols:
        size = min((now[where] for where in behind[symbol] if where in now), default=0)
        wanted = [*range(2, size), *range(size + 1, 2 * size + 9)] if size else []
        steps[symbol] = [new - size for new in wanted][: 200 if len(symbols) == 1 else 24]
    for chosen in itertools.product(*steps.values()):
        yield dict(zip(symbols, chosen, strict=True))


def _is_empty(values: Any, how: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Return whether all tensors in values are without entries, or any; False where there are none."""
    leaves = (values.args, values.kwargs) if isinstance(values, Sample) else values
    found = [leaf.numel() == 0 for leaf in pytree.tree_leaves(leaves) if isinstance(leaf, torch.Tensor)]
    return bool(found) and how(found)


def _with_other_values(sample: Sample) -> Sample | None:
    """Return a call with other values in floating-point tensors of few entries; None where there are none."""
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    few = {
        index
        for index, leaf in enumerate(leaves)
        if type(leaf) is torch.Tensor
        and leaf.layout is torch.strided
        and leaf.is_floating_point()
        and 0 < leaf.numel() <= _FEW
    }
    if not few:
        return None
    made = [leaf + _steps(leaf) if index in few else leaf for index, leaf in enumerate(leaves)]
    args, kwargs = pytree.tree_unflatten(made, spec)
    return replace(sample, args=args, kwargs=kwargs)


def _steps(leaf: torch.Tensor) -> torch.Tensor:
    """Return numbers that are exact in all types and change all values, and their order."""
    steps = torch.arange(leaf.numel(), device=leaf.device).remainder(3) * 0.75 + 0.5
    return steps.reshape(leaf.shape).to(leaf.dtype)


class Judge:
    """Decides whether a program agrees with its model on a call.

    Args:
        program: captured from the model.
        model: the model.
        noted: the state of the model.
        check_guards: say nothing about calls that the program refuses; else trials ask what it computes beyond them.
    """

    def __init__(
        self,
        program: Program,
        model: torch.nn.Module,
        noted: NotedState | None = None,
        *,
        check_guards: bool = False,
    ) -> None:
        self._module: Any = program.module(check_guards=check_guards)
        self._model, self._noted, self._check_guards = model, noted, check_guards
        # torch 2.13 ends the process where bags have no offsets (the largest and the mean of nothing)
        self._ends_on_nothing = any("embedding_bag" in str(node.target) for node in program.graph.nodes)

    def judged(self, made: Iterable[Trial]) -> list[Trial]:
        """Return the trials that tell something, with whether the program is right."""
        found = []
        for trial in made:
            equal, sample = self._tried(trial.sample)
            if equal is None:
                continue
            # else the reason is what else the call changes: far sizes may mean what no real call has, such as a cache
            # that counts fewer tokens than it holds
            larger = None if equal else trial.larger()
            wrong_at = larger[1] if larger is not None and self.is_right(larger[0]) is False else None
            found.append(replace(trial, sample=sample, equal=equal, wrong_at=wrong_at))
        return found

    def is_right(self, sample: Sample) -> bool | None:
        """Return whether the program is right; None where the model rejects the call, or is not deterministic on it."""
        return self._tried(sample)[0]

    def _tried(self, sample: Sample) -> tuple[bool | None, Sample]:
        """Return whether the program is right, and the call that tells, which may have other values."""
        found = self._is_right(sample, where_it_fails=None if self._check_guards else False)
        # a few entries may agree by chance: 0 is twice itself
        other = _with_other_values(sample) if found else None
        # where the graph fails, other values may not be what the model takes for granted
        if other is not None and self._is_right(other, where_it_fails=None) is False:
            return False, other
        return found, sample

    def _is_right(self, sample: Sample, *, where_it_fails: bool | None) -> bool | None:
        if self._ends_on_nothing and _is_empty(sample, any):
            return None
        with without_output():
            try:
                with TimeLimit(LONGEST):
                    expected = outcome(self._model, sample, self._model, self._noted)
            except (Exception, TimeLimitReached):
                return None
            try:
                if difference(expected, outcome(self._module, sample, self._model, self._noted), ROUNDED).equal:
                    # results without entries are equal whatever the graph computes
                    return None if _is_empty(expected.output) and not _is_empty(sample, any) else True
            except Exception:  # of any kind: the graph fails where the model runs
                return where_it_fails
            # they differ; that counts only if the model agrees with itself, bit for bit: empty tensors and
            # uninitialised memory make some models give other results each time. The second run is made here alone, as
            # most trials agree.
            again = outcome(self._model, sample, self._model, self._noted)
            return False if difference(expected, again, EXACT).equal else None
