"""Activations of 4 bits: integers of 8 bits with 16 values, also beyond the range that was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import logits, samples, trained

FOUR = pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4)
TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment(), "openvino": pb.OpenVinoDeployment()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_a_target_computes_what_evaluation_mode_does(kind: str, target: str, tmp_path: Path) -> None:
    model = trained(kind)
    prepared = pb.trainable(
        model, calibration_inputs=samples(model), deployment_settings=TARGETS[target], quantization_settings=FOUR
    )
    compiled = pb.compile_model(prepared)
    compiled.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved")
    x = samples(model)[0]
    with torch.no_grad():
        for each in (x, 5 * x):  # the second leaves the ranges
            assert sqnr(logits(prepared(each)), logits(compiled(each))) >= 60
            assert torch.equal(logits(compiled(each)), logits(loaded(each)))
        assert 5 < sqnr(logits(model(x)), logits(compiled(x))) < 30
    assert all(row.activations_bits == 4 for row in compiled.report.layers if row.quantized)


class Sum(nn.Module):
    """Two convolutions whose results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(x)


@pytest.mark.parametrize("lora", [None, pb.LoraSettings(rank=2)])
@pytest.mark.parametrize("target", TARGETS)
def test_additions_are_those_of_evaluation_mode(target: str, lora: pb.LoraSettings | None) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)]
    prepared = pb.trainable(
        Sum().eval(),
        calibration_inputs=batches,
        deployment_settings=TARGETS[target],
        quantization_settings=FOUR,
        lora_settings=lora,
    )
    with torch.no_grad():
        for name, parameter in prepared.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
        prepared.eval()
        compiled = pb.compile_model(prepared)
        assert sqnr(prepared(batches[0]), compiled(batches[0])) >= 60
    assert all(row.quantized for row in compiled.report.layers)


def test_few_bits_of_activations_lower_the_floors() -> None:
    model = trained("conv")
    eight = pb.QuantizationSettings(activations_num_bits=4)
    compiled = pb.compile_model(
        model, calibration_inputs=samples(model), deployment_settings=TARGETS["openvino"], quantization_settings=eight
    )
    assert {(row.weights_bits, row.activations_bits) for row in compiled.report.layers} == {(8, 4)}


def test_a_target_without_them_says_so() -> None:
    model = trained("conv")
    with pytest.raises(pb.PrepbenchError, match=r"InductorDeployment does not support 4-bit activations.*8 or 16 bits"):
        pb.compile_model(
            model,
            calibration_inputs=samples(model),
            deployment_settings=pb.InductorDeployment(),
            quantization_settings=FOUR,
        )
