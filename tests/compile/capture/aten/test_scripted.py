"""Scripted modules: what cannot be done with them is said, and what can be done instead works."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError

SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


def scripted(how: str) -> Any:
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, torch.jit.script(model) if how == "script" else torch.jit.trace(model, SAMPLES[0])


@pytest.mark.parametrize("inside", [False, True])
def test_the_remedy_for_scripted_modules_is_true(inside: bool) -> None:
    original, made = scripted("script")
    model = nn.Sequential(made, nn.ReLU()) if inside else made
    with pytest.raises(FullGraphError, match="runs outside Python") as caught:
        pb.capture(model, SAMPLES)
    (failure,) = caught.value.failures
    assert "Use the module that it was made from" in failure.remedy
    assert "fullgraph=False" in failure.remedy
    assert str(caught.value).startswith(type(original).__name__ if not inside else "Sequential")
    captured = pb.capture(model, SAMPLES, fullgraph=False)
    torch.testing.assert_close(captured.program.module()(SAMPLES[1]), model(SAMPLES[1]))
    assert pb.capture(nn.Sequential(original, nn.ReLU()) if inside else original, SAMPLES).leaves == ()


def test_a_module_that_torch_jit_traced_is_captured_or_kept_as_a_leaf() -> None:
    _, made = scripted("trace")
    for model in (made, nn.Sequential(made, nn.ReLU())):
        captured = pb.capture(model, SAMPLES, fullgraph=False)
        torch.testing.assert_close(captured.program.module()(SAMPLES[1]), model(SAMPLES[1]))
        # the axes, which are inferred from the model, name the inputs as the captured program does
        compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())
        torch.testing.assert_close(compiled(torch.ones(5, 4)), model(torch.ones(5, 4)))


@pytest.mark.parametrize("how", ["script", "trace"])
def test_module_graphs_show_a_scripted_root_as_one_call(how: str) -> None:
    _, made = scripted(how)
    assert "1 modules" in repr(pb.recursive_trace(made, inputs=SAMPLES))


def test_a_scripted_root_is_looked_into_and_put_on_the_bench() -> None:
    _, made = scripted("script")
    fixed = pb.fix(made, SAMPLES)
    assert len(fixed.remaining) == 1
    assert not fixed.applied
    assert "Linear" in repr(fixed)
    bench = pb.Bench(made, tracing_inputs=SAMPLES)
    bench.find_fixes()
    assert bench.summary().title


def test_the_label_of_a_calibration_batch_is_left_out_and_said() -> None:
    batches = [[torch.randn(2, 4), torch.zeros(2)]]
    settings: dict[str, Any] = {
        "tracing_inputs": SAMPLES,
        "calibration_inputs": batches,
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": pb.QuantizationSettings(),
    }
    with pytest.warns(pb.PrepbenchWarning, match="left out as its label, because forward takes input alone"):
        pb.compile_model(nn.Linear(4, 2), **settings)
