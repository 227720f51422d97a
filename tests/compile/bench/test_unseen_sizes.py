"""Axes that are made dynamic although all samples have one size: the bench tries another size before it says yes."""

import torch
from torch import nn

from prepbench.bench.bench import Bench


class Flat(nn.Module):
    """A classifier whose rows are put together in one way or another."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.hidden, self.out, self.fixed = nn.Linear(6, 12), nn.Linear(12, 3), fixed

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        count = 4 if self.fixed else rows.shape[0]
        return self.out(self.hidden(rows).relu().reshape(count, 12))


class Pooled(nn.Module):
    """A network that takes lengths in multiples of 4 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        return self.out(wave.reshape(wave.shape[0], -1, 4)).mean(1)


def _bench(model: nn.Module, shape: tuple[int, ...]) -> Bench:
    return Bench(model, tracing_inputs=[torch.randn(shape)], calibration_inputs=[torch.randn(shape)])


def _shapes(bench: Bench) -> set[str]:
    return {shape for graph in bench.fixing.document.graphs for node in graph.nodes for shape in node.shapes}


def test_diagram_has_the_new_size() -> None:
    bench = _bench(Flat(fixed=False), (4, 6))
    assert "4×6" in _shapes(bench)
    bench.set_axis("rows", 0, dynamic=True)
    assert not bench.summary().fixes_known
    bench.find_fixes()
    assert bench.summary().fixes_known
    assert "B×6" in _shapes(bench)
    bench.undo()
    bench.find_fixes()
    assert "4×6" in _shapes(bench)


def test_model_that_takes_one_size() -> None:
    bench = _bench(Flat(fixed=True), (4, 6))
    bench.set_axis("rows", 0, dynamic=True)
    bench.find_fixes()
    summary = bench.summary()
    (note,) = summary.notes
    assert note.text.startswith("The model itself takes no other size of the batch: with rows.shape[0] = 8 it raises")
    assert "rows).relu().reshape(count, 12))" in note.text
    assert (note.label, note.paths, note.dim, note.dynamic) == ("Fix the batch at 4", ("rows",), 0, False)
    assert next(step.status for step in summary.steps if step.name == "axes") == "1 wrong"
    bench.set_axis("rows", 0, dynamic=False)
    assert not bench.summary().notes  # a batch that cannot be dynamic is offered no more


def test_sizes_in_multiples() -> None:
    bench = _bench(Pooled(), (2, 8))
    bench.set_axis("wave", 1, dynamic=True)
    bench.find_fixes()
    assert not any(note.kind == "bad" for note in bench.summary().notes)
    assert not any(shape.endswith("×8") for shape in _shapes(bench))


def test_capture_tries_again() -> None:
    model = Flat(fixed=True)
    bench = _bench(model, (4, 6))
    bench.set_axis("rows", 0, dynamic=True)
    bench.find_fixes()
    model.fixed = False
    bench.capture()
    assert not any(note.kind == "bad" for note in bench.summary().notes)
    assert "B×6" in _shapes(bench)
