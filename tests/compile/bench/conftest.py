"""Benches and pasted code that compare without timing: what is timed, and how, is tested in ``measure``."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

import prepbench as pb
from prepbench.measure.run import compare


@pytest.fixture(autouse=True, scope="module")  # before the benches that the tests of a file share
def untimed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_times = functools.partial(compare, rounds=0)
        patch.setattr("prepbench.bench.compiling.compare", without_times)
        patch.setattr(pb, "compare", without_times)
        yield
