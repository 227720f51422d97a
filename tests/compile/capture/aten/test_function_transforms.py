"""Models whose forward takes derivatives: captured whole where torch can, else told why, with remedies that work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.errors import CaptureError


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Forces(Base):
    def forward(self, x):
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            energy = self.net(place).square().sum()
            return energy.detach(), -torch.autograd.grad(energy, place)[0]


class Normed(Forces):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 3))


class Grad(Base):
    def forward(self, x):
        return torch.func.grad_and_value(lambda y: self.net(y).square().sum())(x)


class Vjp(Base):
    def forward(self, x):
        result, back = torch.func.vjp(self.net, x)
        return back(torch.ones_like(result))[0]


class Jacobian(Base):
    def forward(self, x):
        return torch.vmap(torch.func.jacrev(self.net))(x)


class Jvp(Base):
    def forward(self, x):
        def change(y):
            return self.net(y)

        return torch.func.jvp(
            change, (x,), (torch.ones_like(x),)
        )[1]  # fmt: skip


class NormedJvp(Jvp):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 3))


class Hessian(Base):
    def forward(self, x):
        return torch.func.hessian(lambda y: self.net(y).square().sum())(x)


class Backward(Base):
    def forward(self, x):
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            self.net(place).square().sum().backward()
        return place.grad


class NotEnabled(Base):
    def forward(self, x):
        place = x.detach().requires_grad_()
        return torch.autograd.grad(self.net(place).square().sum(), place)[0]


class Twice(Base):
    """The derivative of a derivative, which goes through ``detach`` or not."""

    def __init__(self, detached: bool, again: bool = True) -> None:
        super().__init__()
        self.detached, self.again = detached, again

    def forward(self, x):
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            scale = place.square().sum(-1, keepdim=True)
            scale = scale.detach() if self.detached else scale
            (slope,) = torch.autograd.grad((self.net(place) * scale).sum(), place, create_graph=self.again)
            return torch.autograd.grad(slope.square().sum(), place)[0] if self.again else slope


class Blocks(Base):
    """Layers in blocks that switch gradients, one inside of the other."""

    def forward(self, x):
        with torch.no_grad():
            y = self.net[0](x)
            with torch.enable_grad():
                place = y.detach().requires_grad_()
                slope = torch.autograd.grad(self.net[1:](place).square().sum(), place)[0]
            z = self.net[1](y * slope)
        with torch.enable_grad():
            return self.net[2](z), y * 2


class Around(nn.Module):
    """Layers around a module that takes derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.forces, self.after = nn.Linear(4, 4), Normed(), nn.Linear(4, 2)

    def forward(self, x):
        return self.after(self.forces(self.before(x))[1])


def samples(*rows: int) -> list[torch.Tensor]:
    return [torch.randn(count, 4, generator=torch.Generator().manual_seed(count)) for count in rows]


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def line_with(kind: type, text: str) -> int:
    lines, first = inspect.getsourcelines(kind)
    return first + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("kind", [Forces, Normed, Backward, Grad, Vjp, Jacobian, Around, Blocks])
def test_derivatives_are_part_of_the_graph(kind: Callable[[], nn.Module]) -> None:
    model, (x,) = made(kind), samples(7)
    captured = pb.capture(model, samples(2, 3))
    assert captured.leaves == ()
    assert [axis.path for axis in captured.axes.dynamic] == ["x"]
    torch.testing.assert_close(captured.program.module()(x), model(x))
    with torch.no_grad():  # weights are the model's, not numbers of the time of tracing
        next(model.parameters()).mul_(2)
    torch.testing.assert_close(captured.program.module()(x), model(x))


