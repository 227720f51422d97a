"""The zoo of failing modules as it is, without fixes: captured with leaves that hold few of the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prepbench.capture.aten import leaf_operators
from prepbench.capture.aten.capture import capture
from prepbench.inputs import Sample
from prepbench.running.given_samples import normalize_samples
from tests.compile.fixes.zoo.all import CASES
from tests.turns import in_turns, of_turn

MOST_INSIDE = 0.5
NAMES = sorted(CASES)  # the zoo itself is in the order in which its files are imported
TURN = (1, 6)
_SHARES: dict[str, float] = {}


class Counter(TorchDispatchMode):
    """Counts the operators that run inside of its block."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def in_leaves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operators each call of a leaf runs."""
    counts: list[int] = []
    forward_of: Callable[..., Any] = leaf_operators._Owner.forward

    def counted(owner: Any, fqn: str) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with Counter() as counter:
                result = forward_of(owner, fqn)(*args, **kwargs)
            counts.append(counter.count)
            return result

        return forward

    monkeypatch.setattr(leaf_operators._Owner, "forward", counted)
    return counts


@pytest.mark.parametrize("name", in_turns(NAMES, *TURN))
def test_every_module_is_captured(name: str, in_leaves: list[int]) -> None:
    model, samples = CASES[name].built()
    captured = capture(model, samples, fullgraph=False)
    sample: Sample = normalize_samples(model, samples)[0]
    with torch.no_grad(), Counter() as total:
        CASES[name].built()[0](*sample.args, **sample.kwargs)
    in_leaves.clear()
    with torch.no_grad():
        sample.call(captured.program.module())
    _SHARES[name] = sum(in_leaves) / max(total.count, 1)
    assert captured.leaves or not in_leaves


@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.stress)], ids=["short", "long"])
def test_leaves_hold_few_operators(complete: bool, capsys: pytest.CaptureFixture[str]) -> None:
    short = of_turn(NAMES, *TURN)
    names = [name for name in NAMES if name not in short] if complete else short
    shares = [_SHARES[name] for name in names if name in _SHARES]
    if len(shares) < len(names):
        pytest.fail("run the whole file: each module of the zoo adds its share")
    with_leaves = [share for share in shares if share]
    mean = sum(shares) / len(shares)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{len(shares)} captured, {len(with_leaves)} with leaves; operators inside: {mean:.0%} of those of a "
            f"module on average, {sum(with_leaves) / len(with_leaves):.0%} where there are leaves"
        )
    assert mean <= MOST_INSIDE
