"""State that is no buffer: plain tensors and parameters into which forward writes. The user's model stays as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.errors import TargetError


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._total = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._total.add_(x.mean(0))
        return x + self._total


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.mul_(1.1)
        return x * self.scale


class Cached(nn.Module):
    """Attention that keeps its keys in a plain tensor, beside the layers of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.keys = torch.zeros(4, 8, 3)
        self.project = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = self.block.keys
        keys[: x.shape[0]] = keys[: x.shape[0]] * 0.5 + self.project(x)[:, None]
        return keys[: x.shape[0]].sum(1)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    plain = (value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor))
    return [*model.parameters(), *plain]


@pytest.mark.parametrize("kind", [Mean, Growing, Cached])
def test_state_is_kept_from_call_to_call_and_none_reaches_the_users_model(kind: Any) -> None:
    model = kind().eval()
    reference, before = copy.deepcopy(model), [value.clone() for value in _tensors(model)]
    samples, x = [torch.ones(2, 3), torch.ones(4, 3)], torch.randn(3, 3)
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), reference(x))
    assert all(map(torch.equal, before, _tensors(model)))
    with pytest.raises(TargetError, match="changes its buffers at each call"):
        pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment()], ids=["eager", "onnx"])
def test_rows_that_are_clipped_in_place_are_no_state(target: Any) -> None:
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 2)).eval()
    model[0].weight.data.mul_(5)
    reference, before = copy.deepcopy(model), model[0].weight.detach().clone()
    ids = torch.tensor([[0, 5, 7]])
    compiled = pb.compile_model(model, tracing_inputs=[torch.tensor([[1, 2, 3]])], deployment_settings=target)
    torch.testing.assert_close(compiled(ids), reference(ids))
    assert torch.equal(model[0].weight, before)


TOTAL, TOTALS = torch.zeros(3), [torch.zeros(3)]


class Helper:
    def __init__(self) -> None:
        self.total = torch.zeros(3)

    def added(self, x: torch.Tensor) -> torch.Tensor:
        return self.total.add_(x.sum(0))


class AddsToGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + TOTAL.add_(x.sum(0))


class AddsToList(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + TOTALS[0].add_(x.sum(0))


class AddsToHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.helper.added(x)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (AddsToGlobal, "the global TOTAL,"),
        (AddsToList, "the global TOTALS,"),
        (AddsToHelper, "the attribute helper.total,"),
    ],
)
def test_a_tensor_outside_of_the_state_is_named(kind: type[nn.Module], place: str) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(kind(), [torch.ones(2, 3), torch.ones(4, 3)])
    (failure,) = caught.value.failures
    assert f"forward writes into {place}" in failure.remedy
    assert "register_buffer" in failure.remedy
