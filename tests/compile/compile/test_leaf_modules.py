"""``compile_model(..., leaf_modules=...)``: the modules that the user wants to run in Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError, TargetError
from tests.compile.compile.models import SmallNet, images, unchanged

SAMPLES = [images(2), images(3)]


def compiled(net: nn.Module, leaf_modules: Any, **more: Any) -> Any:
    settings = {"tracing_inputs": SAMPLES, "fullgraph": False, "leaf_modules": leaf_modules, **more}
    return pb.compile_model(net, **settings)


@pytest.mark.parametrize(
    "chosen",
    [lambda net: ["head"], lambda net: [net.head], lambda net: [nn.Linear], lambda net: iter(["Linear"])],
    ids=["name", "object", "class", "class name in an iterator"],
)
def test_a_chosen_leaf_runs_in_python_and_the_result_equals_the_model(net: SmallNet, chosen: Any) -> None:
    with unchanged(net):
        model = compiled(net, chosen(net))
    assert model.report.leaves == ("head",)
    torch.testing.assert_close(model(images(5)), net(images(5)), rtol=1e-4, atol=1e-5)


def test_without_the_argument_nothing_is_a_leaf(net: SmallNet) -> None:
    assert compiled(net, ()).report.leaves == ()


def test_the_rest_is_quantized_and_the_leaf_says_why_it_is_not(net: SmallNet) -> None:
    model = compiled(
        net,
        ["head"],
        calibration_inputs=SAMPLES,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    rows = {row.fqn: row for row in model.report.layers}
    assert rows["head"].reason == "inside the leaf module head (chosen as a leaf)"
    assert rows["stem.0"].quantized


def test_a_model_in_float_with_leaves_is_quantized_later_without_them(net: SmallNet) -> None:
    model = compiled(net, ["head"]).initialize_algorithms(SAMPLES)
    rows = {row.fqn: row for row in model.report.layers}
    assert not rows["head"].quantized
    assert rows["stem.0"].quantized


def test_a_target_that_calls_back_into_python_takes_leaves_in_the_full_graph(net: SmallNet) -> None:
    model = compiled(net, ["head"], fullgraph=True, deployment_settings=pb.EagerDeployment())
    assert model.report.leaves == ("head",)
    torch.testing.assert_close(model(images(5)), net(images(5)))


def test_another_target_says_what_to_give_before_anything_is_captured(net: SmallNet) -> None:
    stages: list[str] = []
    with pytest.raises(TargetError, match=r"head \(Linear\): chosen as a leaf.*fullgraph=False"):
        compiled(net, ["head"], fullgraph=True, progress=lambda step: stages.append(step.stage))
    assert not stages


@pytest.mark.parametrize("wrong", [["heads"], [nn.LSTM], [nn.Linear(2, 2)], 3, b"head"])
def test_what_is_no_module_of_the_model_is_an_error(net: SmallNet, wrong: Any) -> None:
    with pytest.raises(SettingsError, match="leaf_modules"):
        compiled(net, wrong)


def test_a_dry_run_names_the_leaves(net: SmallNet) -> None:
    plan = compiled(net, ["head"], is_dry_run=True)
    assert plan.leaves == ("head",)
    assert any("chosen as a leaf" in text for text in plan.unsupported)


def test_the_whole_model_as_a_leaf_runs_in_python(net: SmallNet) -> None:
    model = compiled(net, [net])
    assert model.report.leaves == ("",)
    torch.testing.assert_close(model(images(5)), net(images(5)))


def test_forward_fn_and_leaves_go_together(net: SmallNet) -> None:
    model = compiled(net, [net.head], forward_fn=lambda model, args, kwargs: model(*args) * 2)
    assert model.report.leaves == ("head",)
    torch.testing.assert_close(model(images(5)), net(images(5)) * 2, rtol=1e-4, atol=1e-5)
