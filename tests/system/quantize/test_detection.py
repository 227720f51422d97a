"""A detector from images to boxes: trained, compiled to int8 on two runtimes, and scored by mAP."""

from __future__ import annotations

import pytest
import torch

import prepbench as pb
from tests import detector
from tests.turns import in_turns

pytest.importorskip("PIL")  # reads the photographs
POINTS = 0.01  # of mAP; on few images one exchanged box counts for tenths of a point


@pytest.fixture(scope="module")
def model():
    return detector.Detector(detector.trained()).eval()


@pytest.fixture(scope="module")
def data():
    return detector.batches(240, seed=2)


@pytest.fixture(scope="module")
def calibration():
    return [images for images, _ in detector.batches(64, seed=3)]


def _compared(model, compiled, data):
    return pb.compare({"float32": model, "int8": compiled}, data, metric=pb.metrics.mean_average_precision, rounds=0)


@pytest.mark.parametrize("deployment", in_turns([pb.OnnxRuntimeDeployment, pb.OpenVinoDeployment], 0))
def test_int8_finds_what_float_finds(model, data, calibration, deployment):
    if deployment is pb.OpenVinoDeployment:
        pytest.importorskip("openvino")
    compiled = pb.compile_model(
        model,
        calibration_inputs=calibration,
        deployment_settings=deployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    found = _compared(model, compiled, data)
    assert found["float32"].metric > 0.5
    assert found["int8"].metric > found["float32"].metric - POINTS
    rows = compiled.report.layers
    assert sum(row.quantized for row in rows) > len(rows) / 2
    assert any("in front of" in remark and "topk" in remark for remark in compiled.report.remarks)
    boxes, scores, labels = compiled(torch.zeros(16, 3, detector.SIZE, detector.SIZE))  # nothing is on these images
    assert boxes.shape == (16, detector.CANDIDATES, 4)
    assert scores.shape == labels.shape == (16, detector.CANDIDATES)
    assert bool(boxes.isfinite().all())


def test_suppression_in_the_graph_is_that_of_the_loop(model, data):
    images = torch.cat([each for each, _ in data[:4]])
    with torch.no_grad():
        boxes, scores, labels = model.candidates(images)
        assert torch.equal(model(images)[2], detector.suppressed(boxes, scores, labels))


def test_training_is_repeatable_and_some_images_are_empty():
    first, second = (detector.scenes(40, seed=5) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert any(not len(target["labels"]) for target in first[1])
