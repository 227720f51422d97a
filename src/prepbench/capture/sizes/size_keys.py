"""Dicts and sets that Python asks with a size, such as masks that are kept for each length.

Tracing looks up a symbolic size as a key that none of them has, so the graph computes what is kept for each size. Where
they hold numbers, the size may have to differ from each: trial calls tell whether it makes a difference.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from prepbench.objects.parts import is_user_code, reached, walk

_MOST = 32
"""More numbers than this are no cache of a few calls, and need a trial call each."""

_ASKING = frozenset({"get", "setdefault", "pop", "add", "discard", "remove"})
"""Methods of dicts and sets that take a key."""


class SizeKeys:
    """What the dicts and sets that a model reaches hold for sizes.

    Args:
        model: the model, as it is before the trace.

    Attributes:
        asked: whether one was asked with a symbolic size.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.asked = False
        self._model = model
        self._held: frozenset[int] | None = None
        self._is_open = True
        self._last: tuple[FrameType, int, str] | None = None

    def numbers(self, frame: FrameType, size: str) -> frozenset[int] | None:
        """Return the numbers that a size may meet where this frame asks; None where a size cannot be asked for.

        Such are calls of functions that keep results, whose keys nobody sees, tables of several sizes together, and
        large ones.
        """
        if not is_user_code(frame.f_code) or not _asks_container(frame):
            return None
        if self._held is None:
            found = _keys(part for _, part in walk(self._model, reached))
            self._held = frozenset() if found is None else found
            self._is_open = found is not None
        near = _keys(frame.f_locals.values())
        if not self._is_open or near is None:
            return None
        # a dict or set that is written where it is asked
        found = near | self._held | set(_constants(frame.f_code.co_consts))
        before, self._last = self._last, (frame, frame.f_lasti, size)
        # a key of two sizes: neither of them alone tells whether an entry is met
        is_pair = before is not None and before[:2] == self._last[:2] and before[2] != size
        known = (near, self._held, *(value for value in frame.f_code.co_consts if isinstance(value, tuple)))
        if len(found) > _MOST or (is_pair and any(len(list(_constants(one))) for one in known)):
            return None
        self.asked = True
        return found


def _constants(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, tuple | frozenset):
            yield from _constants(value)
        else:
            yield from _numbers(value)


def _keys(values: Iterable[Any]) -> frozenset[int] | None:
    """Return the numbers among the keys of dicts and sets; None if a key has several, or there are too many."""
    found: set[int] = set()
    for value in values:
        if not isinstance(value, dict | set | frozenset):
            continue
        for key in list(value):
            numbers = list(_numbers(key))
            if len(numbers) > 1:
                return None
            found.update(numbers)
        if len(found) > _MOST:
            return None
    return frozenset(found)


def _numbers(key: Any) -> Iterator[int]:
    if isinstance(key, tuple):
        for part in key:
            yield from _numbers(part)
    elif isinstance(key, int | float) and not isinstance(key, bool) and math.isfinite(key) and key == int(key):
        yield int(key)


def _asks_container(frame: FrameType) -> bool:
    """Return whether the instruction that a frame stands at asks a dict or a set, rather than calls a function."""
    instructions = {each.offset: each for each in dis.get_instructions(frame.f_code)}
    here = instructions.get(frame.f_lasti)
    if here is None or not here.opname.startswith("CALL"):
        return here is not None
    start = here.positions and (here.positions.lineno, here.positions.col_offset)
    return any(
        each.opname in ("LOAD_METHOD", "LOAD_ATTR")
        and each.argval in _ASKING
        and (each.positions and (each.positions.lineno, each.positions.col_offset)) == start
        for each in instructions.values()
    )
