"""Too little memory is told before a weight is touched, with what would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile import dry_run

FOUR_BITS = pb.QuantizationSettings(
    weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
)
INNER, OUTER = 128, 512
WEIGHTS = 2 * INNER * OUTER


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(INNER, OUTER, bias=False), nn.Linear(OUTER, INNER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


def compiled(**keywords: Any) -> Any:
    samples = [torch.randn(k, INNER, dtype=torch.bfloat16) for k in (2, 3)]
    arguments: dict[str, Any] = {
        "tracing_inputs": samples,
        "calibration_inputs": samples,
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": FOUR_BITS,
        **keywords,
    }
    return pb.compile_model(Perceptron().eval().bfloat16(), **arguments)


def needed(monkeypatch: pytest.MonkeyPatch, **keywords: Any) -> int:
    """What is estimated, as the error says that nothing is available."""
    found: list[int] = []
    real = dry_run.memory_needed
    monkeypatch.setattr(dry_run, "memory_needed", lambda task: found.append(real(task)) or found[-1])
    monkeypatch.setattr(dry_run, "available_memory", lambda: 0)
    with pytest.raises(pb.errors.SettingsError, match="takes at least"):
        compiled(**keywords)
    monkeypatch.undo()
    return found[0]


def test_weights_that_become_float32_as_a_whole_count(monkeypatch: pytest.MonkeyPatch) -> None:
    step_by_step = needed(monkeypatch)
    whole = needed(monkeypatch, compile_options=pb.CompileOptions(smooth_quant=True))
    assert whole == step_by_step + 4 * WEIGHTS
    nearest = replace(FOUR_BITS, weights_algorithm="nearest")
    assert needed(monkeypatch, quantization_settings=nearest) < step_by_step
    assert needed(monkeypatch, quantization_settings=None) == 4 * WEIGHTS


def test_too_little_memory_is_an_error_that_says_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    free = needed(monkeypatch) + 1
    monkeypatch.setattr(dry_run, "available_memory", lambda: free)
    assert compiled().report.layers[0].quantized
    with pytest.raises(pb.errors.SettingsError, match=r"without smooth_quant and .* it takes .* % of the weights"):
        compiled(compile_options=pb.CompileOptions(smooth_quant=True))


def test_a_plan_says_how_much_memory_compiling_takes() -> None:
    assert "compiling takes at least" in repr(compiled(is_dry_run=True))


def test_the_limit_of_a_container_counts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_GROUP", tmp_path)
    free = dry_run.available_memory()
    (tmp_path / "memory.current").write_text("1400\n")
    (tmp_path / "memory.stat").write_text("anon 850\nfile 550\nshmem 50\n")  # of files 500 can be given up
    (tmp_path / "memory.max").write_text("1000\n")
    assert dry_run.available_memory() == 100
    (tmp_path / "memory.max").write_text("max\n")
    assert dry_run.available_memory() == pytest.approx(free, rel=0.5)
