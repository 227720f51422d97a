"""A bench opens on what a failed call was given."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.error_display import ErrorCard
from prepbench.errors import TargetError


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def failed(call: Any) -> BaseException:
    with pytest.raises(pb.PrepbenchError) as caught:
        call()
    return caught.value


def test_bench_of_a_failed_capture_has_its_model_and_samples() -> None:
    model = Branch()
    error = failed(lambda: pb.capture(model, torch.ones(2)))
    assert "Repair it in the bench" in ErrorCard.of(error).page()
    bench = pb.Bench.of_error(error)
    assert bench.model is model
    assert len(bench.tracing_inputs) == 1
    assert bench.summary().steps[0].kind == "bad"


def test_bench_of_a_failed_compile_has_all_that_it_was_given() -> None:
    samples, data = [torch.ones(2), torch.ones(3)], [torch.ones(4)]
    error = failed(lambda: pb.compile_model(Branch(), tracing_inputs=samples, calibration_inputs=data))
    bench = pb.Bench.of_error(error)
    assert [len(each) for each in (bench.tracing_inputs, bench.calibration_inputs)] == [2, 1]


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


def test_bench_of_what_a_target_lacks_has_that_target_and_says_what_to_do() -> None:
    samples = [torch.eye(3) + 1, torch.eye(4) + 1]
    target = pb.OnnxRuntimeDeployment(intra_op_threads=1)
    error = failed(lambda: pb.compile_model(Inverse(), tracing_inputs=samples, deployment_settings=target))
    assert isinstance(error, TargetError)
    assert "Repair it in the bench" in ErrorCard.of(error).page()
    bench = pb.Bench.of_error(error)
    assert bench.state.targets == (target,)
    card = bench.status.message
    assert (card.kind, card.about) == ("error", "compile"), "it stands under the button that would fail again"
    assert "linalg_inv" in card.text
    assert [(button.action, button.value) for button in card.buttons] == [
        ("keep_in_pytorch", ""),
        ("use_target", "Inductor"),  # OpenVINO, which comes before it, lacks the same
    ]


def test_errors_of_no_call_with_a_model_have_no_button() -> None:
    def refuse() -> None:
        raise TargetError("This file needs another target.")

    assert "Repair it in the bench" not in ErrorCard.of(failed(refuse)).page()


def test_last_error_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", failed(lambda: pb.capture(Branch(), [torch.ones(2)])), raising=False)
    assert isinstance(pb.Bench.of_error().model, Branch)
    monkeypatch.delattr(sys, "last_value")
    with pytest.raises(pb.PrepbenchError, match="No call has failed: give the error"):
        pb.Bench.of_error()


def test_errors_without_a_model_are_refused() -> None:
    error = failed(lambda: pb.QuantizationSettings(weights_num_bits=5))
    assert "Repair it in the bench" not in ErrorCard.of(error).page(), "nothing to repair there"
    with pytest.raises(pb.PrepbenchError, match="SettingsError was raised by no call with a model"):
        pb.Bench.of_error(error)
    with pytest.raises(pb.PrepbenchError, match=r"error must be what a call of prepbench raised, .* got 'text'"):
        pb.Bench.of_error("text")
