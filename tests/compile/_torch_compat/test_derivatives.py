"""Derivatives that a forward computes are operators of the captured graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError


class Penalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            own = x.detach().clone().requires_grad_()
            score = self.net(own)
            slope = torch.autograd.grad(score, own, torch.ones_like(score), create_graph=True)[0]
        return score, slope.norm(dim=1)


class Curvature(Penalty):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            own = x.clone().requires_grad_()
            slope = torch.autograd.grad(self.net(own).sum(), own, create_graph=True)[0]
            curvature = torch.autograd.grad(slope[:, 0].sum(), own)[0]
        return (curvature,)


class Descends(Penalty):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for _ in range(2):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.net(x).sum(), [x])
            x = x - 0.1 * slope
        return (x.detach(),)


class Adapts(Penalty):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layer: nn.Linear = self.net[0]
        with torch.enable_grad():
            slope = torch.autograd.grad(self.net(x).square().mean(), layer.weight)[0]
        return (nn.functional.linear(x, layer.weight - 0.1 * slope),)


class Saliency(Penalty):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            self.net(own).sum().backward()
        assert own.grad is not None
        return (own.grad.abs(),)


@pytest.mark.parametrize("kind", [Penalty, Curvature, Descends, Adapts, Saliency])
def test_derivatives_are_captured_at_every_size(kind: type[Penalty]) -> None:
    torch.manual_seed(0)
    model = kind().requires_grad_(kind is not Saliency)
    program = pb.capture(model, [torch.randn(2, 3), torch.randn(3, 3)]).program.module()
    for x in (torch.randn(5, 3), torch.randn(1, 3) * 9):
        expected = [each.detach() for each in model(x)]
        torch.testing.assert_close([each.detach() for each in program(x)], expected)


class PartlyDetached(Penalty):
    """The second derivative knows only what the first one was not kept from."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            own = x.clone().requires_grad_()
            score = (self.net(own) * own.detach()).sum()
            slope = torch.autograd.grad(score, own, create_graph=True)[0]
            curvature = torch.autograd.grad(slope.sum(), own)[0]
        return (curvature,)


def test_what_is_derived_twice_through_detach_stays_python() -> None:
    torch.manual_seed(0)
    model, samples = PartlyDetached(), [torch.randn(2, 3), torch.randn(3, 3)]
    captured = pb.capture(model, samples, fullgraph=False)
    assert captured.leaves
    torch.testing.assert_close(captured.program.module()(samples[1])[0], model(samples[1])[0].detach())


class WithoutGradients(Penalty):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(self.net(x.requires_grad_()).sum(), x)


def test_a_forward_that_relies_on_the_callers_mode_is_told_what_to_do() -> None:
    with pytest.raises(CaptureError, match=r"with torch\.enable_grad"):
        pb.capture(WithoutGradients(), [torch.randn(2, 3)])
