"""Candidates, thresholds, floors, observers, blocks and corrected biases: what is decided, and that it helps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CalibrationError, SettingsError
from prepbench.objects.compare import sqnr

EAGER = pb.EagerDeployment()


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


def compile_(model: nn.Module, rules: Any = None, options: Any = None, shape: Any = (64,), **settings: Any) -> Any:
    return pb.compile_model(
        model,
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(64, *shape), noise(32, *shape)],
        deployment_settings=EAGER,
        quantization_settings=pb.QuantizationSettings(**settings),
        layer_quantization_settings=rules,
        compile_options=options,
    )


def quality(model: nn.Module, compiled: Any, x: torch.Tensor) -> float:
    with torch.no_grad():
        return sqnr(model(x), compiled(x))


def bits(compiled: Any) -> list[int]:
    return [row.weights_bits for row in compiled.report.layers]


def test_a_threshold_of_zero_changes_no_number() -> None:
    model, x = mlp(), noise(9, 64)
    compiled = compile_(model, quantization_sensitivity_threshold=0)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert all("above the threshold of 0" in row.reason for row in compiled.report.layers)


def test_a_threshold_keeps_the_layers_above_it_in_float() -> None:
    model = mlp()
    model[2].weight.data[0] *= 20  # with one scale for all channels, the others become coarse
    rows = sorted(compile_(model, per_channel=False).report.layers, key=lambda row: row.sqnr)
    between = 10 ** (-(rows[0].sqnr + rows[1].sqnr) / 20)
    chosen = compile_(model, per_channel=False, quantization_sensitivity_threshold=between).report.layers
    assert [row.fqn for row in chosen if not row.quantized] == [rows[0].fqn]


def test_candidates_are_chosen_by_sensitivity() -> None:
    model, each = mlp(), pb.CompileOptions(model_sqnr_floor=0)
    loose = {
        "weights_num_bits": [8, 4], "quantization_sensitivity_threshold": 0.05, "weights_algorithm": "nearest"
    }  # fmt: skip
    assert bits(compile_(model, options=each, **loose)) == [4, 4, 4]
    strict = {**loose, "quantization_sensitivity_threshold": 1e-3}
    assert bits(compile_(model, **strict)) == [8, 8, 8]
    model[2].weight.data[:, 5] *= 20  # few bits are not enough for one scale to a row
    mixed = compile_(model, options=each, **loose)
    assert bits(mixed) == [4, 8, 4]
    assert all(row.sqnr >= 13 for row in mixed.report.layers)
    assert all(row.sqnr >= 20 for row in compile_(mlp(), weights_num_bits=[8, 4]).report.layers)
    four, eight = (compile_(mlp(), weights_num_bits=n).report.layers[0].sqnr for n in (4, 8))
    assert eight > four + 10


def test_blocks_of_weights_are_finer_than_channels() -> None:
    model, x = mlp(), noise(9, 64)
    model[0].weight.data[:, 3] *= 6
    weights_only: dict[str, Any] = {"weights_num_bits": 4, "prefer_weights_only_quantization": True}
    anything = pb.CompileOptions(keep_ruined_layers_in_float=False)
    by_channel = compile_(model, options=anything, **weights_only)
    by_block = compile_(model, options=anything, **weights_only, weights_only_quantization_block_size=16)
    assert [row.block_size for row in by_block.report.layers] == [16, 16, 16]
    assert quality(model, by_block, x) > quality(model, by_channel, x) + 3
    assert [row.activations_bits for row in by_block.report.layers] == [32, 32, 32]
    chosen = compile_(
        model,
        **weights_only,
        weights_only_quantization_block_size=[0, 16, 64],
        quantization_sensitivity_threshold=0.0105,
        options=anything,
    )
    assert chosen.report.layers[0].block_size == 16
    assert all(row.sqnr >= 19.7 for row in chosen.report.layers if row.quantized)


def test_a_weight_that_cannot_be_cut_into_blocks_says_so() -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    compiled = compile_(
        model, shape=(20,), prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    )
    assert [row.block_size for row in compiled.report.layers] == [0, 32]
    assert "cannot be cut into blocks of 32" in compiled.report.layers[0].note


def test_blocks_that_do_not_divide_the_inputs_become_the_next_smaller_ones_that_do() -> None:
    model = nn.Sequential(nn.Linear(48, 8)).eval()
    compiled = compile_(
        model, shape=(48,), prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    )
    assert compiled.report.layers[0].block_size == 16
    assert compiled.report.layers[0].note == "blocks of 16, because its weight (8, 48) cannot be cut into blocks of 32"


def test_a_block_size_that_no_layer_heeds_is_an_error() -> None:
    with pytest.raises(SettingsError, match="block_size=32 changes nothing"):
        compile_(mlp(), weights_only_quantization_block_size=32)


def test_weights_alone_take_no_ranges_from_elsewhere_and_need_a_layer() -> None:
    only = {"prefer_weights_only_quantization": True, "weights_num_bits": 4, "weights_only_quantization_block_size": 32}
    assert compile_(mlp(), **only).report.reused == ()
    with pytest.raises(SettingsError, match="the model has no layer with a weight matrix"):
        compile_(nn.ReLU(), **only)


def test_asymmetric_weights_use_the_range_that_they_have() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64, bias=False)).eval(), noise(9, 64)
    model[0].weight.data.uniform_(0.5, 1.5)
    only = {"prefer_weights_only_quantization": True, "weights_num_bits": 4}
    assert (
        quality(model, compile_(model, **only, weights_symmetric=False), x)
        > quality(model, compile_(model, **only), x) + 3
    )
    with pytest.raises(SettingsError, match="weights_symmetric=False needs prefer_weights_only"):
        pb.QuantizationSettings(weights_symmetric=False)


def test_the_full_range_of_integers_is_a_little_finer() -> None:
    model = mlp()
    full, part = (compile_(model, weights_utilize_full_int_range=full).report.layers[0] for full in (True, False))
    assert full.scale_range[1] == pytest.approx(part.scale_range[1] * 127 / 127.5, rel=1e-5)


def test_16_bit_activations_are_finer_and_symmetric_ones_have_no_zero_point() -> None:
    model, x = mlp(), noise(9, 64)
    eight, sixteen = compile_(model), compile_(model, activations_num_bits=16)
    assert sixteen.report.layers[0].activations_bits == 16
    assert quality(model, sixteen, x) > quality(model, eight, x) + 1
    low, high = compile_(model, activations_symmetric=True).report.layers[2].input_range
    assert high == pytest.approx(-low * 128 / 127)
    assert compile_(model).report.layers[2].input_range[0] == 0  # behind a ReLU


def test_the_percentile_survives_an_outlier_in_the_activations() -> None:
    model = mlp()
    sample = noise(256, 64)
    spoiled = sample.clone()
    spoiled[7, 7] = 300.0

    def of_observer(name: str) -> float:
        compiled = pb.compile_model(
            model,
            tracing_inputs=[noise(2, 64), noise(3, 64)],
            calibration_inputs=[spoiled],
            deployment_settings=EAGER,
            quantization_settings=pb.QuantizationSettings(observer=name),
            compile_options=pb.CompileOptions(
                keep_ruined_layers_in_float=False, bias_correction=False, percentile=99.9
            ),
        )
        assert compiled.report.layers[0].observer == name
        return quality(model, compiled, sample)

    assert of_observer("percentile") > of_observer("minmax") + 6
    assert of_observer("mse") > of_observer("minmax") - 0.5


def test_the_range_of_least_error_clips_what_few_bits_cannot_hold() -> None:
    from prepbench.quantize.observers import ActivationObserver  # loads torchao

    x, errors = noise(100, 100), {}
    for method in ("minmax", "mse"):
        observer = ActivationObserver(
            method, dtype=torch.uint8, quant_min=0, quant_max=15, qscheme=torch.per_tensor_affine
        )
        observer(x)
        errors[method] = float((observer.simulate(x) - x).square().mean())
    assert errors["mse"] < 0.7 * errors["minmax"]


def test_a_ruined_layer_stays_in_float_unless_the_user_forbids_it() -> None:
    model, x = mlp(), noise(9, 64)
    model[2].weight.data[0] *= 1e4
    model[4].weight.data[:, 0] = 0  # so that the large channel does not matter, and the others do
    kept = compile_(model, per_channel=False, options=pb.CompileOptions(layer_sqnr_floor=-300))
    forbidden = compile_(model, per_channel=False, options=pb.CompileOptions(keep_ruined_layers_in_float=False))
    assert quality(model, forbidden, x) < 10
    assert forbidden.report.model_sqnr < 10
    assert quality(model, kept, x) > 20
    assert kept.report.model_sqnr > 20
    assert any("below the floor of 20 dB" in row.reason for row in kept.report.layers)


def test_as_few_layers_as_the_models_floor_allows_are_given_up() -> None:
    """What the first layers add grows on its way to the output of this network; the last ones can stay integers."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 8)).eval()
    free = compile_(model, options=pb.CompileOptions(model_sqnr_floor=-300))
    floor = free.report.model_sqnr + 3
    kept = compile_(model, options=pb.CompileOptions(model_sqnr_floor=floor))
    given_up = [row for row in kept.report.layers if not row.quantized]
    assert kept.report.model_sqnr >= floor
    assert 0 < len(given_up) < len(kept.report.layers)
    assert all(f"below the floor of {floor:g} dB" in row.reason for row in given_up)
    x = noise(40, 64)
    assert quality(model, kept, x) > quality(model, free, x) + 2


