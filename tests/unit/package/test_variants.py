"""A call of several graphs gives each result, constant and assertion at its own place, whichever graph runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from prepbench.calls.variant_calls import VariantCall
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.package.variants import VariantsRuntime
from prepbench.targets import Runtime

RESULTS = 3


class _Given(Runtime):
    """Returns what it was made with."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs = outputs

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        return list(self._outputs)

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def _call(size: int, constants: dict[int, Any], assertions: int) -> VariantCall:
    formula = f"Equality(Symbol('s0'), Integer({size}))"
    condition = SizeCondition(f"x.shape[0] == {size}", ("x.shape[0]",), None, formula, ((0, 0),))
    return VariantCall((condition,), ({"dtype": "float32", "shape": [None]},), constants, assertions)


@pytest.mark.parametrize("assertions", list(itertools.product((0, 1, 2), repeat=3)), ids=str)
def test_every_output_has_its_place(assertions: tuple[int, ...]) -> None:
    constants: list[dict[int, Any]] = [{}, {1: "c1"}, {0: "c0", 2: "c2"}]
    calls = [_call(size, *rest) for size, rest in enumerate(zip(constants, assertions, strict=True), 1)]
    runtimes = [
        _Given(
            [f"{index} computes {place}" for place in range(RESULTS) if place not in call.constants]
            + [f"{index} asserts {number}" for number in range(call.assertions)]
        )
        for index, call in enumerate(calls)
    ]
    runtime = VariantsRuntime(runtimes, calls, ("x",))
    for taken, call in enumerate(calls):
        found = list(runtime.run([torch.zeros(taken + 1)]))
        expected = [call.constants.get(place, f"{taken} computes {place}") for place in range(RESULTS)]
        for index, other in enumerate(calls):  # those of graphs that did not run hold
            expected += [f"{index} asserts {at}" if index == taken else True for at in range(other.assertions)]
        assert [bool(one) if isinstance(one, torch.Tensor) else one for one in found] == expected
