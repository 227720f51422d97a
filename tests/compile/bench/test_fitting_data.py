"""Data that a compiled model would refuse is told before anything is compiled; one choice for the batch mends it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError


class Joined(nn.Module):
    """Two inputs of one batch, and one with a size that happens to be that of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, both: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * scale + both.sum(0)


def call(batch: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4), "scale": torch.ones(batch, 1), "both": torch.ones(3, 2)}


def bench(data: Any, metric: Any = None) -> pb.Bench:
    return pb.Bench(Joined(), tracing_inputs=[call(2)], data=data, metric=metric)


def test_another_batch_is_refused_before_the_compile() -> None:
    made = bench([call(2), call(5)])
    with pytest.raises(InputError, match=r"x\.shape\[0\] is 5 in data\[1\], and the axes fix it at 2\. Make it"):
        made.compile()
    assert not made.runs, "nothing was compiled"


def test_data_with_targets_is_looked_at_without_them() -> None:
    made = bench([(call(3), torch.zeros(3, dtype=torch.long))], pb.metrics.accuracy)
    with pytest.raises(InputError, match=r"x\.shape\[0\] is 3 in data\[0\]"):
        made.compile()


def test_the_remedy_makes_the_whole_batch_dynamic() -> None:
    made = bench([call(2), call(5)])
    made.set_axis("x", 0, dynamic=True, linked=True)
    assert {axis.path for axis in made.axes.axes if axis.dynamic} == {"x", "scale"}
    made.compile()
    assert made.comparison is not None
    assert made.comparison.samples == 7


def test_ones_are_not_taken_for_the_batch() -> None:
    made = pb.Bench(Joined(), tracing_inputs=[call(1)])
    made.set_axis("x", 0, dynamic=True, linked=True)
    assert {axis.path for axis in made.axes.axes if axis.dynamic} == {"x"}


def test_prompts_of_another_batch_are_refused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    ids = torch.ones(2, 6, dtype=torch.long)
    samples = [{"input_ids": ids, "use_cache": False}, {"input_ids": ids[:, :3], "use_cache": False}]
    made = pb.Bench(transformers.LlamaForCausalLM(config).eval(), tracing_inputs=samples, data=pb.Generation(ids[:1]))
    with pytest.raises(InputError, match=r"input_ids\.shape\[0\] is 1 in prompts\[0\], and the axes fix it at 2"):
        made.compile()