def test_a_finer_form_comes_before_float_to_reach_the_models_floor() -> None:
    threshold = {"weights_num_bits": [8, 4], "quantization_sensitivity_threshold": 0.05}
    model = mlp()
    coarse = compile_(model, options=pb.CompileOptions(model_sqnr_floor=-300), **threshold)
    finer = compile_(model, options=pb.CompileOptions(model_sqnr_floor=coarse.report.model_sqnr + 1), **threshold)
    assert set(bits(coarse)) == {4}
    assert set(bits(finer)) == {4, 8}


def test_a_layer_that_is_given_up_computes_what_it_did_in_float() -> None:
    model, x = mlp(), noise(9, 64)
    given_up = compile_(model, options=pb.CompileOptions(model_sqnr_floor=200))
    assert bits(given_up) == [32, 32, 32]
    with torch.no_grad():
        assert torch.equal(given_up(x), model(x))
    assert given_up.report.model_sqnr == 300


def test_bias_correction_takes_the_mean_error_off() -> None:
    model, x = nn.Sequential(nn.Linear(64, 8)).eval(), noise(512, 64).abs() + 1
    samples = [noise(512, 64).abs() + 1]

    def mean_error(corrected: bool) -> float:
        compiled = pb.compile_model(
            model,
            tracing_inputs=[x[:2], x[:3]],
            calibration_inputs=samples,
            deployment_settings=EAGER,
            quantization_settings=pb.QuantizationSettings(weights_num_bits=4),
            compile_options=pb.CompileOptions(bias_correction=corrected, keep_ruined_layers_in_float=False),
        )
        with torch.no_grad():
            return float((compiled(x) - model(x)).mean(0).abs().mean())

    assert mean_error(True) < mean_error(False) / 5


