"""``pb.inspect_layer``: the numbers against an independent computation, and its errors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.quantize.layer_values import ValueCounts

INT8 = pb.QuantizationSettings(weights_algorithm="nearest", bias_correction=False)
FOUR = pb.QuantizationSettings(weights_num_bits=4, weights_algorithm="nearest")


@pytest.fixture(scope="module")
def found(model: nn.Module, samples: list[torch.Tensor]) -> pb.LayerInspection:
    profile = pb.profile(model, samples[0], rounds=2)
    return pb.inspect_layer(model, samples, "quiet", profile=profile, candidates={"int8": INT8, "four": FOUR})


@pytest.fixture(scope="module")
def seen(model: nn.Module, samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and the outputs of the layer, with channels first."""
    inputs, outputs = [], []

    def keep(_: nn.Module, args: tuple[torch.Tensor, ...], result: torch.Tensor) -> None:
        inputs.append(args[0])
        outputs.append(result)

    hook = model.get_submodule("quiet").register_forward_hook(keep)
    with torch.no_grad():
        for sample in samples:
            model(sample)
    hook.remove()
    first, second = (torch.cat(each).movedim(1, 0).flatten(1) for each in (inputs, outputs))
    return first, second


def test_values_are_those_that_hooks_see(
    model: nn.Module, found: pb.LayerInspection, seen: tuple[torch.Tensor, torch.Tensor]
) -> None:
    weight = model.get_submodule("quiet").weight.detach()
    for values, right in ((found.input, seen[0]), (found.output, seen[1]), (found.weight, weight.flatten(1))):
        assert values.count == right.numel()
        assert values.range == pytest.approx((float(right.min()), float(right.max())), rel=1e-5, abs=1e-6)
        ranges = torch.tensor(values.range_by_channel)
        torch.testing.assert_close(ranges, torch.stack([right.amin(1), right.amax(1)], 1), rtol=1e-5, atol=1e-6)
        edges = torch.tensor(values.histogram.edges)
        inside = right.flatten()[:, None]  # some values sit on an edge, up to the order of sums
        counts = ((inside >= edges[:-1]) & (inside < edges[1:])).sum(0)
        assert sum(values.histogram.counts) == values.count
        assert int((counts - torch.tensor(values.histogram.counts)).abs().sum()) <= values.count // 500
        assert 20 < len(values.histogram.counts) <= 161


