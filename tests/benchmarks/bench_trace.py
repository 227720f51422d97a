"""What tracing at module level costs, against ``torch.fx`` and ModelOpt: plain, with failing modules, with size.

Every row is one process per tool. The peers cannot trace with inputs, so that column has no ratio.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.models import build

REPEATS = 5
TRACEABLE = ("resnet", "mobilenet", "mlp")
BLOCKS = (125, 250, 500, 1000)
FAILING = (0, 1, 4, 16, 64)


class Block(nn.Module):
    """Two linear layers around an activation, and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.relu(self.first(x)))


class Failing(Block):
    """A block that decides on its data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y) if y.sum() > 0 else y


def _samples() -> list[torch.Tensor]:
    return [torch.randn(2, 8), torch.randn(3, 8)]


def _model(case: str) -> tuple[nn.Module, list[Any]]:
    kind, _, number = case.partition(":")
    if kind == "blocks":
        return nn.Sequential(*[Block() for _ in range(int(number))]), _samples()
    if kind == "failing":
        return nn.Sequential(*[Failing() if i < int(number) else Block() for i in range(64)]), _samples()
    return build(kind)


def _ours(model: nn.Module, samples: list[Any]) -> Any:
    import prepbench as pb

    return pb.recursive_trace(model)


def _ours_with_inputs(model: nn.Module, samples: list[Any]) -> Any:
    import prepbench as pb

    return pb.recursive_trace(model, inputs=samples)


def _fx(model: nn.Module, samples: list[Any]) -> Any:
    return torch.fx.symbolic_trace(model)


def _modelopt(model: nn.Module, samples: list[Any]) -> Any:
    from modelopt.torch.trace import recursive_trace

    return recursive_trace(model)


TOOLS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "prepbench": _ours,
    "with inputs": _ours_with_inputs,
    "torch.fx": _fx,
    "ModelOpt": _modelopt,
}


def measure(tool: str, case: str) -> dict[str, Any]:
    """Median seconds of :data:`REPEATS` runs after one warm-up."""
    torch.manual_seed(0)
    model, samples = _model(case)
    repeats = 1 if case.startswith("blocks") else REPEATS
    _run(tool, *(_model("failing:0") if repeats == 1 else (model, samples)))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        try:
            _run(tool, model, samples)
        except Exception as error:
            return {"error": type(error).__name__}
        seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds)[repeats // 2]}


def _run(tool: str, model: nn.Module, samples: list[Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        TOOLS[tool](model, samples)


def measure_large() -> dict[str, Any]:
    """Seconds and memory to trace and document an 80-layer, 70-billion-parameter language model without weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    import prepbench as pb

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
        samples = [{"input_ids": torch.ones(b, n, dtype=torch.long)} for b, n in ((2, 16), (3, 32))]
    start = time.perf_counter()
    collection = pb.recursive_trace(model, inputs=samples)
    document = collection.document()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "failures": len(collection.failures),
        "nodes": sum(len(graph.nodes) for graph in document.graphs),
        "seconds": time.perf_counter() - start,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    """Print the four tables."""
    tools = [tool for tool in TOOLS if tool != "ModelOpt" or importlib.util.find_spec("modelopt")]
    print("models without failures: milliseconds, and the ratio to torch.fx.symbolic_trace (target: at most 1.5)")
    _table(TRACEABLE, tools, ratio=True)
    print("64 blocks of which k decide on data: milliseconds (target: flat in k)")
    _table([f"failing:{k}" for k in FAILING], [tool for tool in tools if tool != "torch.fx"])
    print("a chain of n blocks: milliseconds (target: linear in n)")
    _table([f"blocks:{n}" for n in BLOCKS], [tool for tool in tools if tool != "ModelOpt"])
    large = _in_process("large", "")
    print("80-layer language model on the meta device (target: at most 60 s and 4 GiB)")
    print(
        f"{large['parameters'] / 1e9:.1f} billion parameters, {large['failures']} failures, {large['nodes']} nodes: "
        f"{large['seconds']:.1f} s, {large['gib']:.2f} GiB"
    )


def _table(cases: Any, tools: list[str], ratio: bool = False) -> None:
    print(f"{'':<14}" + "".join(f"{tool:>13}" for tool in tools) + ("        ratio" if ratio else ""))
    for case in cases:
        results = {tool: _in_process(tool, case) for tool in tools}
        cells = "".join(f"{_text(results[tool]):>13}" for tool in tools)
        if ratio:
            cells += f"{results['prepbench']['seconds'] / results['torch.fx']['seconds']:>13.2f}"
        print(f"{case:<14}{cells}", flush=True)


def _text(result: dict[str, Any]) -> str:
    return f"{1000 * result['seconds']:.1f}" if "seconds" in result else str(result["error"])


def _in_process(tool: str, case: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_trace", tool, case]
    done = subprocess.run(command, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else {"error": "crashed"}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure_large() if sys.argv[1] == "large" else measure(*sys.argv[1:])))
    else:
        main()