def test_batch_norms_are_folded_unless_told_otherwise() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    for fold in (True, False):
        compiled = compile_(model, shape=(3, 8, 8), options=pb.CompileOptions(fold_batch_norm=fold))
        targets = " ".join(node.target for node in compiled.document().graphs[0].nodes)
        assert ("batch_norm" in targets) is not fold


def test_smooth_quant_helps_where_activations_have_outlier_channels() -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).eval()
    model[0].weight.data[5] *= 60
    model[1].weight.data[:, 5] /= 30
    x = noise(32, 64)
    plain, smooth = (
        compile_(model, options=pb.CompileOptions(smooth_quant=smooth, keep_ruined_layers_in_float=False))
        for smooth in (False, True)
    )
    assert quality(model, smooth, x) > quality(model, plain, x) + 3
    assert smooth.report.layers[0].note == "smoothed"


def test_outlier_channels_move_unasked_where_that_costs_nothing() -> None:
    model, x = gated(), noise(32, 64)
    plain, found = (
        compile_(model, options=pb.CompileOptions(smooth_quant=smooth, keep_ruined_layers_in_float=False))
        for smooth in (False, None)
    )
    assert quality(model, found, x) > quality(model, plain, x) + 6
    assert [row.note for row in found.report.layers] == ["", "smoothed", "smoothed"]
    targets = [[node.target for node in each.document().graphs[0].nodes] for each in (plain, found)]
    assert len(targets[0]) == len(targets[1])


@pytest.mark.parametrize(
    "settings", [{"prefer_weights_only_quantization": True}, {"weights_num_bits": 4}, {"per_channel": False}]
)
def test_nothing_moves_unasked_into_weights_that_have_no_room(settings: dict[str, Any]) -> None:
    found = compile_(gated(), options=pb.CompileOptions(keep_ruined_layers_in_float=False), **settings)
    assert not any("smoothed" in row.note for row in found.report.layers)


