"""A mask that leaves tokens out whose positions are counted is a finding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.capture.failures.findings import PADDING


class Words(torch.nn.Module):
    """Each word sees the mean of those before it, with its position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Embedding(20, 8)

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any = None) -> torch.Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])
        x = (self.words(input_ids) + self.places(position_ids)) * attention_mask[..., None]
        return x.cumsum(1) / attention_mask.cumsum(1).clamp(min=1)[..., None]


MASKS = {"left": [[0, 0, 1, 1, 1], [1] * 5], "right": [[1, 1, 1, 0, 0], [1] * 5], "none": [[1] * 5] * 2}


def samples(side: str, *, positions: bool) -> list[dict[str, torch.Tensor]]:
    mask = torch.tensor(MASKS[side])
    made = [{"input_ids": torch.arange(10).view(2, 5), "attention_mask": mask}]
    made.append({"input_ids": torch.arange(9).view(3, 3), "attention_mask": torch.ones(3, 3, dtype=torch.long)})
    if positions:
        for one in made:
            one["position_ids"] = (one["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return made


@pytest.mark.parametrize(
    ("side", "positions", "count"), [("left", False, 1), ("left", True, 0), ("right", False, 0), ("none", False, 0)]
)
def test_padding_that_moves_positions_is_found(side: str, positions: bool, count: int) -> None:
    captured = pb.capture(Words().eval(), samples(side, positions=positions))
    found = [finding for finding in captured.findings if finding.kind == PADDING]
    assert len(found) == count
    if found:
        assert "attention_mask leaves out 2 of 5 tokens of row 0 in inputs[0]" in found[0].message
        assert "position_ids" in found[0].remedy
