"""Activations of 4 bits: integers of 8 bits with 16 values, also beyond the range that was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import prepbench as pb
from prepbench.running.sqnr import sqnr
from tests.adapt.models import logits, samples, trained

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
