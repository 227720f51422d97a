"""What was measured of other weights of a model is not taken for what it is now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.measure.latency import Latency
from prepbench.objects.digest import value_mark
from tests.compile.search.test_search import clocked


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(candidates: Any, *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
        return {name: Latency((1.0,) * rounds, "own process") for name in candidates}

    clocked(monkeypatch, clock)


def net(seed: int = 0, width: int = 32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4)).eval()


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 16, generator=generator) for _ in range(3)]


def find(model: nn.Module, path: Path | None = None) -> pb.SearchResult:
    candidates = {"int8": pb.QuantizationSettings()}
    given: dict[str, Any] = {"targets": [pb.EagerDeployment()], "rounds": 2, "tries": 0, "results": path}
    return pb.search(model, inputs(), budget=pb.Budget(min_metric=5), candidates=candidates, **given)


def older(result: pb.SearchResult) -> list[str]:
    return [note for note in result.notes if "other weights" in note]


def test_who_trains_and_searches_again_is_told_once(tmp_path: Path) -> None:
    path, model = tmp_path / "results.sqlite", net()
    assert not older(find(net(width=8), path)), "another architecture, which is nobody's older weights"
    assert not older(find(model, path))
    assert not older(find(model, path))
    with torch.no_grad():
        model[0].weight.mul_(1.1)  # type: ignore[operator, union-attr]
    again = find(model, path)
    [said] = older(again)
    assert said.startswith("results.sqlite: 2 measurements are of this architecture with other weights")
    assert "not used" in said
    assert said in repr(again)
    assert again["int8"].metric == find(model)["int8"].metric


WRITES: dict[str, Callable[[Any], object]] = {
    "training": lambda model: model[0].weight.data.add_(0.01 * torch.randn(32, 16)),
    "another tensor": lambda model: setattr(model[0], "weight", nn.Parameter(torch.randn(32, 16))),
    "a checkpoint": lambda model: model.load_state_dict(net(1).state_dict()),
    "NumPy": lambda model: np.multiply(model[3].bias.detach().numpy(), 2, out=model[3].bias.detach().numpy()),
    "a batch norm": lambda model: model.train()(torch.randn(8, 16)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_result_says_that_its_model_has_other_weights(name: str) -> None:
    model = net()
    found = find(model)
    assert "have changed" not in repr(found), "neither did the search write to it"
    WRITES[name](model)
    said = "The weights of the model have changed since this was measured. Search again"
    assert said in repr(found)
    assert said in found._repr_mimebundle_()["text/html"]
    assert said in repr(found.with_budget(pb.Budget(min_metric=10)))


def test_a_mark_is_the_same_until_something_is_written() -> None:
    odd = nn.ParameterList([torch.zeros(0), torch.randn(3, 4).t(), torch.tensor(1.0), torch.randn(2, device="meta")])
    model = nn.Sequential(odd, nn.LazyLinear(3), net())
    assert value_mark(model) == value_mark(model)
    before = value_mark(model)
    with torch.no_grad():
        odd[1][2, 1] += 1
    assert value_mark(model) != before
