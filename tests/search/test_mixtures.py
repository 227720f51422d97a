"""A mixture becomes arguments of ``compile_model`` that say exactly it, and code that says the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.search.mixtures import FLOAT, code_of, compile_arguments

CHOICES = {
    "int8": pb.QuantizationSettings(),
    "int8 by error": pb.QuantizationSettings(observer="mse"),
    "int4 weights": pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    ),
}


class Nested(nn.Module):
    """A layer inside of one that is a layer itself, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.first, self.head = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.first(self.table(ids))
        return self.head(self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(
    "mixture",
    [
        {"attention": FLOAT, "attention.out_proj": "int8", "first": "int8", "head": "int8"},
        {"attention": "int8", "attention.out_proj": FLOAT, "first": "int8", "head": FLOAT},
        {"attention": "int8", "attention.out_proj": "int8 by error", "first": FLOAT, "head": "int4 weights"},
        {"table": "int4 weights", "attention": "int8", "attention.out_proj": "int8", "first": "int8", "head": "int8"},
        dict.fromkeys(("table", "attention", "attention.out_proj", "first", "head"), "int4 weights"),
    ],
)
def test_every_layer_gets_what_the_mixture_says(mixture: dict[str, str]) -> None:
    model = Nested()
    arguments = compile_arguments(model, mixture, CHOICES, pb.OnnxRuntimeDeployment(), pb.CompileOptions())
    rows = pb.explain_settings(model, arguments["quantization_settings"], arguments["layer_quantization_settings"])
    assert {row.fqn: row.settings for row in rows} == {
        row.fqn: CHOICES.get(mixture.get(row.fqn, FLOAT)) for row in rows
    }
    assert {row.fqn for row in rows} >= set(mixture)
    assert _pasted(code_of(arguments)) == arguments


def test_all_in_float_quantizes_nothing() -> None:
    arguments = compile_arguments(
        Nested(), {"head": FLOAT}, CHOICES, pb.OpenVinoDeployment(inference_threads=2), pb.CompileOptions(percentile=99)
    )
    assert arguments == {
        "deployment_settings": pb.OpenVinoDeployment(inference_threads=2),
        "compile_options": pb.CompileOptions(percentile=99, keep_ruined_layers_in_float=False),
    }
    assert _pasted(code_of(arguments)) == arguments


def _pasted(code: str) -> dict[str, Any]:
    """The arguments that the code gives to ``compile_model``."""
    given: dict[str, Any] = {}

    def compile_model(model: Any, *, calibration_inputs: Any, **arguments: Any) -> None:
        given.update(arguments)

    names = {name: getattr(pb, name) for name in pb.__all__ if name != "compile_model"}
    fake = type("pb", (), {**names, "compile_model": staticmethod(compile_model)})
    program = code.replace("import prepbench as pb\n", "")
    exec(program, {"pb": fake, "model": None, "calibration_inputs": []})
    if given.get("layer_quantization_settings") is None and "quantization_settings" in given:
        given["layer_quantization_settings"] = {}
    return given