def test_the_error_is_that_of_rounding_by_hand(
    model: nn.Module, samples: list[torch.Tensor], found: pb.LayerInspection, seen: tuple[torch.Tensor, torch.Tensor]
) -> None:
    layer, grid = model.get_submodule("quiet"), found.input.grid
    assert grid is not None
    assert found.weight.grid is not None
    assert found.error is not None
    weight = layer.weight.detach()
    half = found.weight.grid.levels // 2  # a bit less on CPUs whose sums of products would overflow
    assert half in (64, 128)
    scale = weight.flatten(1).abs().amax(1) / (half - 0.5)
    assert found.weight.grid.step == pytest.approx((float(scale.min()), float(scale.max())))
    rounded = (weight / scale[:, None, None, None]).round().clamp(-half, half - 1) * scale[:, None, None, None]
    assert sum(found.weight.grid.used) == weight.numel()
    step = grid.step[0]
    assert step == pytest.approx(float(seen[0].max()) / 255, rel=1e-4)
    signal = noise = 0.0
    with torch.no_grad():
        chosen = [samples[0], samples[1]][: max(1, 8 // 4)]
        for sample in chosen:
            x = torch.relu(model.get_submodule("stem")(sample))
            right = layer(x)
            got = nn.functional.conv2d((x / step).round().clamp(0, 255) * step, rounded, layer.bias, padding=1)
            signal, noise = signal + float(right.square().sum()), noise + float((got - right).square().sum())
    assert found.error.sqnr == pytest.approx(10 * math.log10(signal / noise), abs=0.2)


def test_the_error_is_that_of_sensitivity_and_of_a_compile(model: nn.Module, samples: list[torch.Tensor]) -> None:
    named = {"int8": INT8, "four": FOUR}
    rows = {row.candidate: row for row in pb.sensitivity(model, samples, candidates=named, exact=False)["body.1"]}
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    found = pb.inspect_layer(model, samples, "body.1", compiled=compiled, candidates=named)
    what_if = {one.name: one for one in found.what_if}
    for name in named:
        assert what_if[name].sqnr == pytest.approx(rows[name].own_sqnr)
        assert what_if[name].weights_bytes == rows[name].weights_bytes
    report = next(row for row in compiled.report.layers if row.fqn == "body.1")
    assert found.error is not None
    assert found.error.sqnr == pytest.approx(report.sqnr, abs=1e-3)
    assert found.weight.grid is not None
    assert found.weight.grid.step == pytest.approx(report.scale_range)


def test_each_channel_and_each_point_belong_together(found: pb.LayerInspection) -> None:
    error = found.error
    assert error is not None
    assert len(error.sqnr_by_channel) == len(error.shift_by_channel) == 16
    assert min(error.sqnr_by_channel) < error.sqnr < max(error.sqnr_by_channel)
    assert set(error.channels) == set(range(16))
    assert 100 < len(error.reference) == len(error.quantized) == len(error.channels) <= 400
    right, got = torch.tensor(error.reference), torch.tensor(error.quantized)
    sampled = 10 * math.log10(float(right.square().sum() / (right - got).square().sum()))
    assert sampled == pytest.approx(error.sqnr, abs=1.5)


def test_what_is_clipped_is_counted(model: nn.Module, samples: list[torch.Tensor]) -> None:
    settings = pb.QuantizationSettings(weights_num_bits=4, weights_algorithm="nearest", observer="percentile")
    options = pb.CompileOptions(percentile=90.0)
    found = pb.inspect_layer(
        model, samples, "quiet", quantization_settings=settings, compile_options=options, candidates=[INT8]
    )
    weight, x = found.weight.grid, found.input.grid
    assert weight is not None
    assert x is not None
    values = model.get_submodule("quiet").weight.detach().flatten(1)
    ends = torch.tensor(weight.range_by_channel)
    half = (ends[:, 1] - ends[:, 0]) / 15 / 2 * 1.002
    beyond = (values < (ends[:, 0] - half)[:, None]) | (values > (ends[:, 1] + half)[:, None])
    assert 0 < weight.clipped == pytest.approx(float(beyond.float().mean()), abs=2 / values.numel())
    assert weight.clipped_by_channel == pytest.approx(beyond.float().mean(1).tolist(), abs=1e-6)
    assert x.clipped == pytest.approx(0.05, abs=0.02)
    assert sum(x.clipped_by_channel) / 16 == pytest.approx(x.clipped, abs=1e-6)
    assert found.decided.startswith("int4 weights, int8 activations")


def test_a_float_layer_is_shown_as_the_first_candidate(model: nn.Module, samples: list[torch.Tensor]) -> None:
    rules = {"quiet": pb.LayerQuantizationSettings(skip_quantization=True)}
    found = pb.inspect_layer(
        model, samples, "quiet", quantization_settings=INT8, layer_quantization_settings=rules, candidates={"8": INT8}
    )
    assert (found.decided, found.shown, found.why) == ("float", "8", "left in float by rule 'quiet'")
    assert found.weights_bytes == found.float_bytes
    assert [one.change for one in found.what_if] == [0, found.what_if[1].weights_bytes - found.float_bytes]
    assert "Grids and error are those of 8." in repr(found)


def test_a_table_has_no_input_to_count() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
    found = pb.inspect_layer(model, [torch.tensor([1, 2]), torch.tensor([1, 2, 3])], "0")
    assert found.decided == "float"
    assert "weights alone" in found.why
    assert found.input.count == 0
    assert "integers" in found.input.note
    assert found.shown == "int8 weights"
    assert next(one for one in found.what_if if one.name == "int8").refusal


def test_all_calls_of_a_layer_count_together() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.relu(self.linear(x)))

    found = pb.inspect_layer(Twice().eval(), [torch.randn(n, 4) for n in (2, 3)], "linear")
    assert (found.calls, found.input.count) == (2, 2 * 5 * 4)
    assert sum(found.input.histogram.counts) == found.input.count


def test_numbers_figure_and_text_say_the_same(found: pb.LayerInspection) -> None:
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["error"]["sqnr"] == found.error.sqnr
    assert found.time is not None
    assert 0 < found.time.share < 1
    assert found.source is not None
    assert "self.quiet(x)" in found.source.code
    assert "self.quiet(x)" in found.frame
    assert f"{found.error.sqnr:.1f} dB" in repr(found)
    drawn = found.figure().to_dict()
    assert sum(drawn["data"][0]["y"]) == found.weight.count
    assert len(drawn["data"]) == 5
    assert found.type in found._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quite", "Nearest are 'quiet'"),
        ("body", "Its layers are 'body.0', 'body.1', 'body.2'"),
        ("no such", "There are 'stem'"),
    ],
)
def test_an_unknown_layer_is_answered_with_names(
    model: nn.Module, samples: list[torch.Tensor], name: str, said: str
) -> None:
    with pytest.raises(UnknownNameError, match=said):
        pb.inspect_layer(model, samples, name)


