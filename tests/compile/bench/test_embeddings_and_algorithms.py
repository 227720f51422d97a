"""Embeddings among the layers of the bench, and the settings of weights: what a click writes runs elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.bench.layer_summaries import change_of
from prepbench.errors import SettingsError


class Language(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 64)
        self.up, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.up(self.table(ids))))


@pytest.fixture(scope="module")
def samples() -> list[torch.Tensor]:
    return [torch.arange(rows * 4).reshape(rows, 4) for rows in (2, 3)]


@pytest.fixture
def bench(samples: list[torch.Tensor]) -> pb.Bench:
    return pb.Bench(Language().eval(), tracing_inputs=samples, calibration_inputs=samples)


def planned(bench: pb.Bench) -> dict[str, str]:
    summary = bench.summary()
    return {layer.fqn: summary.decisions[at].label for layer, at in zip(summary.layers, summary.planned, strict=True)}


def click(bench: pb.Bench, pattern: str, field: str, value: str) -> None:
    bench.set_layers([pattern], *change_of(field, value))


def test_embeddings_are_listed_and_quantized_by_their_weights(bench: pb.Bench) -> None:
    assert planned(bench) == {"table": "float", "up": "int8", "head": "int8"}
    assert "2 int8" in bench.summary().sentence
    bench.set_precision("*", "int4 weights")
    assert planned(bench) == dict.fromkeys(("table", "up", "head"), "int4 weights")
    bench.set_precision("table", "int8 weights")
    assert planned(bench)["table"] == "int8 weights"
    bench.undo()
    bench.undo()
    click(bench, "table", "weights", "4")
    assert planned(bench) == {"table": "int4 weights", "up": "int8", "head": "int8"}
    assert len(bench.state.differences(bench.state)) == 0


def test_layers_are_counted_with_their_embedding(bench: pb.Bench) -> None:
    summary = bench.summary()
    [step] = [step for step in summary.steps if step.name == "precision"]
    assert step.status == f"{len(summary.layers) - 1} int8 · 1 float"
    assert step.status.replace(" · ", ", ") in summary.sentence
    assert f"{len(summary.layers) - 1} in int8, 1 in float32" in str(bench)


def test_an_embedding_goes_back_to_float(bench: pb.Bench) -> None:
    bench.set_precision("table", "float32")  # it is
    assert bench.state.rules == {}
    bench.set_precision("table", "int4 weights")
    bench.set_precision("table", "float32")
    assert planned(bench)["table"] == "float"
    bench.set_precision("*", "int4 weights")
    with pytest.raises(SettingsError, match=r"table cannot be left in float alone: the rule '\*'.*Remove"):
        bench.set_precision("table", "float32")


def test_a_setting_of_all_layers_leaves_embeddings_in_float(bench: pb.Bench) -> None:
    click(bench, "*", "observer", "mse")
    assert planned(bench) == {"table": "float", "up": "int8", "head": "int8"}
    assert bench.explained[0].settings is not None
    assert bench.explained[0].settings.observer == "mse"


def test_without_calibration_all_is_in_float(samples: list[torch.Tensor]) -> None:
    bench = pb.Bench(torch.nn.Sequential(torch.nn.Embedding(50, 8)), tracing_inputs=samples)
    assert planned(bench) == {"0": "float"}
    assert "quantization_settings" not in bench.code({})


def test_algorithm_and_block_for_all_layers_and_for_one(bench: pb.Bench) -> None:
    click(bench, "*", "block", "32")  # which takes activations in float
    click(bench, "*", "algorithm", "hqq")
    click(bench, "up", "algorithm", "awq")
    click(bench, "up", "block", "0")
    click(bench, "up", "weights", "4")
    assert planned(bench) == {
        "table": "int8 weights, blocks of 32, hqq",
        "up": "int4 weights, awq",
        "head": "int8 weights, blocks of 32, hqq",
    }
    summary = bench.summary()
    assert [summary.decisions[at].algorithm for at in summary.planned] == ["hqq", "awq", "hqq"]
    bench.set_target("PyTorch eager")
    cell: dict[str, Any] = {"model": bench.model, "samples": bench.inputs.arguments["calibration_inputs"]}
    exec(bench.code(cell), cell)
    found = {row.fqn: (row.weights_bits, row.block_size) for row in cell["compiled"].report.layers}
    assert found == {"table": (8, 32), "up": (4, 0), "head": (8, 32)}


def test_what_targets_lack_is_told(bench: pb.Bench) -> None:
    def refused() -> dict[str, dict[str, str]]:
        return {
            field.name: {choice: why for choice, why in zip(field.choices, field.refused, strict=True) if why}
            for field in bench.summary().settings
        }

    assert not any(refused().values())
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.ExecuTorchDeployment()])
    assert refused()["weights"] == {"4": "ExecuTorch lacks it"}
    assert refused()["activations"] == {"4": "ExecuTorch lacks it", "16": "ExecuTorch lacks it"}
    assert set(refused()["block"]) == {"16", "32", "64", "128", "256"}
    bench.set_targets([pb.OpenVinoDeployment(), pb.ExecuTorchDeployment()])
    assert refused()["activations"] == {"4": "ExecuTorch lacks it", "16": "OpenVINO, ExecuTorch lack it"}
    assert refused()["algorithm"] == {}
