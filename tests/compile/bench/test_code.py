"""The bench's code, pasted: it finds the names that the notebook has, or says what to put in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import PrepbenchError


@pytest.fixture
def samples() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4), torch.randn(3, 4)]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 2)).eval()


def _score(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output - target).abs().mean())


def test_pasted_code_runs_with_the_names_of_the_notebook(net: nn.Module, samples: list[torch.Tensor]) -> None:
    labelled = [(x, torch.zeros(len(x), 2)) for x in samples]
    bench = pb.Bench(net, tracing_inputs=samples, data=labelled, metric=_score)
    scope: dict[str, Any] = {"_": net, "In": [], "my_net": net, "batches": samples, "pairs": labelled, "score": _score}
    code = bench.code(scope)
    assert "pb.DynamicAxes.infer(batches, my_net)" in code
    assert "pairs, metric=score)" in code
    exec(code, scope)
    assert scope["compiled"](samples[0]).shape == (2, 2)
    assert len(scope["comparison"].rows) == 2


def test_what_has_no_name_is_reached_through_the_bench(net: nn.Module, samples: list[torch.Tensor]) -> None:
    bench = pb.Bench(net, tracing_inputs=(x for x in samples), metric=pb.metrics.accuracy, data=iter([(1, 2)]))
    scope: dict[str, Any] = {"b": bench, "generator": bench.inputs.arguments["tracing_inputs"]}
    code = bench.code(scope)
    assert "infer(b.tracing_inputs, b.model)" in code
    assert "b.data, metric=pb.metrics.accuracy)" in code
    exec(code.rpartition("comparison =")[0], scope)
    assert scope["compiled"](samples[1]).shape == (3, 2)


def test_the_metric_and_the_data_may_be_left_out(net: nn.Module, samples: list[torch.Tensor]) -> None:
    scope: dict[str, Any] = {"model": net, "batches": samples}
    exec(pb.Bench(net, tracing_inputs=samples).code(scope), scope)
    assert scope["comparison"].unit == "dB"


def test_without_any_name_the_code_says_what_to_put_in(net: nn.Module, samples: list[torch.Tensor]) -> None:
    code = pb.Bench(net, tracing_inputs=samples).code({})
    assert "model = ...  # put here the model" in code
    assert "tracing_inputs = [...]  # put here samples to trace with: input of shape (2, 4)" in code
    with pytest.raises(PrepbenchError):
        exec(code, {})
    filled = code.replace("model = ...", "model = given_model").replace("[...]", "given_samples")
    scope: dict[str, Any] = {"given_model": net, "given_samples": samples}
    exec(filled.rpartition("comparison =")[0], scope)
    assert scope["compiled"](samples[0]).shape == (2, 2)


def test_the_float_model_is_called_by_its_dtype() -> None:
    samples = [torch.randn(2, 4).bfloat16(), torch.randn(3, 4).bfloat16()]
    net = nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval().bfloat16()
    bench = pb.Bench(net, calibration_inputs=samples)
    bench.set_target("PyTorch eager")
    bench.set_precision("0", "float32")
    assert 'pb.compare({"bfloat16": ' in bench.code()
    bench.compile()
    assert bench.comparison is not None
    assert [row.name for row in bench.comparison.rows] == ["bfloat16", "bfloat16 PyTorch eager"]
    assert list(bench.results) == ["bfloat16 PyTorch eager"]
    assert "float32" not in bench.outcome()


def test_settings_of_layers_are_indented_with_the_call_they_belong_to(
    net: nn.Module, samples: list[torch.Tensor]
) -> None:
    bench = pb.Bench(net, tracing_inputs=samples, calibration_inputs=samples)
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
    bench.set_layers(["0"], "weights_num_bits", 4)
    scope: dict[str, Any] = {"model": net, "batches": samples}
    code = bench.code(scope)
    lines = code.splitlines()
    opening = next(line for line in lines if "layer_quantization_settings={" in line)
    rule, closing = lines[lines.index(opening) + 1 : lines.index(opening) + 3]
    indents = [len(line) - len(line.lstrip()) for line in (opening, rule, closing)]
    assert indents == [8, 12, 8]
    exec(code.rpartition("comparison =")[0], scope)
    assert len(scope["compiled"]) == 2
