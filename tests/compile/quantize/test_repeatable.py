"""Models that write in place are quantized like those that do not, on samples that stay as they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.quantize.repeatable import make_repeatable


class Scales(nn.Module):
    """Writes into its whole argument, and into a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[:, 0] += 1
        result: torch.Tensor = self.layer(x)
        return result


class Pure(Scales):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2 + torch.tensor([1.0, 0.0, 0.0, 0.0])
        result: torch.Tensor = self.layer(x)
        return result


def models() -> tuple[Scales, Pure, list[torch.Tensor]]:
    torch.manual_seed(0)
    scales, pure = Scales().eval(), Pure().eval()
    pure.load_state_dict(scales.state_dict())
    return scales, pure, [torch.randn(6 + index, 4) for index in range(4)]


def copies(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    return [sample.clone() for sample in samples]


def compiled(model: nn.Module, samples: list[torch.Tensor], target: pb.DeploymentSettings) -> Any:
    return pb.compile_model(
        model,
        calibration_inputs=samples,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=target,
        discard_input_model=False,
    )


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.InductorDeployment, pb.EagerDeployment])
def test_scales_and_noise_are_those_of_the_model_without_writes(target: Callable[[], pb.DeploymentSettings]) -> None:
    scales, pure, samples = models()
    given = copies(samples)
    one, other = compiled(scales, given, target()), compiled(pure, copies(samples), target())
    assert all(torch.equal(a, b) for a, b in zip(given, samples, strict=True))
    assert one.report.model_sqnr == pytest.approx(other.report.model_sqnr, abs=1.0)
    assert one.report.layers[0].input_range == pytest.approx(other.report.layers[0].input_range, rel=0.02)
    torch.testing.assert_close(one(samples[0].clone()), other(samples[0].clone()), atol=0.05, rtol=0.05)


def test_writes_of_the_quantized_model_reach_the_caller_where_those_in_float_do() -> None:
    scales, _, samples = models()
    quantized = compiled(scales, copies(samples), pb.InductorDeployment())
    given = samples[1].clone()
    quantized(given)
    torch.testing.assert_close(given, samples[1] * 2 + torch.tensor([1.0, 0.0, 0.0, 0.0]))


def test_sensitivity_and_inspection_leave_samples_alone() -> None:
    scales, pure, samples = models()
    given = copies(samples)
    one, other = (pb.sensitivity(model, copies(samples)).rows for model in (scales, pure))
    assert [row.estimated for row in one] == pytest.approx([row.estimated for row in other], abs=1.0)
    pb.inspect_layer(scales, given, "layer")
    pb.sensitivity(scales, given)
    assert all(torch.equal(a, b) for a, b in zip(given, samples, strict=True))


class WritesBetween(nn.Module):
    """Writes into parts of a value between two layers, also through a view and into one of its halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        left, _ = h.chunk(2, 1)
        seen = h.view(-1, 2, 4)
        h[:, 0] = 0
        seen[:, 1] *= 3
        left.add_(1)
        result: torch.Tensor = self.second(seen.flatten(1))
        return result


class NoWrites(WritesBetween):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeroed = self.first(x) * torch.tensor([0.0] + [1.0] * 7)
        result: torch.Tensor = self.second(
            zeroed * torch.tensor([1.0] * 4 + [3.0] * 4) + torch.tensor([1.0] * 4 + [0.0] * 4)
        )
        return result


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment, pb.InductorDeployment])
def test_values_are_quantized_as_they_are_when_a_layer_reads_them(
    target: Callable[[], pb.DeploymentSettings],
) -> None:
    torch.manual_seed(0)
    writes, pure = WritesBetween().eval(), NoWrites().eval()
    pure.load_state_dict(writes.state_dict())
    samples = [torch.randn(8 + index, 8) for index in range(4)]
    one, other = compiled(writes, samples, target()), compiled(pure, samples, target())
    assert [row.summary for row in one.report.layers] == ["int8", "int8"]
    assert one.report.model_sqnr == pytest.approx(other.report.model_sqnr, abs=1.0)
    torch.testing.assert_close(one(samples[0]), other(samples[0]), atol=0.05, rtol=0.05)


class Draws(nn.Module):
    """A variational autoencoder in small."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.encode(x).relu()
        result: torch.Tensor = self.decode(mean + torch.randn_like(mean))
        return result


def test_noise_is_told_from_random_numbers() -> None:
    torch.manual_seed(0)
    model, samples = Draws().eval(), [torch.randn(16, 8) for _ in range(8)]
    state = torch.get_rng_state()
    quantized = compiled(model, samples, pb.EagerDeployment())
    assert torch.equal(torch.get_rng_state(), state)
    assert [row.summary for row in quantized.report.layers] == ["int8", "int8"]
    assert not torch.equal(quantized(samples[0]), quantized(samples[0]))  # it still draws
    outputs = []
    for each in (model, quantized):
        torch.manual_seed(1)
        outputs.append(each(samples[0]).detach())
    noise = 20 * torch.log10(outputs[0].norm() / (outputs[0] - outputs[1]).norm())
    assert quantized.report.model_sqnr == pytest.approx(float(noise), abs=6.0)  # other draws


class Stream(nn.Module):
    """Keeps the end of what it was given for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 16, 5), nn.Conv1d(16, 4, 1)
        self.register_buffer("context", torch.zeros(1, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.context, x], 2)
        self.context[:, :2] = x[:, :2, -4:]
        self.context[:, 2:] = x[:, 2:, -4:]
        result: torch.Tensor = self.second(self.first(x).relu())
        return result


def test_noise_is_measured_from_the_same_state() -> None:
    torch.manual_seed(0)
    model, samples = Stream().eval(), [torch.randn(1, 4, 6) for _ in range(12)]
    quantized = compiled(model, samples, pb.EagerDeployment())
    assert not model.context.any()
    assert [row.summary for row in quantized.report.layers] == ["int8", "int8"]
    right, found = (torch.stack([each(sample).detach() for sample in samples]) for each in (model, quantized))
    noise = 20 * torch.log10(right.norm() / (right - found).norm())
    assert quantized.report.model_sqnr == pytest.approx(float(noise), abs=1.0)


class DrawsNothing(nn.Module):
    """Has operators that draw with other arguments only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.layer(x))
        return nn.functional.scaled_dot_product_attention(y, y, y)


def test_operators_that_draw_nothing_stay() -> None:
    program = torch.export.export(DrawsNothing().eval(), (torch.randn(2, 3, 8),))
    graph = program.module()
    before = str(graph.graph)
    make_repeatable(graph, same_draws=True)
    assert str(graph.graph) == before
    assert "scaled_dot_product_attention" in before
