"""A model whose samples take both sides of a branch on sizes: the bench agrees with what its compile does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench import captures
from prepbench.bench.summary import BenchSummary


class Thinned(nn.Module):
    """Leaves every second row of long inputs out."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        if x.shape[1] > 6:
            x = x[:, ::2]
        return x


class Gate(nn.Module):
    """Branches on a value, which a proven fix writes as ``torch.where``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:
            return x * 2
        return x - 1


class Staged(nn.Module):
    """Does something else for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in range(4, 12, 2):
            if x.shape[1] > step:
                x = x * step
        return self.out(x)


def _samples(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2 + index, length, 6, generator=generator) for index, length in enumerate(lengths)]


def _model() -> nn.Module:
    return nn.Sequential(Thinned(), nn.Linear(6, 2))


def _said(summary: BenchSummary) -> tuple[str, str, str]:
    return summary.sentence.split(" · ")[0], summary.steps[0].status, summary.steps[0].kind


def _compile(bench: pb.Bench) -> None:
    bench.compile()


@pytest.mark.parametrize("act", [pb.Bench.find_fixes, pb.Bench.capture, _compile])
def test_each_action_that_makes_several_graphs_says_so(act: Callable[[pb.Bench], None]) -> None:
    bench = pb.Bench(_model(), tracing_inputs=_samples(5, 9))
    assert _said(bench.summary()) == ("1 module cannot be captured", "1 fail", "bad")
    act(bench)
    summary = bench.summary()
    assert _said(summary) == ("captured as 2 graphs", "2 graphs", "good")
    (card,) = summary.failures  # it stays, with the line that decides
    assert (card.fqn, card.graphs, card.code) == ("0", 2, "if x.shape[1] > 6:")
    modules = bench.collection.document().modules
    assert {module.status for module in modules} == {"traced"}
    assert not bench.collection.failures
    assert "captured as 2 graphs" in bench._repr_mimebundle_()["text/html"]


def test_it_is_tried_once_and_known_in_the_background() -> None:
    bench = pb.Bench(_model(), tracing_inputs=_samples(5, 9))
    assert not bench.summary().fixes_known
    bench.find_fixes()
    assert bench.summary().fixes_known
    shown = bench.collection
    bench.find_fixes()
    assert bench.collection is shown  # the diagram is not drawn again


def test_a_cancelled_trial_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = pb.Bench(_model(), tracing_inputs=_samples(5, 9))

    def cancelled(*given: object, **more: object) -> None:
        raise pb.Cancelled

    with monkeypatch.context() as patched:
        patched.setattr(captures, "capture", cancelled)
        with pytest.raises(pb.Cancelled):
            bench.find_fixes()
    assert not bench.summary().fixes_known
    bench.find_fixes()
    assert _said(bench.summary()) == ("captured as 2 graphs", "2 graphs", "good")


def test_more_ways_than_graphs_stay_a_failure_with_the_reason() -> None:
    bench = pb.Bench(Staged(), tracing_inputs=_samples(3, 5, 7, 9, 11))
    bench.find_fixes()
    summary = bench.summary()
    assert summary.steps[0].kind == "bad"
    assert summary.fixes_known
    (card,) = summary.failures
    assert card.graphs == 0
    assert "more ways than the 4 graphs" in card.remedy


def test_it_is_asked_again_once_nothing_else_fails() -> None:
    bench = pb.Bench(nn.Sequential(Thinned(), Gate()), tracing_inputs=_samples(5, 9))
    bench.find_fixes()
    assert _said(bench.summary())[0] == "2 modules cannot be captured"
    bench.apply_fix("1")
    assert not bench.summary().fixes_known
    bench.find_fixes()
    assert _said(bench.summary()) == ("captured as 2 graphs", "2 graphs", "good")
    bench.undo()
    assert _said(bench.summary())[0] == "2 modules cannot be captured"
