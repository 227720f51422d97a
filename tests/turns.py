"""Products of parameters that are thinned out in the short form of the tests."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

MANY = 3  # cases


def every_second(*axes: Mapping[str, Any]) -> list[Any]:
    """All combinations as parameters of a test; as on a chessboard, every second one is left to the long form.

    Each value of each axis stays in the short form, and of three axes each pair of values of two.
    """
    found = []
    for places in itertools.product(*(enumerate(axis.items()) for axis in axes)):
        marks = [pytest.mark.stress] if sum(place for place, _ in places) % 2 else []
        names, values = zip(*(entry for _, entry in places), strict=True)
        found.append(pytest.param(*values, id="-".join(names), marks=marks))
    return found


def one_pair_each(rows: Mapping[str, Any], columns: Mapping[str, Any], turns: int = 1) -> list[Any]:
    """All pairs as parameters of a test; in the short form each row has one column, and the columns take turns.

    With ``turns``, only every so many rows are in the short form.
    """
    found = []
    for number, (row_name, row) in enumerate(rows.items()):
        for place, (name, column) in enumerate(columns.items()):
            is_short = number % turns == 0 and place == number // turns % len(columns)
            marks = [] if is_short else [pytest.mark.stress]
            found.append(pytest.param(row, column, id=f"{row_name}-{name}", marks=marks))
    return found


def of_turn(names: Iterable[Any], turn: int, turns: int = 2) -> list[Any]:
    """Each second name or target, or third, by ``turn`` from 0 on: those that one test takes in the short form."""
    return list(names)[turn::turns]


def in_turns(names: Iterable[Any], turn: int, turns: int = 2, order: Iterable[Any] | None = None) -> list[Any]:
    """All names or targets as parameters of a test; those of other turns are left to the long form.

    Tests of one pipeline take different turns, so that one has what others leave. Where they take different names,
    ``order`` has all of them.
    """
    given = list(names)
    short = of_turn(given if order is None else order, turn, turns)  # a list: what is chosen may not be hashable
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.stress]) for name in given]


def leave_most(items: Iterable[pytest.Item]) -> None:
    """Mark most cases of each test with many for the long form, unless the test says itself which.

    Every second stays, of six and more every third, of sixteen and more every fourth. Which of them hangs on the test's
    name, so that of two tests over the same cases one is likely to take what the other leaves.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        chooses = any(item.get_closest_marker("stress") for item in cases)
        if len(cases) < MANY or chooses:
            continue
        turns = 2 if len(cases) < 6 else 3 if len(cases) < 16 else 4
        turn = zlib.crc32(name.encode()) % turns
        for place, item in enumerate(cases):
            if place % turns != turn:
                item.add_marker("stress")
