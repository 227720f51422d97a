"""Indices that PyTorch refuses are refused by compiled models, whatever the runtime would make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

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


ZEROS = torch.zeros(3, 6)
PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one_hot": lambda ids: functional.one_hot(ids, 6).sum(-1),
    "index_add": lambda ids: ZEROS.index_add(1, ids, torch.ones(3, 2)),
    "index_copy": lambda ids: ZEROS.index_copy(1, ids, torch.ones(3, 2)),
    "index_fill": lambda ids: ZEROS.index_fill(1, ids, 2.0),
    "index_put": lambda ids: ZEROS.index_put((torch.tensor(1), ids), torch.ones(2)),
    "scatter": lambda ids: ZEROS.scatter(1, ids[None], 1.0),
    "scatter of a tensor": lambda ids: ZEROS.scatter(1, ids[None], torch.ones(1, 2)),
    "scatter_add": lambda ids: ZEROS.scatter_add(1, ids[None], torch.ones(1, 2)),
    "scatter_reduce": lambda ids: ZEROS.scatter_reduce(1, ids[None], torch.ones(1, 2), "amax", include_self=False),
    "gather": lambda ids: ZEROS.gather(1, ids[None]),
}


class Places(nn.Module):
    """Reads or writes where indices say."""

    def __init__(self, places: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.places = places

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.places(ids)


def answer(call: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> torch.Tensor | None:
    try:
        return call(ids).float()
    except (IndexError, RuntimeError, InputError):
        return None


@pytest.mark.parametrize("name", PLACES)
def test_places_are_refused_where_pytorch_refuses_them(name: str) -> None:
    model = Places(PLACES[name]).eval()
    inputs = [torch.tensor([0, 5]), torch.tensor([2, 3])]
    compiled = pb.compile_model(model, tracing_inputs=inputs, deployment_settings=pb.OnnxRuntimeDeployment())
    refused = []
    for index in (-7, -6, -1, 0, 5, 6, 2**40):
        ids = torch.tensor([index, 1])
        expected, found = answer(model, ids), answer(compiled, ids)
        assert (expected is None) is (found is None), index
        if expected is None or found is None:
            refused.append(index)
        else:
            assert torch.equal(found, expected), index
    assert {-7, 6, 2**40} <= set(refused)


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_indices_of_bags_are_refused_and_bags_of_nothing_are_not_tried(mode: str) -> None:
    model = nn.EmbeddingBag(10, 4, mode=mode).eval()
    samples = [(torch.tensor([1, 2, 3]), torch.tensor([0, 2])), (torch.arange(5), torch.tensor([0, 2, 4]))]
    # torch itself ends the process on the largest of no bags
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    right = torch.tensor([9, 0, 4, 4]), torch.tensor([0, 1])
    torch.testing.assert_close(compiled(*right), model(*right))
    for wrong in (-1, 10):
        with pytest.raises(InputError, match="indices into a table of 10 rows"):
            compiled(torch.tensor([0, wrong]), torch.tensor([0]))
