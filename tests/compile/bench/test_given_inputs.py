"""A bench opens on loaders, dicts and arrays, and its head says how they were read and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import prepbench as pb


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def rows(count: int = 10) -> list[tuple[torch.Tensor, int]]:
    return [(torch.randn(4), index % 3) for index in range(count)]


def texts(bench: pb.Bench, kind: str = "") -> list[str]:
    return [note.text for note in bench.summary().notes if note.kind == kind]


def axes_step(bench: pb.Bench) -> Any:
    return next(step for step in bench.summary().steps if step.name == "axes")


def test_one_loader_for_everything() -> None:
    loader = DataLoader(rows(), batch_size=4)
    bench = pb.Bench(net(), tracing_inputs=loader, calibration_inputs=loader, data=loader, metric=pb.metrics.accuracy)
    assert len(texts(bench)) == 2, "of tracing and calibration; pairs are what data is documented to be"
    assert all("the last of the 2 parts" in text for text in texts(bench))
    assert not texts(bench, "bad")
    bench.compile()
    assert bench.comparison is not None
    assert bench.comparison.samples == 10


def test_dicts_with_labels_go_everywhere() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = net()

        def forward(self, pixels: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            out = self.layer(pixels)
            return out if labels is None else (nn.functional.cross_entropy(out, labels), out)

    batches = [{"pixels": torch.randn(n, 4), "labels": torch.zeros(n, dtype=torch.long)} for n in (2, 3)]
    bench = pb.Bench(Named(), calibration_inputs=batches, data=batches, metric=pb.metrics.accuracy)
    assert [set(sample.kwargs) for sample in bench.tracing_inputs] == [{"pixels"}, {"pixels"}]
    assert "data: 'labels' is the target." in texts(bench)
    bench.compile()
    assert bench.comparison is not None
    assert bench.comparison.samples == 5


def test_data_of_another_batch_is_said_in_the_head_and_mended_by_its_button() -> None:
    bench = pb.Bench(
        net(),
        tracing_inputs=[torch.randn(2, 4)],
        data=DataLoader(rows(16), batch_size=8),
        metric=pb.metrics.accuracy,
    )
    [note] = [note for note in bench.summary().notes if note.kind == "bad"]
    assert note.text == (
        "input.shape[0] is 8 in data[0], and the axes fix it at 2: the compiled model would refuse this."
    )
    assert (axes_step(bench).status, axes_step(bench).kind) == ("data does not fit", "bad")
    assert note.label == "Make the batch dynamic"
    bench.set_axis(note.paths, note.dim, dynamic=True, linked=True)
    assert not bench.summary().notes
    assert axes_step(bench).kind == "good"


def test_a_single_sample_asks_whether_the_batch_is_dynamic() -> None:
    bench = pb.Bench(net(), calibration_inputs=torch.randn(2, 4))
    [note] = bench.summary().notes
    assert (note.kind, note.label) == ("hint", "Make the batch dynamic")
    assert "One sample, so the compiled model takes batches of 2 alone." in note.text
    bench.undo()
    bench.set_axis(note.paths, note.dim, dynamic=True)
    assert not bench.summary().notes
    several = pb.Bench(net(), calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4)])
    assert not several.summary().notes


def test_metric_that_does_not_fit_the_data_is_said_at_once() -> None:
    def metric(output: Any, target: Any) -> float:
        return float(output["logits"].mean())

    loader = DataLoader(rows(4), batch_size=2)
    bench = pb.Bench(net(), tracing_inputs=loader, data=loader, metric=metric)
    [text] = texts(bench, "bad")
    assert text.startswith("metric metric fails on data[0]: ")
    assert text.endswith("It gets (output, target).")


def test_calibration_with_nan_or_of_another_structure_is_said_at_once() -> None:
    bad = torch.full((2, 4), float("nan"))
    bench = pb.Bench(net(), tracing_inputs=[torch.randn(2, 4)], calibration_inputs=[bad, torch.randn(3, 4)])
    assert any("calibration_inputs[0]: input holds 8 NaN" in text for text in texts(bench, "bad"))
    other = pb.Bench(net(), tracing_inputs=[torch.randn(2, 4)], calibration_inputs=[torch.randn(2, 2, 4)])
    assert any(
        text.startswith("calibration_inputs do not fit tracing_inputs: ") and "rank" in text
        for text in texts(other, "bad")
    )


def test_texts_with_a_tokenizer() -> None:
    def tokenizer(batch: list[str], return_tensors: str, padding: bool = False) -> dict[str, torch.Tensor]:
        longest = max(map(len, batch))
        return {"input": torch.tensor([[ord(c) % 5 for c in text.ljust(longest)] for text in batch])}

    model = nn.Embedding(5, 3)
    bench = pb.Bench(
        model,
        tracing_inputs=["a b", "c d e"],
        data=[(["ab", "c"], torch.zeros(2, 2, dtype=torch.long))],
        metric=lambda output, target: float(output.argmax(-1).eq(target).float().mean()),
        tokenizer=tokenizer,
    )
    assert bench.tracing_inputs[0].kwargs["input"].shape == (1, 3)
    assert "bench.tracing_inputs" in bench.code({"bench": bench, "model": model})
    with pytest.raises(pb.PrepbenchError, match="tokenizer must be a function"):
        pb.Bench(model, tracing_inputs=["a"], tokenizer=3)
