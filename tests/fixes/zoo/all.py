"""All modules of the zoo."""

import pytest

from tests.fixes.zoo import (  # noqa: F401
    arrays,
    branches,
    calls,
    chosen,
    effects,
    everyday,
    habits,
    loops,
    masks,
    numbers,
    places,
    row_blocks,
    rows,
)
from tests.fixes.zoo.case import CASES

__all__ = ["CASES", "in_turns", "turn_of"]

TURNS = 3


def turn_of(turn: int) -> list[str]:
    """Each third module, by ``turn`` 0, 1 or 2: those that one test takes in the short form."""
    return list(CASES)[turn::TURNS]


def in_turns(turn: int) -> list[object]:
    """All modules as parameters of a test; those of other turns are left to the long form."""
    short = turn_of(turn)
    return [pytest.param(name, marks=[] if name in short else [pytest.mark.stress]) for name in CASES]
