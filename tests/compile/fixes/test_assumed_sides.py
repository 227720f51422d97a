"""A branch on data whose other side no graph can hold: the side of all samples stays, and other calls are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb


class Structures(nn.Module):
    """The sides give values of different structures."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 7)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        found = mask.any().item()
        if found:
            # kept with the side
            return self.one(x) + x[mask].sum(0)
        return {"none": self.other(x)}


class Late(nn.Module):
    """The branch is an ``elif``."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 7)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.one(x)
        if x.shape[0] > 100:
            x = x + 1
        elif x.abs().max() > 1000:
            return self.other(x), 3
        return x


class LeavesLoop(nn.Module):
    """The branch is left by ``continue``, which other kinds rewrite in place."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        made: list[Any] = []
        for part in (first, second):
            if part.abs().max() > 1000:
                made.append("large")
                continue
            made.append(part * 2)
        return made


class OneOfTwoKinds(nn.Module):
    """``torch.where`` holds no dict, and ``torch.cond`` only lacks a sample."""

    def forward(self, x: torch.Tensor) -> Any:
        if x.abs().max() > 1000:
            return {"large": x}
        return x + 1


class InExpression(nn.Module):
    """``a if c else b`` of a tensor and of text."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        reduction = "sum" if x.mean() > 1000 else "none"
        return nn.functional.l1_loss(self.one(x), x, reduction=reduction)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, is_global: Any) -> Any:
        if is_global:
            return self.one(x), x.nonzero()
        return x


class Handed(nn.Module):
    """The number is read from a tensor in another module than that of the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, (x > 0).any().item())


class Picked(nn.Module):
    """Its sides give other shapes: equal in Python with torch.cond, but in no graph."""

    def forward(self, scores: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        keep = scores.sigmoid().amax(-1) > 0.5
        if keep.sum() == 0:
            return boxes[:, :1]
        best = scores.amax(-1).argmax(-1)
        return boxes[torch.arange(boxes.shape[0]), best]


CASES = {
    "shapes": (
        Picked,
        [(torch.rand(n, 5, 3) + 1, torch.randn(n, 5, 4)) for n in (2, 3)],
        (torch.full((2, 5, 3), -9.0), torch.randn(2, 5, 4)),
    ),
    "structures": (
        Structures,
        [(torch.randn(n, 4), torch.arange(n) < 1) for n in (2, 3, 5)],
        (torch.randn(3, 4), torch.zeros(3, dtype=torch.bool)),
    ),
    "elif": (Late, [(torch.randn(n, 4),) for n in (2, 3)], (torch.full((2, 4), 1e6),)),
    "expression": (InExpression, [(torch.randn(n, 4),) for n in (2, 3)], (torch.full((2, 4), 1e6),)),
    "continue": (
        LeavesLoop,
        [(torch.randn(n, 4), torch.randn(n, 4)) for n in (2, 3)],
        (torch.full((2, 4), 1e6), torch.zeros(2, 4)),
    ),
    "two kinds": (OneOfTwoKinds, [(torch.randn(n, 4),) for n in (2, 3)], (torch.full((2, 4), 1e6),)),
    "handed": (Handed, [(torch.randn(n, 4).abs(),) for n in (2, 3)], (-torch.ones(2, 4),)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_side_of_every_sample_is_a_draft_that_refuses_the_other(case: str) -> None:
    make, samples, other = CASES[case]
    model = make().eval()
    fixed = pb.fix(model, samples)
    (draft,) = fixed.remaining
    assert draft.fix is not None
    assert "as on every sample" in draft.reason
    changed = fixed.model_with(draft.fqn)
    with pytest.raises(RuntimeError, match=r"which pb.fix assumed to be enough"):
        changed(*other)  # in Python, too
    compiled = pb.compile_model(changed, tracing_inputs=samples)
    larger = tuple(torch.cat([part, part]) for part in samples[0])
    for call in (*samples, larger):
        torch.testing.assert_close(compiled(*call), model(*call))
    with pytest.raises(pb.errors.ConditionError, match=r"assumed to be enough|a check of values passes"):
        compiled(*other)


def test_a_sample_of_the_other_side_leaves_no_assumption() -> None:
    make, samples, other = CASES["structures"]
    fixed = pb.fix(make().eval(), [*samples, other])
    assert all(draft.fix is None for draft in fixed.remaining)
    assert not any("as on every sample" in draft.reason for draft in fixed.remaining)


def test_sides_that_a_graph_can_hold_ask_for_a_sample_instead() -> None:
    class Rare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 1e30:
                x = x * 2
            return x + 1

    fixed = pb.fix(Rare(), [torch.randn(2, 4), torch.randn(3, 4)])
    assert not any("as on every sample" in draft.reason for draft in fixed.remaining)