def test_a_module_without_weights_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UnknownNameError, match="'1' has no weight matrix"):
        pb.inspect_layer(model, [torch.randn(n, 4) for n in (2, 3)], "1")


def test_another_target_than_the_compiled_one_is_refused(model: nn.Module, samples: list[torch.Tensor]) -> None:
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    with pytest.raises(SettingsError, match="Leave deployment_settings out"):
        pb.inspect_layer(model, samples, "head", compiled=compiled, deployment_settings=pb.OnnxRuntimeDeployment())
    found = pb.inspect_layer(model, samples, "head", compiled=compiled)
    assert (found.decided, found.why) == ("float", "the model was compiled in float")


def test_a_histogram_widens_without_losing_a_value() -> None:
    counts = ValueCounts(-1)
    parts = [torch.tensor([[0.5, -0.25]]), torch.tensor([[100.0, math.nan]]), torch.tensor([[-7.0, math.inf]])]
    for part in parts:
        counts.add(part)
    found = counts.histogram
    values = torch.tensor([0.5, -0.25, 100.0, -7.0])
    places = (values / found.width).floor().long() - round(found.start / found.width)
    assert list(found.counts) == torch.bincount(places, minlength=len(found.counts)).tolist()
    assert counts.range_by_channel == ((-7.0, 100.0), (-0.25, -0.25))
    assert counts.count == 4


@pytest.mark.parametrize(
    ("deployment", "only_weights", "bits"),
    [(pb.OnnxRuntimeDeployment(), False, 8), (pb.OnnxRuntimeDeployment(), True, 4), (pb.EagerDeployment(), True, 8)],
    ids=["integer kernels", "packed", "PyTorch"],
)
def test_weights_count_with_the_bits_that_a_target_stores(deployment: Any, only_weights: bool, bits: int) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(32, 16)).eval(), torch.randn(4, 32)
    four = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=only_weights)
    compiled = pb.compile_model(
        model, calibration_inputs=[x], deployment_settings=deployment, quantization_settings=four
    )
    found = pb.sensitivity(model, [x], candidates={"four": four}, deployment_settings=deployment)
    assert compiled.report.layers[0].stored_bits == bits
    assert found["0"][0].weights_bytes == 32 * 16 * bits // 8 + 4 * 16
