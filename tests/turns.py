"""Products of parameters that are thinned out in the short form of the tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest


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
