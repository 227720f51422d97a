"""Floors by the bits that were asked for, and language models judged by what they predict."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.package.report import grouped_lines
from prepbench.quantize.floors import Floors, Score, named_bits
from prepbench.quantize.predictions import divergence, logits_of

ROWS = 60


class Language(nn.Module):
    """Tokens to logits, with a soft cap; what it says is nearly the same for all tokens where ``scale`` is small."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(ROWS, 32), nn.Linear(32, ROWS, bias=False)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.head.weight.data *= scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = nn.functional.layer_norm(layer(x).relu(), (32,))
        return torch.tanh(self.head(x) / 300) * 300


def four_bits(scale: float, options: Any = None) -> Any:
    torch.manual_seed(0)
    samples = [(torch.randint(0, ROWS, (batch, length)),) for batch, length in ((2, 7), (3, 12))]
    return pb.compile_model(
        Language(scale).eval(),
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=True, weights_num_bits=4),
        compile_options=options,
    )


def test_bits_that_are_named_are_kept_where_predictions_hold() -> None:
    report = four_bits(1e-2).report
    assert report.model_sqnr < 20
    assert report.model_divergence < 1e-3
    assert [row.weights_bits for row in report.layers] == [8, *[4] * 5]
    assert "predictions at a divergence of" in repr(report)
    assert type(report).from_dict(report.to_dict()) == report


def test_predictions_that_change_too_much_bring_layers_back() -> None:
    report = four_bits(200.0).report
    assert report.model_divergence <= 0.5
    left = [row for row in report.layers if not row.quantized]
    assert left
    assert all("predictions would be at a divergence of" in row.reason for row in left)
    free = four_bits(200.0, pb.CompileOptions(keep_ruined_layers_in_float=False)).report
    assert free.model_divergence > 0.5


def test_a_floor_that_is_named_counts_for_language_models() -> None:
    report = four_bits(1e-2, pb.CompileOptions(model_sqnr_floor=30)).report
    assert report.model_sqnr >= 30
    assert "below the floor of 30 dB" in next(row.reason for row in report.layers if not row.quantized)


@pytest.mark.parametrize(("bits", "layer", "model"), [(8, 10.0, 20.0), (4, 5.0, 10.0), ([8, 4], 10.0, 20.0)])
def test_floors_depend_on_the_bits(bits: Any, layer: float, model: float) -> None:
    settings = pb.QuantizationSettings(weights_num_bits=bits)
    floors = Floors.of(pb.CompileOptions(), [settings])
    assert floors.layer(settings) == layer
    assert (floors.is_enough(Score(model + 1.01)), floors.is_enough(Score(model + 0.99))) == (True, False)
    assert named_bits(settings) == (4 if bits == 4 else 8)


def test_logits_are_what_a_layer_gives_for_each_row_of_a_table() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    assert logits_of(torch.export.export(Language(1.0), (ids,)).graph) == (0,)
    hidden = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 32), nn.LayerNorm(32))
    assert logits_of(torch.export.export(hidden, (ids,)).graph) == ()
    assert logits_of(torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),)).graph) == ()


def test_the_divergence_is_that_of_the_distributions() -> None:
    one, other = torch.tensor([[[0.0, 0.0], [1.0, -math.inf]]]), torch.tensor([[[0.0, math.log(3)], [5.0, -math.inf]]])
    total, count = divergence(one, other)
    assert count == 2
    assert total == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert divergence(one, one + 7)[0] == pytest.approx(0, abs=1e-6)
    assert divergence(one, other * math.nan)[0] == math.inf


def test_equal_reasons_are_one_line() -> None:
    rows = [(f"model.layers.{i}.{name}", "float: too far") for i in range(9) for name in ("up", "down")]
    assert grouped_lines([*rows, ("head", "float: other")]) == [
        "  18 layers (model.layers.*.up, model.layers.*.down): float: too far",
        "  head: float: other",
    ]


def test_outputs_of_a_dynamic_width_predict_nothing() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            return x @ x.mT

    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Pairs(), (torch.zeros(2, 3).long(),), dynamic_shapes=shapes)
    assert logits_of(program.graph) == ()


def test_one_prediction_alone_has_a_divergence() -> None:
    assert divergence(torch.zeros(3), torch.zeros(3)) == (0.0, 1)
