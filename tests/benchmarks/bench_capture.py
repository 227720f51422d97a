"""Time to capture a model, and whether its root graph came out, for prepbench and its peers; one process per
measurement.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.benchmarks.models import MODELS, build

REPEATS = 3


def _recursive_trace(model: nn.Module, samples: list[Any]) -> bool:
    import prepbench as pb

    return not pb.recursive_trace(model, inputs=samples).is_failed(model)


def _capture(model: nn.Module, samples: list[Any]) -> bool:
    import prepbench as pb

    return not pb.capture(model, samples, fullgraph=False).leaves


def _fx(model: nn.Module, samples: list[Any]) -> bool:
    torch.fx.symbolic_trace(model)
    return True


def _export(model: nn.Module, samples: list[Any]) -> bool:
    """Export with the batch dynamic, as a user writes it by hand."""
    if isinstance(samples[0], dict):
        shapes: Any = {name: {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO} for name in samples[0]}
        torch.export.export(model, (), kwargs=samples[0], dynamic_shapes=shapes, strict=False)
    else:
        torch.export.export(model, (samples[0],), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    return True


def _modelopt(model: nn.Module, samples: list[Any]) -> bool:
    from modelopt.torch.trace import recursive_trace

    return not recursive_trace(model).is_failed(model)


TOOLS: dict[str, Callable[[nn.Module, list[Any]], bool]] = {
    "prepbench trace": _recursive_trace,
    "prepbench capture": _capture,
    "fx symbolic_trace": _fx,
    "torch.export": _export,
    "ModelOpt trace": _modelopt,
}


def measure(tool: str, name: str) -> dict[str, Any]:
    """Median seconds of :data:`REPEATS` runs after one warm-up, and whether the whole model is in the root graph."""
    model, samples = build(name)
    seconds = []
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        for repeat in range(REPEATS + 1):
            torch.manual_seed(repeat)
            start = time.perf_counter()
            try:
                whole = TOOLS[tool](model, samples)
            except Exception as error:
                return {"error": type(error).__name__}
            seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds[1:])[REPEATS // 2], "whole": whole}


def main() -> None:
    """Print one row per model; a ratio is prepbench's time over the peer's."""
    peers = [tool for tool in TOOLS if tool != "ModelOpt trace" or importlib.util.find_spec("modelopt")]
    print("seconds per capture (median, one process each); 'no root': the root graph is lost")
    print(f"{'model':<11}" + "".join(f"{tool:>20}" for tool in peers) + f"{'trace/ModelOpt':>17}{'capture/export':>17}")
    for name in MODELS:
        results = {tool: _in_process(tool, name) for tool in peers}
        cells = "".join(f"{_text(results[tool]):>20}" for tool in peers)
        ratios = [
            _ratio(results, "prepbench trace", "ModelOpt trace"),
            _ratio(results, "prepbench capture", "torch.export"),
        ]
        print(f"{name:<11}{cells}" + "".join(f"{ratio:>17}" for ratio in ratios), flush=True)


def _in_process(tool: str, name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_capture", tool, name]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": "crashed"}


def _text(result: dict[str, Any]) -> str:
    if "error" in result:
        return str(result["error"])
    return f"{result['seconds']:.2f}" + ("" if result["whole"] else " (no root)")


def _ratio(results: dict[str, dict[str, Any]], ours: str, peer: str) -> str:
    if "seconds" not in results[ours] or "seconds" not in results.get(peer, {}):
        return "-"
    return f"{results[ours]['seconds'] / results[peer]['seconds']:.2f}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
