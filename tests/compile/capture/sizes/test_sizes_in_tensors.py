"""Sizes that a model divides with torch.div, so that tensors hold them, and shapes by them."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture
from prepbench.compile.pipeline import compile_model
from prepbench.settings import OnnxRuntimeDeployment


def _windows(x: torch.Tensor) -> torch.Tensor:
    """Windows that overlap by half, as a long-document encoder makes them."""
    count = torch.div(x.size(1), 2, rounding_mode="trunc") - 1
    parts = x.view(x.size(0), torch.div(x.size(1), 4, rounding_mode="trunc"), 4, x.size(2))
    size, stride = list(parts.size()), list(parts.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    windows = parts.as_strided(size=size, stride=stride)
    return windows + x.new_ones((x.size(0), count, 4, x.size(2)))


def _changed(x: torch.Tensor) -> torch.Tensor:
    """The tensor is a tensor where the model changes it."""
    half = torch.div(x.size(1), 2, rounding_mode="floor")
    total = half + 0
    total += 1
    return x * half + total


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(x.size(0), torch.div(x.size(1), 4, rounding_mode="trunc"), 4, x.size(2)),
    "reshape by a keyword": lambda x: x.reshape(shape=(-1, torch.div(x.size(1), 2, rounding_mode="floor"), 2)),
    "a product": lambda x: x.reshape(x.size(0), (torch.div(x.size(1), 4, rounding_mode="trunc") - 1) * 4 + 4, -1),
    "a slice": lambda x: x[:, : torch.div(x.size(1), 2, rounding_mode="trunc")] * 2,
    "read": lambda x: x.narrow(1, 0, torch.div(x.size(1), 2, rounding_mode="trunc").item()),
    "windows": _windows,
    "as a number": lambda x: x * torch.div(x.size(1), 4, rounding_mode="trunc"),
    "changed in place": _changed,
}


class Shaped(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.shape = SHAPES[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shape(x) + 1


SAMPLES = [torch.randn(batch, length, 3) for batch, length in ((2, 8), (3, 16), (1, 24))]


@pytest.mark.parametrize("name", SHAPES)
def test_one_graph_for_all_sizes(name: str) -> None:
    model = Shaped(name)
    program = capture(model, SAMPLES).program.module()
    for batch, length in ((2, 12), (4, 20), (5, 28)):
        x = torch.randn(batch, length, 3)
        torch.testing.assert_close(program(x), model(x))


def test_a_division_of_what_may_be_negative_is_left_to_torch() -> None:
    class Negative(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.div(x.size(1) - 13, 4, rounding_mode="trunc")

    model = Negative()
    program = capture(model, SAMPLES).program.module()
    for length in (4, 6, 8, 11, 30):
        x = torch.randn(2, length, 3)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("name", ["view", "a product", "a slice"])
def test_a_target_computes_it(name: str) -> None:
    model = Shaped(name)
    compiled = compile_model(model, tracing_inputs=SAMPLES, deployment_settings=OnnxRuntimeDeployment())
    for batch, length in ((2, 12), (4, 20)):
        x = torch.randn(batch, length, 3)
        torch.testing.assert_close(compiled(x), model(x))


class CountsWhatItSelects(nn.Module):
    """``len`` of a selection is a size; dynamo, which knows that, refuses the frame."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inspect.currentframe()
        chosen = mask.nonzero(as_tuple=True)
        return x[chosen].view(len(chosen[0]), -1)


def test_the_length_of_a_selection_is_a_size() -> None:
    model = CountsWhatItSelects()
    samples = [(torch.randn(3, 4, 2, 2), torch.eye(3, 4) > 0), (torch.randn(2, 4, 2, 2), torch.ones(2, 4) > 0)]
    captured = capture(model, samples)
    for call in (*samples, (torch.randn(5, 4, 2, 2), torch.eye(5, 4) > 0)):
        torch.testing.assert_close(captured.program.module()(*call), model(*call))
