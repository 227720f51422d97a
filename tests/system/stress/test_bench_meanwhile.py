"""A bench compiles in its thread, and the cells that are run meanwhile do what they do alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import prepbench as pb
from tests.system.stress.models import Small, capture, compile_float, prepare, replaceable, same, samples, trace


def _cells(live: nn.Module) -> list[Callable[[], Any]]:
    """Twenty cells of a notebook."""
    x, other = samples()[1], Small(3).eval()
    numbers = torch.Generator()

    def drawn() -> Any:
        return torch.rand(4, generator=numbers.manual_seed(7))

    def compiled_by_torch() -> Any:
        return torch.compile(other, backend="eager")(x)

    def trained() -> Any:
        layer = nn.Linear(4, 1)
        with torch.no_grad():
            layer.weight.fill_(0.5), layer.bias.zero_()
        layer(x).sum().backward()
        return layer.weight.grad

    def plotted() -> Any:
        import plotly.graph_objects as go

        return len(go.Figure(go.Scatter(y=[1, 2, 3])).to_json())

    calls: list[Callable[[], Any]] = [
        lambda: live(x),
        lambda: trace(other),
        lambda: capture(other),
        lambda: [module.training for module in live.modules()],
        drawn,
        lambda: (max(3, 5), min(2, 1), len("abc"), math.sqrt(2), abs(-1), sum(range(10))),
        compiled_by_torch,
        lambda: prepare(other),
        plotted,
        lambda: compile_float(other),
        lambda: live(x),
        trained,
        lambda: str(torch.fx.symbolic_trace(nn.Linear(2, 2)).graph),
        lambda: capture(live),
        lambda: [torch.compiler.is_exporting(), torch.compiler.is_compiling()],
        lambda: sorted(live.state_dict()),
        lambda: len(pb.recursive_trace(other, inputs=samples())._repr_mimebundle_()["text/plain"]),
        lambda: repr(pb.explain_settings(live, pb.QuantizationSettings())),
        lambda: trace(live),
        lambda: live(x),
    ]
    return calls


def test_twenty_cells_run_while_a_bench_compiles() -> None:
    live = Small(1).eval()
    cells = _cells(live)
    with torch.no_grad():
        cells[11] = torch.enable_grad()(cells[11])
        expected = [cell() for cell in cells]
        before = replaceable()
        bench = pb.Bench(live, calibration_inputs=samples())
        job = bench.start()
        at_work, wrong = 0, []
        for number, cell in enumerate(cells):
            at_work += not job.done
            if not same(cell(), expected[number]):
                wrong.append(number)
        compiled = job.result(timeout=500)
    assert not wrong
    assert at_work > 10, "the bench was done before the cells were"
    assert compiled(samples()[1]).shape == live(samples()[1]).shape
    assert bench.comparison is not None
    assert before == replaceable()
