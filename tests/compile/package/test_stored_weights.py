"""What the report says of weights is what lies in the files, and no tensor of a model is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from tests.zoo import ZOO

TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment, "eager": pb.EagerDeployment}
FOUR = {"weights_num_bits": 4, "prefer_weights_only_quantization": True}
ALL = pb.CompileOptions(layer_sqnr_floor=-100.0, model_sqnr_floor=-100.0)
FLOAT = pb.LayerQuantizationSettings(skip_quantization=True)
EIGHT = pb.LayerQuantizationSettings(weights_num_bits=8)


class Tagger(nn.Module):
    """A table that is looked up in, and that the head multiplies by."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(48, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.tanh(self.mix(self.words(ids))))
        return scores


def compiled(model: nn.Module, samples: list[Any], target: str = "onnxruntime", rules: Any = None, **kind: Any) -> Any:
    return pb.compile_model(
        model.eval(),
        calibration_inputs=samples,
        deployment_settings=TARGETS[target](),
        quantization_settings=pb.QuantizationSettings(**kind),
        layer_quantization_settings=rules,
        compile_options=ALL,
    )


def tagger(rules: Any = None, target: str = "onnxruntime", **kind: Any) -> Any:
    torch.manual_seed(0)
    ids = [torch.randint(0, 48, (2, 5)), torch.randint(0, 48, (3, 6))]
    return compiled(Tagger(), ids, target, rules, **kind)


def stored(report: Any) -> dict[str, tuple[int, float | None]]:
    return {row.fqn: (row.weights_bits, row.stored_bits) for row in report.layers}


@pytest.mark.parametrize("target", TARGETS)
def test_bits_are_those_in_the_file(target: str) -> None:
    torch.manual_seed(0)
    model, samples = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)), [torch.randn(4, 32)]
    packed = 8 if target == "eager" else 4  # PyTorch has no tensors of half bytes
    weights_only = compiled(model, samples, target, **FOUR).report
    assert stored(weights_only) == {"0": (4, packed), "2": (4, packed)}
    both = compiled(model, samples, target, weights_num_bits=4).report
    assert stored(both) == {"0": (4, 8), "2": (4, 8)}  # kernels of integers read 8 bits
    assert both.layers[0].summary == "int4, int8 activations, stored in 8 bits"
    assert "  2 layers (0, 2): 4 bits, stored in 8: 8 bits are as small and more exact" in repr(both)
    assert ("as small and more exact" in repr(weights_only)) is (packed == 8)
    assert f"{both.bits_per_weight:.2f} bits stored for each number" in repr(both)
    if target != "eager":
        assert both.bits_per_weight > weights_only.bits_per_weight


def test_stored_bits_are_counted_in_the_file(tmp_path: Path) -> None:
    model = compiled(nn.Linear(64, 32, bias=False), [torch.randn(4, 64)], **FOUR)
    model.save(tmp_path / "saved")
    (file,) = (tmp_path / "saved").rglob("model.onnx")
    sizes = [
        onnx.numpy_helper.to_array(one).size * (4 if one.data_type == onnx.TensorProto.INT4 else 32)
        for one in onnx.load(file).graph.initializer
    ]
    assert model.report.bits_per_weight == round(sum(sizes) / (64 * 32), 2)
    assert pb.load_compiled(tmp_path / "saved").report == model.report


@pytest.mark.parametrize("target", TARGETS)
def test_a_shared_table_is_stored_once_as_the_layer_says_that_multiplies(target: str) -> None:
    usual = stored(tagger(target=target, **FOUR).report)
    assert usual["words"] == usual["head"] == (4, 8 if target == "eager" else 4)
    report = tagger({"head": EIGHT}, target, **FOUR).report
    assert stored(report)["words"] == stored(report)["head"] == (8, 8)
    assert next(row.note for row in report.layers if row.fqn == "words") == "one table with head"
    assert report.bits_per_weight < 16


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_for_the_embedding_is_kept_and_said_to_store_a_second_table(target: str) -> None:
    model = tagger({"words": FLOAT}, target, **FOUR)
    rows = {row.fqn: row for row in model.report.layers}
    assert rows["words"].summary == "float: skipped by rule 'words'"
    assert rows["head"].weights_bits == 4
    tensors = {row.fqn: row for row in model.report.tensors}
    assert tensors["words.weight"].reason == "stored in float, too, because something else reads it so"
    assert "words.weight: quantized: stored in float, too" in repr(model.report)
    assert model.report.bits_per_weight > 16  # the table in float is in the file
    apart = {row.fqn: row for row in tagger({"words": EIGHT}, target, **FOUR).report.tensors}["words.weight"]
    assert apart.reason == "stored apart for words (8 bits) and head (4 bits)"


def test_float_is_shared_with_the_head_too() -> None:
    report = tagger({"head": FLOAT}, **FOUR).report
    assert {row.fqn: row.summary for row in report.layers if not row.quantized} == {
        "words": "float: skipped by rule 'head'",
        "head": "float: skipped by rule 'head'",
    }


class Keys(nn.Module):
    """The main result, and a key that few bits harm more."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        value = self.value(x)
        return {"result": value, "key": self.key(x)}


def test_the_headline_is_the_main_result_and_names_the_worst_beside_it() -> None:
    torch.manual_seed(0)
    rules = {"key": pb.LayerQuantizationSettings(weights_num_bits=4)}
    report = compiled(Keys(), [torch.randn(8, 16)], rules=rules, prefer_weights_only_quantization=True).report
    assert list(report.output_sqnrs) == ["result", "key"]
    main, worst = report.output_sqnrs.values()
    assert main > worst + 6
    assert report.model_sqnr == worst
    assert f"  result at {main:.1f} dB from float" in repr(report)
    assert f"; the worst of 2 outputs is key at {worst:.1f} dB" in repr(report)


CHEAP = (
    "containers", "parametrized", "tied_weights_and_loss", "experts_by_einsum", "fourier_layer", "recurrent",
    "feature_pyramid",
)  # fmt: skip


@pytest.mark.parametrize("name", CHEAP)
def test_each_tensor_of_the_zoo_is_accounted_for(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name].make()
    report = pb.compile_model(
        model,
        calibration_inputs=ZOO[name].samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=True),
        is_dry_run=True,
    )
    tensors = [*model.parameters(), *model.buffers()]
    counted = [row for row in report.tensors if row.kind != "constant"]
    assert sum(row.bytes for row in counted) == sum(one.numel() * one.element_size() for one in tensors)
    assert len(counted) == len(tensors)
    assert all(row.reason for row in counted if row.outcome != "quantized")
    assert len(report.table("tensors")) == len(report.tensors)


def test_a_table_of_anything_else_is_refused() -> None:
    report = pb.compile_model(nn.Linear(2, 2), tracing_inputs=[torch.ones(1, 2)], is_dry_run=True)
    with pytest.raises(SettingsError, match="must be 'layers' or 'tensors', got 'rows'"):
        report.table("rows")
