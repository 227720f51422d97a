"""The report's distance from float is that of the compiled model, on the samples that it names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.package.report import CompileReport
from prepbench.quantize.weights import WeightScheme, integers, weight_qparams
from prepbench.settings.numbers import format_named


class Mixed(nn.Module):
    """Channels of very different sizes, so that one rounded value shows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.join, self.last = (nn.Linear(a, b) for a, b in ((8, 8), (8, 8), (16, 4), (4, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.join(torch.cat([self.one(x), 100 * self.other(x)], 1)).relu())


class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.short(x) if x.shape[0] < 6 else self.long(x)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.layer(x), 0.1, training=True)


def quantized(model: nn.Module, samples: Any, deployment: Any = None, tracing: Any = None) -> pb.CompiledModel:
    return pb.compile_model(
        model.eval(),
        tracing_inputs=tracing or [torch.randn(2, 8), torch.randn(3, 8)],
        calibration_inputs=samples,
        deployment_settings=deployment or pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
    )


def measured(model: nn.Module, compiled: pb.CompiledModel, samples: Any) -> float:
    rows = pb.compare({"float": model, "compiled": compiled}, samples, rounds=0).rows
    return rows[1].metric


@pytest.mark.parametrize("deployment", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()])
@pytest.mark.parametrize(
    ("count", "places", "words"),
    [
        (1, (0,), "all 4 rows of the calibration samples"),
        (2, (0, 1), "all 8 rows of the calibration samples"),
        (12, (0, 6), "8 of 48 rows (calibration samples 0 and 6)"),
    ],
)
def test_the_number_is_that_of_compare_on_the_named_samples(
    deployment: Any, count: int, places: tuple[int, ...], words: str
) -> None:
    pytest.importorskip({"OpenVinoDeployment": "openvino"}.get(type(deployment).__name__, "torch"))
    torch.manual_seed(0)
    model, samples = Mixed(), [torch.randn(4, 8) for _ in range(count)]
    compiled = quantized(model, samples, deployment)
    assert compiled.report.measured_on == words
    assert f"dB from float on {words}" in repr(compiled.report)
    found = measured(model, compiled, [samples[place] for place in places])
    assert compiled.report.model_sqnr == pytest.approx(found, abs=0.01)


def test_what_lowering_changes_is_told() -> None:
    torch.manual_seed(0)
    report = quantized(Mixed(), [torch.randn(4, 8)]).report
    assert report.simulated_sqnr == pytest.approx(report.model_sqnr, abs=0.01)
    assert "simulation" not in repr(report)
    coarser = type(report).from_dict({**report.to_dict(), "simulated_sqnr": report.model_sqnr + 7})
    assert f"; {coarser.simulated_sqnr:.1f} dB in simulation, before lowering" in repr(coarser)


def test_each_variant_is_measured_on_its_own_samples() -> None:
    torch.manual_seed(0)
    samples = [torch.randn(rows, 8) for rows in (2, 8, 3, 9)]
    model = TwoWays()
    compiled = quantized(model, samples, tracing=samples)
    worst = int(compiled.report.measured_on.rpartition(" ")[2])
    own = [[samples[place] for place in variant.samples] for variant in compiled.variants]
    assert compiled.report.measured_on.endswith(f", for variant {worst}")
    measured_there = own[worst][:1] if " of " in compiled.report.measured_on.partition("rows")[0] else own[worst]
    assert compiled.report.model_sqnr == pytest.approx(measured(model, compiled, measured_there), abs=0.01)


def test_a_model_that_draws_numbers_is_simulated() -> None:
    report = quantized(Drops(), [torch.randn(4, 8)]).report
    assert report.measured_on == "all 4 rows of the calibration samples, in simulation"


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_weight_lies_in_the_middle_between_no_two_integers(bits: int) -> None:
    torch.manual_seed(0)
    weight = -torch.rand(200, 8)
    scheme = WeightScheme(format_named(f"int{bits}"))
    scale, zero_point = weight_qparams(weight, 0, scheme)
    divided = integers(weight, scale, zero_point, scheme)
    multiplied = (weight * (1 / scale)[:, None]).round().clamp(*scheme.limits)
    assert torch.equal(divided.float(), multiplied)
    assert torch.equal(divided.float().amin(1), torch.full((200,), -(2.0 ** (bits - 1))))


def test_large_outputs_are_not_kept_for_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.quantize.decide._KEPT", 10)
    samples = [torch.randn(4, 8)]
    compiled = pb.compile_model(
        nn.Linear(8, 4).eval(),
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    assert compiled.report.measured_on == "all 4 rows of the calibration samples, in simulation"
    assert "to which ranges and biases are fitted" in str(compiled.report)


@pytest.mark.parametrize("mask", ["channels", "1:1"])
def test_a_pruned_model_tells_its_distance_from_the_whole_one(mask: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    samples = [torch.randn(16, 8)]
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        pruning_settings=pb.PruningSettings(mask_type=mask, amount=0.5),
    )
    report = compiled.report
    assert report.unpruned_sqnr == pytest.approx(measured(model, compiled, samples), abs=0.1)
    assert (report.model_sqnr or 0) > report.unpruned_sqnr + 10
    assert "dB from the pruned model in float on" in repr(report)
    assert f"at {report.unpruned_sqnr:.1f} dB from the float model before pruning" in repr(report)
    assert CompileReport.from_dict(report.to_dict()).unpruned_sqnr == report.unpruned_sqnr