def test_half_precision_weights_are_smoothed_as_those_in_float32() -> None:
    model, x = gated(), noise(32, 64)
    kept = {name: value.clone() for name, value in model.bfloat16().state_dict().items()}
    plain, found = (
        pb.compile_model(
            model,
            calibration_inputs=[x.bfloat16(), x[:3].bfloat16()],
            deployment_settings=EAGER,
            quantization_settings=pb.QuantizationSettings(),
            compile_options=pb.CompileOptions(smooth_quant=smooth, keep_ruined_layers_in_float=False),
        )
        for smooth in (False, None)
    )
    assert found.report.model_sqnr > plain.report.model_sqnr + 6
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def gated() -> nn.Module:
    """Products of two layers, of which one channel stands out, as large language models have them."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
            return result

    torch.manual_seed(0)
    model = Gated().eval()
    model.up.weight.data[5] *= 100
    model.down.weight.data[:, 5] /= 100
    return model


def test_cross_layer_equalisation_helps_where_one_scale_serves_a_whole_weight() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3)).eval()
    spread = torch.logspace(-2, 2, 16)
    model[0].weight.data *= spread[:, None, None, None]
    model[0].bias.data *= spread
    model[2].weight.data /= spread[None, :, None, None]
    x = noise(8, 3, 10, 10)
    results = [
        compile_(
            model,
            shape=(3, 10, 10),
            per_channel=False,
            options=pb.CompileOptions(cross_layer_equalization=equalized, keep_ruined_layers_in_float=False),
        )
        for equalized in (False, True)
    ]
    assert quality(model, results[1], x) > quality(model, results[0], x) + 6
    assert "channels equalised" in results[1].report.layers[0].note


class Chain(nn.Module):
    """Four layers in a row, and one beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.beside = (nn.Linear(64, 64) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.c(self.b(self.a(x)).relu())) + self.beside(x)


def test_skipping_downstream_and_until() -> None:
    model = Chain().eval()

    names = {row.fqn: row.quantized for row in compile_(
        model, rules={"b": pb.LayerQuantizationSettings(skip_quantization=True)}
    ).report.layers}  # fmt: skip
    assert names == {"a": True, "b": False, "c": True, "d": True, "beside": True}
    rows = compile_(model, rules={"b": pb.LayerQuantizationSettings(skip_quantization_downstream=True)}).report.layers
    assert {row.fqn for row in rows if not row.quantized} == {"b", "c", "d"}
    assert next(row for row in rows if row.fqn == "d").reason.startswith("behind b, which rule 'b' skips")
    rows = compile_(model, rules={"b": pb.LayerQuantizationSettings(skip_quantization_until=["d"])}).report.layers
    assert {row.fqn for row in rows if not row.quantized} == {"b", "c"}
    with pytest.raises(SettingsError, match=r"names 'beside', which the output of 'b' does not reach. It reaches c, d"):
        compile_(model, rules={"b": pb.LayerQuantizationSettings(skip_quantization_until=["beside"])})
    with pytest.raises(SettingsError, match=r"names 'dd', which the model does not have. Nearest: 'd'"):
        compile_(model, rules={"b": pb.LayerQuantizationSettings(skip_quantization_until=["dd"])})


def test_the_report_tells_each_layers_numbers() -> None:
    row = compile_(mlp(), observer="percentile").report.layers[0]
    assert (row.weights_bits, row.activations_bits, row.observer) == (8, 8, "percentile")
    assert row.input_range[0] < 0 < row.input_range[1]
    assert 0 < row.scale_range[0] <= row.scale_range[1]
    assert 30 < row.sqnr < 60


class Fork(nn.Module):
    """Two layers that read one value."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.other(x)


def test_layers_that_read_one_value_quantize_it_each_in_its_own_way() -> None:
    torch.manual_seed(0)
    model = Fork().eval()

    def ranges(rules: Any = None, **settings: Any) -> list[Any]:
        options = pb.CompileOptions(keep_ruined_layers_in_float=False, smooth_quant=False, percentile=90)
        report = compile_(copy.deepcopy(model), rules, options, **settings).report
        return [(row.input_range, row.activations_bits) for row in report.layers]

    plain = ranges()
    assert plain[0] == plain[1]
    for change in ({"observer": "percentile"}, {"activations_symmetric": True}, {"activations_num_bits": 4}):
        changed = ranges(**change)
        assert changed[1] != plain[1]
        assert ranges({"other": pb.LayerQuantizationSettings(**change)}) == [plain[0], changed[1]]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
@pytest.mark.parametrize("only", [True, False])
def test_weights_without_a_number_are_named(bad: float, only: bool) -> None:
    model = mlp()
    with torch.no_grad():
        model[2].weight[3, 4] = bad
    with pytest.raises(CalibrationError, match=r"2\.weight holds NaN or infinite values \(1 of 4096\)"):
        compile_(model, prefer_weights_only_quantization=only)
    kept = {"2": pb.LayerQuantizationSettings(skip_quantization=True)}
    with pytest.raises(CalibrationError, match="gives NaN or infinite values"):  # what is behind it
        compile_(model, kept)
