"""Quantized programs that are checked without their large matrices in float."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile import check_lowered


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.hidden = nn.Linear(16, 48)
        self.tags = nn.Linear(48, 24, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tags(self.hidden(self.table(ids)).relu())


SAMPLES = [torch.arange(12).reshape(3, 4), torch.arange(10).reshape(2, 5) + 20]


@pytest.mark.parametrize("block", [0, 16])
def test_the_light_module_gives_the_results_and_makes_floats_of_parts_only(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    programs, seen = [], []
    take, part = check_lowered.light_module, check_lowered._part
    monkeypatch.setattr(check_lowered, "light_module", lambda program: programs.append(program) or take(program))
    monkeypatch.setattr(check_lowered, "_VALUES", 200)
    torch.manual_seed(0)
    pb.compile_model(
        Tagger(),
        calibration_inputs=SAMPLES,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(
            weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=block
        ),
    )
    monkeypatch.setattr(check_lowered, "_part", lambda *given: seen.append(part(*given)) or seen[-1])
    program, *again = programs  # once more for sizes that no sample has
    assert all(other is program for other in again)
    light = check_lowered.light_module(program)
    for sample in SAMPLES:
        torch.testing.assert_close(light(sample), program.module(check_guards=False)(sample))
    assert max(value.numel() for value in seen) <= 200
    assert sum("dequantize" in str(node.target) for node in light.graph.nodes) == 0
