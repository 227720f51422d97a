"""Where sums of 8-bit products would saturate, weights leave one bit unused, and only there."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import prepbench as pb
from prepbench.quantize.weights import WeightScheme
from prepbench.targets import target_for
from tests.compile.compile.models import SmallNet, images, int8


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, (-64, 63)),
        ({"weights_utilize_full_int_range": False}, (-63, 63)),
        ({"activations_num_bits": 16}, (-128, 127)),
        ({"prefer_weights_only_quantization": True}, (-128, 127)),
        ({"weights_num_bits": 4}, (-8, 7)),
    ],
)
def test_limits(settings: dict[str, object], limits: tuple[int, int]) -> None:
    chosen = pb.QuantizationSettings(**settings)  # type: ignore[arg-type]
    assert WeightScheme.of(chosen, reduce_range=True).limits == limits
    assert not WeightScheme.of(chosen).reduce_range


@pytest.mark.parametrize("reason", ["", "a reason"])
def test_the_target_decides_and_the_report_says_why(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = type(target_for(pb.EagerDeployment()))
    monkeypatch.setattr(target, "placement", dataclasses.replace(target.placement, reduce_range=reason))
    torch.manual_seed(0)
    model = SmallNet().eval()
    compiled = int8(model, pb.EagerDeployment())
    remarks = [remark for remark in compiled.report.remarks if "bits" in remark]
    assert remarks == ([f"8-bit weights use 7 bits, because {reason}"] if reason else [])
    assert ("use 7 bits" in repr(compiled.report)) is bool(reason)
    assert pb.metrics.sqnr(compiled(images(4)), model(images(4))) > 25


def test_targets_that_compute_elsewhere_use_all_bits() -> None:
    for settings in (pb.TensorRtDeployment(), pb.ExecuTorchDeployment(), pb.EagerDeployment()):
        assert target_for(settings).placement.reduce_range == ""
