"""Indices that PyTorch refuses are refused by compiled models, whatever the runtime would make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError


class Tables(nn.Module):
    """Two tables behind one input, through operators that keep the numbers, and one behind a computed index."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Embedding(50, 4), nn.Embedding(10, 4)
        self.register_buffer("rows", torch.arange(7.0))
        self.register_buffer("corners", torch.arange(8.0).reshape(2, 4))

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, free: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        both = self.large(ids.unsqueeze(-1)) + self.small(ids.clone()[..., None].to(torch.int64))
        picked = self.rows.index_select(0, kinds.flatten()).sum()
        picked = picked + self.corners[:, turns].sum()
        return both.sum() + picked + self.large(free.clamp(0, 49)).sum() + free.sum()


def call(
    low: int = 0, high: int = 9, kind: int = 6, free: int = 3, turn: int = -4, size: int = 5
) -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([[low, high] * size])
    return ids, torch.full((1, size), kind), torch.full((1, size), free), torch.full((size,), turn)


@pytest.mark.parametrize("settings", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.EagerDeployment()])
def test_indices_beyond_a_table_are_refused(settings: pb.DeploymentSettings, tmp_path: Path) -> None:
    if isinstance(settings, pb.OpenVinoDeployment):
        pytest.importorskip("openvino")
    model = Tables().eval()
    compiled = pb.compile_model(model, tracing_inputs=[call(), call(size=3)], deployment_settings=settings)
    compiled.save(tmp_path / "saved")
    for one in (compiled, pb.load_compiled(tmp_path / "saved")):
        for right in (call(), call(free=-5), call(free=1000), call(size=8), call(turn=3)):
            assert torch.allclose(one(*right), model(*right), rtol=1e-2)
        for wrong in (call(low=-1), call(high=10), call(high=49), call(kind=7), call(kind=-1)):
            with pytest.raises((IndexError, RuntimeError)):
                model(*wrong)
            with pytest.raises(InputError, match=r"(ids|kinds) holds indices into a table of (10|7) rows: expected 0"):
                one(*wrong)
        for wrong in (call(turn=-5), call(turn=4), call(turn=-(2**40))):
            with pytest.raises(InputError, match="turns holds indices into a table of 4 rows: expected -4 to 3"):
                one(*wrong)


def test_the_manifest_must_have_a_number_of_rows() -> None:
    from prepbench.package.manifest_check import check_calls

    compiled = pb.compile_model(nn.Embedding(5, 2), tracing_inputs=[torch.tensor([1, 2]), torch.tensor([1, 2, 3])])
    calls = compiled._call_spec.to_dict()
    assert calls["tensors"][0]["below"] == 5
    check_calls(calls)
    for wrong in ("5", -1, None, 1.5, True):
        with pytest.raises(ValueError, match="below must be a number of rows"):
            check_calls({**calls, "tensors": [{**calls["tensors"][0], "below": wrong}]})
    for wrong in ("5", 1, None, 1.5, True):
        with pytest.raises(ValueError, match="from must be the least index"):
            check_calls({**calls, "tensors": [{**calls["tensors"][0], "from": wrong}]})
