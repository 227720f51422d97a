"""A captured graph is tried at sizes that no sample had, and says which axes hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from prepbench._torch_compat.programs import without_guards
from prepbench.capture.aten.capture import capture
from prepbench.capture.sizes.dynamic_axes import DynamicAxes


def shapes(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(size) for size in sizes]


class Small(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 4 else x + 1


class Blocks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        return x.view(b, c, h // 4, 4, w // 4, 4).mean((3, 5))


def test_verify_says_that_an_axis_holds() -> None:
    report = capture(nn.Linear(4, 2), shapes((1, 4), (2, 4))).verify()
    assert report.passed
    assert report.axes[0].status == "holds"
    assert 5 in report.axes[0].held


def test_verify_says_that_an_axis_is_bounded() -> None:
    report = capture(Small(), shapes((2, 3), (3, 3))).verify()
    assert not report.passed
    assert report.axes[0].status == "bounded"
    assert report.axes[0].range == (0, 4)
    assert 5 in report.axes[0].refused
    assert "not 5" in repr(report)


def test_verify_tries_sizes_of_the_kind_that_was_seen() -> None:
    report = capture(Blocks(), shapes((1, 2, 8, 8), (1, 2, 12, 16))).verify()
    assert report.passed
    assert {16, 24} <= set(report.axes[0].held)


def test_axis_made_dynamic_by_hand_on_one_sample() -> None:
    model = nn.Linear(4, 2)
    samples = shapes((1, 4))
    captured = capture(model, samples, dynamic_axes=DynamicAxes.infer(samples, model).set("input", 0))
    x = torch.randn(6, 4)
    assert torch.equal(captured.program.module()(x), model(x))


def test_static_axis_stays_static() -> None:
    model = nn.Linear(4, 2)
    samples = shapes((2, 4), (3, 4))
    captured = capture(model, samples[:1], dynamic_axes=DynamicAxes.infer(samples, model).set("input", 0, False))
    with pytest.raises(AssertionError, match=r"size\(\)\[0\]"):
        captured.program.module()(torch.randn(3, 4))


class Patches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        return x.view(b, c, h // 4, 4, w // 4, 4).mean((3, 5))


def test_divisible_axes_are_said_in_words_with_their_line() -> None:
    captured = capture(Patches(), [torch.randn(1, 2, 8, 8), torch.randn(2, 2, 12, 16)])
    report = captured.verify()
    assert report.passed, report
    texts = {axis.dim: [condition.text for condition in axis.conditions] for axis in report.axes}
    assert "x.shape[2] must be a multiple of 4" in texts[2]
    assert "x.shape[3] must be a multiple of 4" in texts[3]
    assert "x.view(b, c, h // 4, 4, w // 4, 4)" in repr(report)


class Threshold(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            return x * 2
        return x


def test_a_bound_is_said_with_the_line_that_made_it() -> None:
    report = capture(Threshold(), [torch.randn(2, 3), torch.randn(3, 3)]).verify()
    (axis,) = report.axes
    assert axis.status == "bounded"
    (condition,) = axis.conditions
    assert condition.text == "x.shape[0] is at most 4"
    assert condition.source is not None
    assert condition.source.code == "if x.shape[0] > 4:"
    assert "x.shape[0] is at most 4" in repr(report)


class Shifted(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask[:, 1:]


def test_sizes_that_depend_on_each_other_are_said_in_words() -> None:
    samples = [(torch.randn(2, 3), torch.randn(2, 4)), (torch.randn(3, 5), torch.randn(3, 6))]
    assert "mask.shape[1] always equals x.shape[1] + 1" in repr(capture(Shifted(), samples).verify())


def test_verification_stays_within_the_limits_of_an_axis() -> None:
    axes = DynamicAxes.infer(shapes((2, 3), (3, 3)), Threshold()).limit("x", 0, min=1, max=4)
    report = capture(Threshold(), shapes((2, 3), (3, 3)), dynamic_axes=axes).verify()
    assert report.passed, report
    assert max(report.axes[0].held) <= 4


def test_other_axes_can_be_tried_than_those_of_the_capture() -> None:
    samples = shapes((2, 3), (3, 3))
    captured = capture(Threshold(), samples)
    within = DynamicAxes.infer(samples, Threshold()).limit("x", 0, max=4)
    assert not captured.axes.verify(captured).passed
    assert within.verify(captured).passed


def test_a_size_of_0_is_tried_and_told_where_the_graph_is_wrong() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(1, 4) if x.shape[0] == 0 else x.sum(0, keepdim=True)

    captured = capture(Total(), [torch.ones(2, 4), torch.ones(3, 4)])
    assert captured.verify().passed  # the graph refuses it
    unchecked = replace(captured, program=without_guards(captured.program))
    assert unchecked.verify().axes[0].wrong == (0,)
