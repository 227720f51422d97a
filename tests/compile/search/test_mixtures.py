"""A mixture becomes arguments of ``compile_model`` that say exactly it, and code that says the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.search.candidates import LayerChoice
from prepbench.search.mixtures import FLOAT, code_of, compile_arguments, uniform_mixture
from prepbench.settings import prunable_layers

BITS = {
    "int8": pb.QuantizationSettings(),
    "int8 by error": pb.QuantizationSettings(observer="mse"),
    "int4 weights": pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    ),
}
HALF, MASK = (
    pb.PruningSettings(mask_type="channels", amount=0.5),
    pb.PruningSettings(mask_type="2:4", score="activations"),
)
CHOICES = {
    **{name: LayerChoice(settings) for name, settings in BITS.items()},
    "half": LayerChoice(pruning=HALF),
    "int8 half": LayerChoice(BITS["int8"], HALF),
    "int8 mask": LayerChoice(BITS["int8"], MASK),
    "careful": LayerChoice(
        pruning=pb.PruningSettings(mask_type="channels", amount=0.25, pruning_sensitivity_threshold=0.01)
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
        {"attention": "int8 half", "attention.out_proj": "half", "first": "int8 mask", "head": FLOAT},
        {"attention": FLOAT, "attention.out_proj": FLOAT, "first": "half", "head": FLOAT},
        {"attention": "careful", "attention.out_proj": "careful", "first": "int8 half", "head": "int8 mask"},
    ],
)
def test_every_layer_gets_what_the_mixture_says(mixture: dict[str, str]) -> None:
    model = Nested()
    arguments = compile_arguments(model, mixture, CHOICES, pb.OnnxRuntimeDeployment(), pb.CompileOptions())
    chosen = {fqn: CHOICES[name] for fqn, name in mixture.items() if name != FLOAT}
    if any(one.quantization for one in chosen.values()):
        rows = pb.explain_settings(model, arguments["quantization_settings"], arguments["layer_quantization_settings"])
        assert {row.fqn: row.settings for row in rows} == {
            row.fqn: chosen.get(row.fqn, LayerChoice()).quantization for row in rows
        }
        assert {row.fqn for row in rows} >= set(mixture)
    else:
        assert "quantization_settings" not in arguments
    if any(one.pruning for one in chosen.values()):
        pruned = prunable_layers(model, arguments["pruning_settings"], arguments["layer_pruning_settings"])
        assert {row.fqn: row.settings for row in pruned} == {
            row.fqn: chosen.get(row.fqn, LayerChoice()).pruning for row in pruned
        }
    else:
        assert "pruning_settings" not in arguments
    assert _pasted(code_of(arguments)) == arguments


def test_layers_that_cannot_take_a_choice_are_pruned_alike_or_quantized_alike() -> None:
    refused = {("b", "int8 half"), ("c", "int8 half"), ("c", "half"), ("d", "int8"), ("d", "int8 half"), ("d", "half")}
    assert uniform_mixture("abcd", CHOICES, refused, "int8 half") == ("int8 half", "half", "int8", FLOAT)
    assert uniform_mixture("abcd", CHOICES, refused, "half") == ("half", "half", FLOAT, FLOAT)
    assert uniform_mixture("abcd", CHOICES, refused, FLOAT) == (FLOAT,) * 4


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
    for name in ("quantization_settings", "pruning_settings"):
        if name in given:
            given.setdefault(f"layer_{name}", {})
    return given
