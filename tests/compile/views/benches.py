"""Benches to show: one with what a bench has, and one whose every text is hostile."""

from __future__ import annotations

import math

from prepbench.document.bench import Fact, ShownBench, ShownFailure, Table
from prepbench.document.hierarchy import grouped
from prepbench.document.model import DiagramDocument
from prepbench.views.bench_chart import ChartRun, bench_chart
from tests.compile.views.documents import failing

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"
GRAPH = DiagramDocument((grouped(failing()),))
RUNS = (
    ChartRun("float32", "reference", "float", math.inf, 4.0, 4.5, size_bytes=400),
    ChartRun("int8 ONNX Runtime", "31.2 dB, 1.5 ms", "run", 31.2, 1.5, 1.9, (29.0, 33.0), 100),
    ChartRun("int8 OpenVINO", "30.1 dB, 2.5 ms", "run", 30.1, 2.5, 2.6, size_bytes=110),
    ChartRun("int8 elsewhere", "31.0 dB, 0.5 ms", "elsewhere", 31.0, 0.5, 0.6, size_bytes=100),
)


def shown(text: str = "", rows: int = 3) -> ShownBench:
    """A bench whose every text has ``text`` in it."""
    runs = tuple(ChartRun(f"{run.name}{text}", run.note + text, run.kind, *_numbers(run)) for run in RUNS)
    return ShownBench(
        title=f"Net{text}",
        sentence=f"1 failure · batch dynamic{text}",
        settings=(Fact(f"Target{text}", f"ONNX Runtime{text}"),),
        failures=(
            ShownFailure(
                f"gate{text}",
                f"Gate{text}",
                f"branch on a value{text}",
                f"net.py:7{text}",
                f"if x.sum() > 0:{text}",
                f"Use torch.where.{text}",
                "",
            ),
        ),
        assumptions=(f"The batch is at least 2.{text}",),
        tables=(
            Table(
                f"Layers{text}",
                (f"layer{text}", "SQNR"),
                tuple((f"layers.{i}{text}", str(i)) for i in range(rows)),
                (1,),
            ),
        ),
        chart=bench_chart(runs, f"SQNR{text}", "dB", higher_is_better=True),
        code=f"compiled = pb.compile_model(net)  # {text}",
        environment=(Fact("torch", f"2.13{text}"),),
    )


def _numbers(run: ChartRun) -> tuple[float, float, float, tuple[float, float] | None, int]:
    return run.score, run.p50_ms, run.p90_ms, run.spread, run.size_bytes
