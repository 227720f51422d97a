"""What a click on the workbench costs in the kernel: milliseconds and bytes to the page, with a long history."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import prepbench as pb
from prepbench.bench.history import new_run
from prepbench.quantize.report import LayerReport
from prepbench.widgets.bench import BenchControls

RUNS_IN_HISTORY = 200
MOST_MS, MOST_BYTES = 100, 10_000  # for a thousand layers
REPEATS = 5


class Block(nn.Module):
    """Ten linear layers."""

    def __init__(self) -> None:
        super().__init__()
        for name in "qkvoabcdef":
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x


def bench_of(blocks: int) -> pb.Bench:
    """A bench of ten times as many layers, with a long history."""
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    bench = pb.Bench(nn.Sequential(*(Block() for _ in range(blocks))).eval(), calibration_inputs=samples)
    report = tuple(LayerReport(fqn, "Linear", 20, 8, 8, sqnr=40.0) for fqn in bench.choices.layer_rules.layers)
    known: dict[str, Any] = {"report": report, "score": 0.9, "metric": "accuracy", "p50_ms": 1.0}
    run = new_run(bench.state, "int8", 0.0, **known)
    for number in range(RUNS_IN_HISTORY):
        bench.run_history.add(replace(run, id=f"run{number}", name=f"int8 ({number})", p50_ms=1 + number / 100))
    bench.refresh()
    return bench


CLICKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one layer in float", {"action": "set_precision", "pattern": ["3.q"], "precision": "float32"}),
    ("4 bits for a tenth", {"action": "set_precision", "pattern": ["*.q"], "precision": "int4 weights"}),
    ("a block size", {"action": "set_layers", "pattern": ["*.q"], "field": "block", "value": "32"}),
    ("select a layer", {"action": "select", "fqn": "2.k"}),
    ("undo", {"action": "undo"}),
    ("redo", {"action": "redo"}),
    ("a dim dynamic", {"action": "set_axis", "path": ["input"], "dim": 1, "dynamic": True}),
)


def measured(controls: BenchControls) -> dict[str, tuple[float, int]]:
    """Milliseconds and bytes of each click."""
    sent: list[int] = []

    def count(keys: Any = None) -> None:
        names = [keys] if isinstance(keys, str) else list(keys)
        sent.append(sum(len(json.dumps(getattr(controls, name))) for name in names))

    controls.send_state = count
    found = {}
    for name, message in CLICKS:
        sent.clear()
        start = time.perf_counter()
        controls._handle_custom_msg(message, [])
        found[name] = (time.perf_counter() - start) * 1000, sum(sent)
        assert controls.message["kind"] != "error", controls.message["text"]
    return found


def main() -> None:
    """Print a row for each click and model."""
    too_much = []
    for blocks in (100, 1000):
        rounds = []
        for _ in range(REPEATS if blocks == 100 else 2):
            controls = BenchControls(bench_of(blocks))
            rounds.append(measured(controls))
            controls.close()
        print(f"{blocks * 10} layers, {RUNS_IN_HISTORY} runs in the history")
        for name, _ in CLICKS:
            milliseconds = statistics.median(found[name][0] for found in rounds)
            size = rounds[0][name][1]
            print(f"  {name:<20} {milliseconds:7.1f} ms {size / 1000:7.1f} kB")
            if blocks == 100 and (milliseconds > MOST_MS or size > MOST_BYTES):
                too_much.append(name)
    print(f"above {MOST_MS} ms or {MOST_BYTES // 1000} kB for 1,000 layers: {', '.join(too_much) or 'none'}")


if __name__ == "__main__":
    main()
