"""The zoo of failing modules: how many are fixed, that what is fixed is equal, and that the rest have leaves."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import prepbench as pb
from prepbench.fixes import Fixed
from prepbench.inputs import Sample
from prepbench.objects.compare import REWRITTEN, difference
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import outcome
from tests.compile.fixes.zoo.all import CASES
from tests.turns import in_turns, of_turn

GOAL = 0.9
NAMES = sorted(CASES)  # the zoo itself is in the order in which its files are imported
TURN = (0, 6)  # test_zoo_leaves.py has others
_FIXED: dict[str, Fixed] = {}
FIXABLE = [name for name, case in CASES.items() if case.fixable]


def fixed(name: str) -> Fixed:
    if name not in _FIXED:
        _FIXED[name] = pb.fix(*CASES[name].built())
    return _FIXED[name]


@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.stress)], ids=["short", "long"])
def test_most_of_the_zoo_is_fixed(complete: bool, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.perf_counter()
    names = NAMES if complete else of_turn(NAMES, *TURN)
    left = [name for name in names if not fixed(name).passed]
    share = 1 - len(left) / len(names)
    with capsys.disabled():
        print(f"\n{len(names) - len(left)} of {len(names)} fixed, {time.perf_counter() - start:.0f} s; left: {left}")  # noqa: T201
    assert share >= GOAL


@pytest.mark.parametrize("name", in_turns(NAMES, 0, 6))
def test_every_module_is_captured_or_has_leaves(name: str) -> None:
    _, samples = CASES[name].built()
    assert bool(pb.capture(fixed(name).model, samples, fullgraph=False).leaves) is not fixed(name).passed


@pytest.mark.parametrize("name", in_turns(NAMES, *TURN))
@given(
    scale=st.sampled_from([-100.0, -1.0, 1e-3, 0.0, 0.1, 1.0, 3.0, 50.0]),
    shift=st.floats(-2, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_fix_differs(name: str, scale: float, shift: float, seed: int) -> None:
    if not fixed(name).applied:
        return
    model, samples = CASES[name].built()
    noise = torch.Generator().manual_seed(seed)

    def changed(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf * scale + shift + 0.3 * torch.randn(leaf.shape, generator=noise)

    for sample in normalize_samples(model, samples):
        other = sample.map(changed)
        try:
            expected = outcome(model, other, model)
        except Exception:  # made-up values that the model refuses
            continue
        if _refuses(fixed(name).model, other):
            continue  # it needs more iterations than were assumed
        found = difference(expected, outcome(fixed(name).model, other, fixed(name).model), REWRITTEN)
        assert found.equal, found.text


def _refuses(model: torch.nn.Module, sample: Sample) -> bool:
    """Whether the fixed model refuses a call because of its assumption."""
    try:
        outcome(model, sample, model)
    except RuntimeError as error:
        return "assumed" in str(error)
    return False
