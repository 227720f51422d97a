"""Benches that compare without timing: what is timed, and how, is tested in tests/compare."""

from __future__ import annotations

import functools

import pytest

from prepbench.measure.run import compare


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0))
