"""Algorithms that find the integers of weights: what they win, and inputs that say little."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.inputs import Sample
from prepbench.jobs import Cancelled, Job
from prepbench.quantize import Placement, calibrate, input_hessians, insert_observers, rounding
from prepbench.quantize.layer_nodes import layer_nodes
from prepbench.quantize.observed import all_observers
from prepbench.quantize.rounding import Im2col, InputHessian, nearest, quantized_rows
from prepbench.quantize.rows import PackedRows, QuantizedRows
from prepbench.quantize.weights import WeightScheme, weight_qparams
from prepbench.settings import QuantizationSettings, explain_settings
from prepbench.settings.numbers import INT4, INT8, NumberFormat

FOUR_BITS = WeightScheme(INT4, block_size=16, least_error=True)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(count: int, size: int = 64, seed: int = 1) -> torch.Tensor:
    """Positions whose inputs depend on each other and differ in size, as those of trained models do."""
    return noise(count, size, seed=seed) @ (noise(size, size, seed=2) * torch.logspace(-2, 0, size))


def hessian(x: torch.Tensor) -> InputHessian:
    return InputHessian(x.t() @ x, len(x))


def lost(weight: torch.Tensor, found: QuantizedRows, x: torch.Tensor, axis: int = 0) -> float:
    """The share of the output's power that rounding costs."""
    difference = found.floats(weight, axis) - weight
    return float(
        (x @ difference.movedim(axis, 0).t()).square().sum() / (x @ weight.movedim(axis, 0).t()).square().sum()
    )


