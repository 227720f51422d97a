"""The size that a bench expects is that of the file which compiling writes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.choices import Sizes
from prepbench.bench.state import TARGETS
from prepbench.settings import ExplainedLayer

TOLERANCE = 0.05  # of the file: it also holds the graph, and batch norms are folded


@pytest.fixture(scope="module")
def bench() -> pb.Bench:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 520), nn.Linear(520, 10)).eval()
    return pb.Bench(model, calibration_inputs=[torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)])


@pytest.mark.parametrize("precision", ["int8", "int8 weights", "int4 weights", "float32"])
def test_the_expected_size_is_that_of_the_file(bench: pb.Bench, precision: pb.Precision) -> None:
    bench.set_precision("*", precision)
    expected = bench.summary().expected
    bench.compile()
    written = bench.run_history.runs[-1].size_bytes
    assert written is not None
    assert expected.megabytes * 1e6 == pytest.approx(written, rel=TOLERANCE)


def test_a_rule_changes_it_by_its_layers(bench: pb.Bench) -> None:
    bench.set_precision("*", "float32")
    whole = bench.summary().expected
    assert whole.megabytes == whole.float_megabytes
    bench.set_precision("5", "int8 weights")
    saved = 1024 * 512 * 3 - 512 * 4  # a byte for each weight, a scale for each channel
    assert bench.summary().expected.megabytes == pytest.approx(whole.megabytes - saved / 1e6)
    bench.set_precision("7", "int4 weights")
    assert bench.summary().expected.megabytes < whole.megabytes - (saved + 512 * 520 * 3.4) / 1e6


def test_layers_that_the_target_keeps_in_float_count_so(bench: pb.Bench) -> None:
    bench.set_rule("*", pb.LayerQuantizationSettings(weights_num_bits=4))
    sizes = Sizes(bench.choices.model, bench.choices.layer_rules.layers)
    found = sizes.expected(TARGETS["TensorRT"](), bench.explained)  # which has no such layers
    assert found.megabytes == found.float_megabytes
    assert sizes.expected(TARGETS["ONNX Runtime"](), bench.explained).megabytes < found.megabytes / 3.5  # in 8 bits


def test_shared_weights_count_once() -> None:
    first = nn.Linear(64, 64, bias=False)
    second = nn.Linear(64, 64, bias=False)
    second.weight = first.weight
    sizes = Sizes(nn.Sequential(first, second), ["0", "1"])
    settings = pb.QuantizationSettings(prefer_weights_only_quantization=True)
    explained = [ExplainedLayer(fqn, "Linear", "global", settings) for fqn in ("0", "1")]
    expected = sizes.expected(TARGETS["ONNX Runtime"](), explained)
    assert expected.megabytes * 1e6 == pytest.approx(64 * 64 + 64 * 4)
