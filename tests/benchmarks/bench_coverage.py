"""How much of each model the tools capture: Hugging Face architectures and the hard models; one process per model.

``torch.fx`` and ModelOpt trace without inputs, as they do for their users; ``torch.export`` gets every dim that differs
between the samples as ``Dim.AUTO``. A capture counts as equal when it agrees with the model on the samples and at sizes
that no sample had.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

TOOLS = ("torch.fx", "ModelOpt", "torch.export", "prepbench trace", "prepbench capture")
LIMIT = 300


def _build(name: str) -> tuple[nn.Module, list[Any]]:
    kind, _, name = name.partition(":")
    if kind == "hf":
        from tests.zoo.huggingface import build

        return build(name)
    from tests.zoo import ZOO

    torch.manual_seed(0)
    case = ZOO[name]
    return case.make(), case.samples


def _fx(model: nn.Module, samples: list[Any]) -> str:
    torch.fx.symbolic_trace(model)
    return "whole"


def _modelopt(model: nn.Module, samples: list[Any]) -> str:
    from modelopt.torch.trace import recursive_trace

    collection = recursive_trace(model)
    if collection.is_failed(model):
        return "root lost"
    opaque = sum(bool(collection.is_failed(module)) for module in model.modules())
    return f"{opaque} opaque" if opaque else "whole"


def _export(model: nn.Module, samples: list[Any]) -> str:
    from prepbench.capture.sizes.dynamic_axes import DynamicAxes
    from prepbench.running.given_samples import normalize_samples

    sample = normalize_samples(model, samples)[0]
    axes = DynamicAxes.infer(samples, model)
    shapes = axes.dynamic_shapes(model, sample, hint=torch.export.Dim.AUTO) if axes.dynamic else None
    torch.export.export(model, sample.args, sample.kwargs, dynamic_shapes=shapes, strict=False)
    return "whole"


def _trace(model: nn.Module, samples: list[Any]) -> str:
    import prepbench as pb

    collection = pb.recursive_trace(model, inputs=samples)
    if collection.is_failed(model):
        return "root failed"
    return f"{len(collection.failures)} opaque" if collection.failures else "whole"


def _capture(model: nn.Module, samples: list[Any]) -> str:
    import prepbench as pb

    captured = pb.capture(model, samples, fullgraph=False)
    equal = "equal" if not captured.verify().problems else "NOT EQUAL"
    return f"{len(captured.leaves)} leaves, {equal}" if captured.leaves else f"whole, {equal}"


_RUN: dict[str, Callable[[nn.Module, list[Any]], str]] = dict(
    zip(TOOLS, (_fx, _modelopt, _export, _trace, _capture), strict=True)
)


def measure(name: str) -> dict[str, str]:
    """What each tool makes of one model."""
    logging.disable(logging.ERROR)
    results = {}
    for tool in TOOLS:
        if tool == "ModelOpt" and not importlib.util.find_spec("modelopt"):
            continue
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            try:
                results[tool] = _RUN[tool](*_build(name))
            except Exception as error:
                results[tool] = type(error).__name__
    return results


def main() -> None:
    """Print a row for each model and how many each tool captured whole."""
    from tests.zoo import ZOO
    from tests.zoo.huggingface import ARCHITECTURES

    names = [*(f"hf:{name}" for name in ARCHITECTURES), *(f"zoo:{name}" for name in ZOO)]
    tools = [tool for tool in TOOLS if tool != "ModelOpt" or importlib.util.find_spec("modelopt")]
    print(f"{'':<40}" + "".join(f"{tool:>26}" for tool in tools))
    rows = {}
    for name in names:
        rows[name] = _in_process(name)
        print(f"{name:<40}" + "".join(f"{rows[name].get(tool, '-'):>26}" for tool in tools), flush=True)
    for kind in ("hf", "zoo"):
        chosen = [row for name, row in rows.items() if name.startswith(f"{kind}:")]
        counts = [sum(row.get(tool, "").startswith("whole") for row in chosen) for tool in tools]
        print(f"{f'{kind}: whole, of {len(chosen)}':<40}" + "".join(f"{count:>26}" for count in counts))
        equal = sum(row.get("prepbench capture", "").endswith(", equal") for row in chosen)
        print(f"{f'{kind}: captured and equal':<40}" + f"{equal:>{26 * len(tools)}}")


def _in_process(name: str) -> dict[str, str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_coverage", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(TOOLS, f"over {LIMIT} s")
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else dict.fromkeys(TOOLS, "crashed")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(measure(sys.argv[1])))
    else:
        main()