def test_a_model_with_a_derivative_is_quantized_and_runs_on_a_target() -> None:
    model, (x,) = made(Around), samples(7)
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples(8, 9),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    assert {row.fqn for row in compiled.report.layers if row.weights_bits == 8} >= {"after"}
    torch.testing.assert_close(compiled(x), model(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("kind", "deployment"),
    [(Forces, pb.OnnxRuntimeDeployment()), (Blocks, pb.OnnxRuntimeDeployment()), (Blocks, pb.OpenVinoDeployment())],
)
def test_derivatives_are_compiled(kind: Callable[[], nn.Module], deployment: Any) -> None:
    model, (x,) = made(kind), samples(7)
    compiled = pb.compile_model(model, tracing_inputs=samples(2, 3), deployment_settings=deployment)
    assert compiled.report.leaves == ()
    torch.testing.assert_close(compiled(x), model(x))


def test_layers_in_blocks_that_switch_gradients_are_quantized() -> None:
    settings = pb.QuantizationSettings(prefer_weights_only_quantization=True)
    compiled = pb.compile_model(
        made(Blocks),
        calibration_inputs=samples(8, 9),
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=settings,
    )
    assert {row.fqn for row in compiled.report.layers if row.weights_bits == 8} == {"net.0", "net.2"}


@pytest.mark.parametrize(("detached", "again"), [(False, True), (True, False)])
def test_a_derivative_of_a_derivative_needs_what_is_not_detached(detached: bool, again: bool) -> None:
    failure = refusal(made(lambda: Twice(True)))
    assert (failure.kind, failure.source.line) == ("unsupported operator", line_with(Twice, "create_graph=self.again"))
    assert failure.remedy.startswith("Leave out detach() between the inputs of torch.autograd.grad")
    remedied, (x,) = made(lambda: Twice(detached, again)), samples(7)
    captured = pb.capture(remedied, samples(2, 3))
    torch.testing.assert_close(captured.program.module()(x), remedied(x), rtol=1e-4, atol=1e-5)


def refusal(model: nn.Module, *rows: int) -> Any:
    with pytest.raises(FullGraphError) as refused:
        pb.capture(model, samples(*(rows or (2, 3))))
    (failure,) = refused.value.failures
    return failure


@pytest.mark.parametrize(("kind", "line"), [(Jvp, "return self.net(y)"), (Hessian, "hessian")])
def test_forward_mode_fixes_sizes_and_works_for_one_size(kind: type, line: str) -> None:
    model, (x,) = made(kind), samples(2)
    failure = refusal(model)
    assert (failure.kind, failure.source.line) == ("shape specialisation", line_with(kind, line))
    assert failure.remedy.startswith("Tracing derivatives in forward mode (torch.func.jvp, jacfwd, hessian) fixes size")
    torch.testing.assert_close(pb.capture(model, [x]).program.module()(x), model(x))


def test_forward_mode_that_cannot_be_traced_is_no_error_of_the_model() -> None:
    failure = refusal(made(NormedJvp), 2)
    assert failure.kind == "unsupported operator"
    assert "forward mode (torch.func.jvp, jacfwd, hessian) only in part: use vjp" in failure.remedy


def test_gradients_that_are_off_are_no_fault_of_the_samples() -> None:
    with pytest.raises(CaptureError, match=r"under torch\.no_grad\(\) here.*torch\.enable_grad\(\)"):
        pb.capture(made(NotEnabled), samples(2, 3))


def test_other_ways_to_trace_name_the_derivative() -> None:
    report = pb.check_traceability(made(Forces), inputs=samples(2, 3))
    assert report.passed
    assert {failure.kind for failure in report.failures} == {"unsupported operator"}
    assert all("torch.func.grad, vjp or jacrev" in failure.remedy for failure in report.failures)


class Table(nn.Module):
    def forward(self, x):
        return x * {2: 1.0, 3: 2.0}[x.shape[0]]


class Listed(nn.Module):
    def forward(self, x):
        return x * [0.0, 0.0, 1.0, 2.0][x.shape[0]]


class Indexed(nn.Module):
    def forward(self, x):
        return x * torch.tensor([0.0, 0.0, 1.0, 2.0])[x.shape[0]]


@pytest.mark.parametrize("kind", [Table, Listed])
def test_a_table_asked_with_a_size(kind: type) -> None:
    failure = refusal(kind())
    assert (failure.kind, failure.source.line) == ("shape specialisation", line_with(kind, "x.shape[0]"))
    assert "torch.tensor([...])[x.shape[0]]" in failure.remedy
    two, three = samples(2, 3)
    for captured in (pb.capture(kind(), [three]), pb.capture(Indexed(), [two, three])):
        torch.testing.assert_close(captured.program.module()(three), three * 2)