SCHEMES = [
    WeightScheme(INT4, symmetric, block_size=block, least_error=True, algorithm=algorithm)
    for symmetric, block, algorithm in itertools.product((True, False), (0, 16), ("gptq", "awq"))
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_what_looks_at_inputs_loses_less_than_the_nearest_integers_on_other_inputs(scheme: WeightScheme) -> None:
    weight, unseen = noise(32, 64), inputs(256, seed=5)
    nearest = WeightScheme(INT4, scheme.symmetric, block_size=scheme.block_size, least_error=True)
    found = quantized_rows(weight, 0, scheme, hessian(inputs(1024)))
    most = 0.9 if scheme.algorithm == "gptq" else 1
    assert lost(weight, found, unseen) < most * lost(weight, quantized_rows(weight, 0, nearest), unseen)
    low, high = scheme.limits
    assert low <= int(found.integers.min()) <= int(found.integers.max()) <= high


ADAPTIVE = [WeightScheme(INT4, symmetric, block_size=block, least_error=True, algorithm="adaround")
            for symmetric, block in itertools.product((True, False), (0, 16))]  # fmt: skip


@pytest.mark.parametrize("scheme", ADAPTIVE, ids=str)
def test_learned_rounding_loses_less_than_error_compensation_on_other_inputs(scheme: WeightScheme) -> None:
    weight, unseen, known = noise(32, 64), inputs(256, seed=5), hessian(inputs(1024))
    found = quantized_rows(weight, 0, scheme, known)
    compensated = quantized_rows(weight, 0, replace(scheme, algorithm="gptq"), known)
    assert lost(weight, found, unseen) < 0.85 * lost(weight, compensated, unseen)
    assert torch.equal(found.integers, quantized_rows(weight, 0, scheme, known).integers)
    low, high = scheme.limits
    assert low <= int(found.integers.min()) <= int(found.integers.max()) <= high


def test_learning_alone_loses_less_than_the_nearest_integers() -> None:
    weight, x = noise(32, 64), inputs(1024)
    matrix = (x.t() @ x)[None]
    scheme = WeightScheme(INT4)
    scale, zero_point = weight_qparams(weight, 0, scheme)
    learned = rounding._Layer(weight, scheme, matrix, zero_point).learned(scale)
    assert bool(((learned - weight / scale[:, None]).abs() < 1.001).all())  # up or down, and no farther
    found = QuantizedRows(learned.to(torch.int8), scale, zero_point)
    assert lost(weight, found, x) < 0.9 * lost(weight, quantized_rows(weight, 0, scheme), x)


CONVOLUTIONS = [
    nn.Conv2d(6, 8, 3, stride=2, padding=1),
    nn.Conv2d(6, 12, (3, 2), groups=6, dilation=(2, 1), padding=(2, 0)),
    nn.Conv2d(6, 8, 4, groups=2, padding="same", dilation=2),
    nn.Conv1d(6, 8, 3, padding=1, groups=2),
    nn.Conv2d(6, 8, 1),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_patches_of_convolutions_are_what_their_weights_multiply(layer: nn.Module) -> None:
    x = noise(3, 6, *[11] * (layer.weight.ndim - 2))
    program = torch.export.export(layer, (x,))
    (node,) = layer_nodes(program.module().graph, {"": None})
    patches = Im2col.of(node)
    assert patches is not None
    known, output = patches.hessian(x), layer(x) - layer.bias.reshape(-1, *[1] * (layer.weight.ndim - 2))
    rows = layer.weight.detach().flatten(1).unflatten(0, (layer.groups, -1))
    squares = ((rows @ known.matrix) * rows).sum(2).flatten()
    torch.testing.assert_close(squares, output.square().sum([0, *range(2, output.ndim)]).detach())
    assert known.count == output[:, 0].numel()


def test_convolutions_whose_patches_are_large_and_others_are_rounded_to_nearest() -> None:
    for layer, x in (
        (nn.Conv2d(300, 4, 3), noise(1, 300, 5, 5)),
        (nn.ConvTranspose2d(3, 4, 3), noise(1, 3, 5, 5)),
        (nn.Conv3d(2, 4, 3), noise(1, 2, 5, 5, 5)),
    ):
        (node,) = layer_nodes(torch.export.export(layer, (x,)).module().graph, {"": None})
        assert Im2col.of(node) is None


class Mixed(nn.Module):
    """Plain and depthwise convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.depthwise = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=16)
        self.point, self.head = nn.Conv2d(16, 32, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.point(torch.relu(self.depthwise(torch.relu(self.plain(x)))))
        return self.head(torch.relu(x).mean((2, 3)))


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_network_of_convolutions_loses_less_with_learned_rounding(weights_only: bool) -> None:
    torch.manual_seed(0)
    smooth = [nn.functional.avg_pool2d(noise(16, 3, 14, 14, seed=seed), 3, 1) for seed in range(3)]
    model, unseen, powers = Mixed().eval().requires_grad_(False), smooth[0], []
    for algorithm in ("nearest", "adaround"):
        compiled = pb.compile_model(
            model,
            calibration_inputs=smooth[1:],
            deployment_settings=pb.EagerDeployment(),
            quantization_settings=QuantizationSettings(
                weights_num_bits=4, weights_algorithm=algorithm, prefer_weights_only_quantization=weights_only
            ),
            compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        )
        expected, found = model(unseen), compiled(unseen)
        powers.append(float((found - expected).square().sum() / expected.square().sum()))
    assert powers[1] < 0.7 * powers[0]


def test_learning_can_be_cancelled() -> None:
    job = Job(lambda progress: quantized_rows(noise(512, 512), 0, ADAPTIVE[0], hessian(inputs(1024, 512))))
    job.cancel()
    with pytest.raises(Cancelled):
        job.result()


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme.algorithm == "gptq"], ids=str)
def test_scales_fit_the_integers_that_were_found_with_others(scheme: WeightScheme) -> None:
    weight, unseen = noise(32, 64), inputs(256, seed=5)
    known = hessian(inputs(1024))
    found = quantized_rows(weight, 0, scheme, known)
    before = replace(found, scale=quantized_rows(weight, 0, replace(scheme, algorithm="awq"), known).scale)
    assert lost(weight, found, unseen) < lost(weight, before, unseen)


@pytest.mark.parametrize("block", [16, 64])
def test_scales_fitted_one_after_the_other_are_nearly_those_of_least_squares(block: int) -> None:
    weight, x = noise(4, 64), inputs(512)
    known = hessian(x)
    scheme = WeightScheme(INT4, block_size=block, least_error=True)
    start = nearest(weight, 0, scheme)
    steps, scale = start.integers.reshape(4, 64).float(), start.scale.reshape(4, -1)
    fitted = rounding.fitted_scales(weight, steps, scale, known.damped)

    def lost_with(scales: torch.Tensor) -> float:
        return float(((steps * scales.repeat_interleave(block, 1) - weight) @ x.t()).square().sum())

    blocks = [(x[:, None] * row).unflatten(2, (-1, block)).sum(3)[:, 0] for row in steps]
    best = torch.stack([torch.linalg.lstsq(left, x @ row).solution for left, row in zip(blocks, weight, strict=True)])
    gained = lost_with(scale) - lost_with(fitted)
    assert gained > 0.7 * (lost_with(scale) - lost_with(best))


def test_weights_of_the_same_inputs_share_what_is_computed_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(
        "prepbench.quantize.rounding._inverse_factor",
        lambda matrix, take=rounding._inverse_factor: found.append(len(matrix)) or take(matrix),
    )
    known = hessian(inputs(256))
    for seed in (3, 4):
        quantized_rows(noise(32, 64, seed=seed), 0, replace(FOUR_BITS, algorithm="gptq"), known)
    assert found == [64]


def test_the_axis_of_output_channels_may_be_the_last() -> None:
    weight, scheme = noise(64, 32), WeightScheme(INT4, least_error=True, algorithm="gptq")
    one, other = (
        quantized_rows(given, axis, scheme, hessian(inputs(1024))).floats(given, axis)
        for given, axis in ((weight, 1), (weight.t().contiguous(), 0))
    )
    assert torch.equal(one, other.t())


def test_weights_of_inputs_that_were_always_zero_are_rounded_to_nearest() -> None:
    weight, x = noise(32, 64), inputs(256)
    x[:, 10:20] = 0
    scheme = WeightScheme(INT4, least_error=True, algorithm="gptq")
    found = quantized_rows(weight, 0, scheme, hessian(x))
    far = (found.floats(weight, 0) - weight)[:, 10:20].abs()
    inside = weight[:, 10:20].abs() < found.scale[:, None] * 7
    assert bool((far <= 0.5001 * found.scale[:, None])[inside].all())


@pytest.mark.parametrize("count", [1, 8, 64])
def test_few_positions_do_not_make_it_worse_than_the_nearest_integers(count: int) -> None:
    weight, unseen = noise(32, 64), inputs(256, seed=5)
    found = quantized_rows(weight, 0, WeightScheme(INT4, least_error=True, algorithm="gptq"), hessian(inputs(count)))
    nearest = quantized_rows(weight, 0, WeightScheme(INT4, least_error=True))
    assert lost(weight, found, unseen) < 1.05 * lost(weight, nearest, unseen)


@pytest.mark.parametrize("algorithm", ["gptq", "awq", "hqq", "adaround"])
def test_inputs_and_weights_of_zeros_stay_finite(algorithm: str) -> None:
    scheme = WeightScheme(INT4, block_size=16, least_error=True, algorithm=algorithm)
    weight = noise(8, 64)
    weight[3] = 0
    for given, x in ((weight, torch.zeros(4, 64)), (torch.zeros(8, 64), inputs(4)), (weight.bfloat16(), inputs(4))):
        values = quantized_rows(given, 0, scheme, hessian(x)).floats(given, 0)
        assert bool(values.isfinite().all())
        assert not values[given == 0].any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_half_quadratic_leaves_small_errors_where_most_weights_are(symmetric: bool) -> None:
    weight = noise(64, 64)
    weight[:, ::16] *= 4
    errors = [
        float((quantized_rows(weight, 0, scheme).floats(weight, 0) - weight).abs().pow(0.7).sum())
        for scheme in (
            WeightScheme(INT4, symmetric, block_size=16, least_error=True, algorithm=name)
            for name in ("hqq", "nearest")
        )
    ]
    assert errors[0] < 0.99 * errors[1]


@pytest.mark.parametrize("algorithm", ["nearest", "awq", "gptq", "hqq", "adaround"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_weight_in_parts_gets_the_integers_that_it_gets_as_a_whole(
    algorithm: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, block = noise(50, 64).movedim(0, axis), 0 if axis else 16
    scheme = WeightScheme(INT4, symmetric=False, block_size=block, least_error=True, algorithm=algorithm)
    known = None if algorithm == "hqq" else hessian(inputs(1024))
    whole = quantized_rows(weight.bfloat16(), axis, scheme, known)
    monkeypatch.setattr(rounding, "_SIZE", 7 * 64)
    monkeypatch.setattr(rounding, "_VALUES", 7 * 64)
    monkeypatch.setattr(rounding, "_VALUES", 7 * 64)
    cut = quantized_rows(weight.bfloat16(), axis, scheme, known)
    assert torch.equal(cut.integers, whole.integers)
    torch.testing.assert_close(cut.scale, whole.scale, rtol=1e-4 if algorithm in ("gptq", "adaround") else 0, atol=0)
    assert torch.equal(cut.zero_point, whole.zero_point)


@pytest.mark.parametrize("kind", [NumberFormat("int3", 3, torch.int8, -4, 3), INT4, INT8], ids=["3", "4", "8"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [16, 15])
def test_packed_rows_are_the_rows_in_as_few_bytes(kind: NumberFormat, symmetric: bool, columns: int) -> None:
    rows = quantized_rows(noise(9, columns) + 1, 0, WeightScheme(kind, symmetric))
    packed = PackedRows.of(rows, kind.bits)
    fits = kind.bits <= 4 and columns % 2 == 0
    assert packed.numbers.nbytes == rows.integers.numel() // (2 if fits else 1)
    assert (packed.zero_point is None) == symmetric
    unpacked = packed.unpacked()
    assert unpacked.integers.dtype == torch.int8
    for name in ("integers", "scale", "zero_point"):
        assert torch.equal(getattr(unpacked, name), getattr(rows, name))


class Growing(nn.Module):
    """A layer that is called twice, and one whose inputs have another size."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.twice(self.twice(x).relu())).relu())


def rounded(model: nn.Module, runs: list[str]) -> list[torch.Tensor]:
    """The integers of a model's weights with GPTQ; ``runs`` gets the name of each layer that runs."""
    samples = [Sample((noise(4, 32, seed=seed),), {}, seed) for seed in range(3)]
    program = torch.export.export(model, samples[0].args, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    settings = QuantizationSettings(
        weights_num_bits=4, weights_algorithm="gptq", prefer_weights_only_quantization=True,
        weights_only_quantization_block_size=32,
    )  # fmt: skip
    observed = insert_observers(program, model, explain_settings(model, settings), Placement())
    real = torch.fx.Interpreter.call_function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.fx.Interpreter,
            "call_function",
            lambda self, target, args, kwargs: runs.append(str(target)) or real(self, target, args, kwargs),
        )
        calibrated = calibrate(observed, samples)
    return [one.rows().integers for one in all_observers(calibrated.graph) if hasattr(one, "found")]


def test_samples_run_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, once, often = Growing().eval(), list[str](), list[str]()
    found = rounded(model, once)
    # all that is needed in front of the last layer, once for each sample
    assert once.count("aten.linear.default") == 3 * 3
    monkeypatch.setattr(input_hessians, "can_run_in_step", lambda graph: False)
    monkeypatch.setattr(input_hessians, "_MEMORY", 1)
    for one, other in zip(found, rounded(model, often), strict=True):
        assert torch.equal(one, other)
    assert len(often) > 2 * len(once)


def test_where_samples_keep_too_much_the_rest_is_rounded_in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, runs = Growing().eval(), list[str]()
    found = rounded(model, [])
    monkeypatch.setattr(input_hessians, "_MEMORY", 1)
    for one, other in zip(found, rounded(model, runs), strict=True):
        assert torch.equal(one, other)
    assert runs.count("aten.linear.default") > 3 * 4


def test_few_bits_keep_the_gain_of_each_channel() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 3) * torch.logspace(-2, 1, 6)[:, None, None, None]
    weight[5] = 0
    found = nearest(weight, 0, WeightScheme(INT4, least_error=True))
    rows, rounded = weight.flatten(1), found.integers * found.scale[:, None]
    torch.testing.assert_close((rows * rounded).sum(1), rows.square().sum(1), rtol=1e-5, atol=0)
    assert not rounded[5].any()
    one_scale = WeightScheme(INT4, least_error=True, per_channel=False)
    assert nearest(weight, 0, one_scale).scale == weight_qparams(weight, 0, one_scale)[0]


def test_errors_of_few_bits_do_not_add_up_over_layers() -> None:
    torch.manual_seed(0)
    # what they have in common is not averaged out, as in trained networks
    convolutions = [(torch.randn(16, 16, 3, 3) + 0.5) / 72 for _ in range(16)]
    x = torch.rand(8, 16, 8, 8)

    def run(weights: list[torch.Tensor]) -> torch.Tensor:
        y = x
        for each in weights:
            y = torch.relu(torch.nn.functional.conv2d(y, each, padding=1))
        return y

    def rounded(weight: torch.Tensor, *, gain: bool) -> torch.Tensor:
        scheme = WeightScheme(INT4, least_error=True)
        found = nearest(weight, 0, scheme)
        scale = found.scale if gain else weight_qparams(weight, 0, scheme)[0]
        return (found.integers * scale[:, None]).reshape(weight.shape)

    right = run(convolutions)
    noise = [
        (run([rounded(each, gain=gain) for each in convolutions]) - right).square().mean() for gain in (True, False)
    ]
    assert noise[0] < noise[1] / 1.5
