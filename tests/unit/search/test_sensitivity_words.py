"""What a sensitivity says of itself."""

from __future__ import annotations

from typing import Any

import pytest

import prepbench as pb
from prepbench.search.sensitivity import Sensitivity

INT8, HALF = pb.QuantizationSettings(), pb.PruningSettings(amount=0.5)


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ({"int8": INT8}, "quantized"),
        ({"half": HALF}, "pruned"),
        ({"int8": INT8, "half": HALF}, "quantized or pruned"),
        ({"int8 half": (INT8, HALF)}, "quantized or pruned"),
    ],
)
def test_the_caption_names_what_becomes_of_a_layer(candidates: dict[str, Any], words: str) -> None:
    caption = Sensitivity((), candidates, "ONNX Runtime", "dB").caption
    assert caption == f"ONNX Runtime: SQNR of the model's output with one layer {words}; 0 of 0 measured."
