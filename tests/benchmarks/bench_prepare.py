"""What preparation costs, against AIMET and against capture, and how many of the hard models each prepares correctly.

Every row is one process per tool. AIMET prepares without inputs, so that is how both are timed beside it.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.machinery
import importlib.util
import io
import json
import logging
import subprocess
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.models import build

REPEATS = 5
BESIDE_AIMET = ("resnet", "mobilenet", "mlp", "blocks:50", "blocks:200")
BESIDE_CAPTURE = (
    "resnet",
    "mobilenet",
    "mlp",
    "bert",
    "hf:gpt2",
    "hf:llama",
    "hf:mixtral",
    "hf:t5",
    "hf:vit",
    "hf:swin",
)


class Block(nn.Module):
    """A block with functions, a reused module and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(x + self.second(F.gelu(self.relu(self.first(x)))))


def _model(name: str) -> tuple[nn.Module, list[Any]]:
    kind, _, rest = name.partition(":")
    if kind == "blocks":
        return nn.Sequential(*[Block() for _ in range(int(rest))]).eval(), [torch.randn(2, 8), torch.randn(3, 8)]
    if kind == "hf":
        from tests.zoo.huggingface import build as build_huggingface

        return build_huggingface(rest)
    return build(name)


def _ours(model: nn.Module, samples: list[Any]) -> Any:
    import prepbench as pb

    return pb.prepare_model(model)


def _ours_with_inputs(model: nn.Module, samples: list[Any]) -> Any:
    import prepbench as pb

    return pb.prepare_model(model, inputs=samples)


def _capture(model: nn.Module, samples: list[Any]) -> Any:
    import prepbench as pb

    return pb.capture(model, samples, fullgraph=False)


class _Anything(types.ModuleType):
    """A module in which every name exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = name if name[0].isupper() else ""
        value: Any = type(part, (nn.Module,), {}) if part else _Anything(name)
        setattr(self, name, value)
        return value


def _aimet(model: nn.Module, samples: list[Any]) -> Any:
    # AIMET names classes of torchvision in its tables; a torchvision for the CPU build of torch is on no index
    for name in ("torchvision", "torchvision.transforms", "torchvision.ops"):
        if name not in sys.modules:
            sys.modules[name] = _Anything(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    from aimet_torch.model_preparer import prepare_model

    return prepare_model(model)


TOOLS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "prepbench": _ours,
    "AIMET": _aimet,
    "with inputs": _ours_with_inputs,
    "capture": _capture,
}


def measure(tool: str, name: str) -> dict[str, Any]:
    """Median seconds of :data:`REPEATS` runs, each on a model of its own, after one warm-up."""
    seconds = []
    for _ in range(REPEATS + 1):
        torch.manual_seed(0)
        model, samples = _model(name)
        start = time.perf_counter()
        _run(tool, model, samples)
        seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds[1:])[REPEATS // 2]}


def _run(tool: str, model: nn.Module, samples: list[Any]) -> Any:
    with _quiet():
        return TOOLS[tool](model, samples)


@contextlib.contextmanager
def _quiet() -> Any:
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def coverage(tool: str) -> dict[str, int]:
    """How the hard models fare: prepared and equal on the first sample, prepared and not equal, or refused."""
    from prepbench.objects.compare import REWRITTEN, difference
    from prepbench.running.given_samples import normalize_samples
    from tests.zoo import ZOO

    found: Counter[str] = Counter()
    _run(tool, nn.Sequential(nn.ReLU()), [torch.ones(1)])
    for case in ZOO.values():
        torch.manual_seed(0)
        model = case.make()
        if not isinstance(model, nn.Module) or case.refused:
            continue
        sample = normalize_samples(model, copy.deepcopy(case.samples))[0]
        with _quiet():
            # the copy takes part in nothing but preparation; hooks may hold on to the model and forbid one
            try:
                prepared = TOOLS[tool](copy.deepcopy(model), copy.deepcopy(case.samples))
            except Exception:
                found["refused"] += 1
                continue
            try:
                equal = difference(*_outputs(model, prepared, sample), REWRITTEN).equal
            except Exception:
                equal = False
        found["equal" if equal else "not equal"] += 1
    return dict(found)


def _outputs(model: nn.Module, prepared: Any, sample: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    expected = copy.deepcopy(sample).call(model)
    torch.manual_seed(0)
    return expected, copy.deepcopy(sample).call(prepared)


def main() -> None:
    """Print the three tables."""
    aimet = importlib.util.find_spec("aimet_torch") is not None
    print("preparation without inputs: milliseconds, and the ratio to AIMET (target: at most 1.5)")
    _table(BESIDE_AIMET, ["prepbench", "AIMET"] if aimet else ["prepbench"], ("prepbench", "AIMET"))
    print("preparation with inputs: milliseconds, and the ratio to capture (target: at most 2)")
    _table(BESIDE_CAPTURE, ["with inputs", "capture"], ("with inputs", "capture"))
    print("the hard models of tests/zoo: prepared and equal, prepared and not equal, refused")
    for tool in ("with inputs", *(("AIMET",) if aimet else ())):
        result = _in_process(tool, "coverage")
        counts = [result.get(name, 0) for name in ("equal", "not equal", "refused")]
        print(f"{'prepbench' if tool == 'with inputs' else tool:<14}" + "".join(f"{count:>13}" for count in counts))


def _table(names: Any, tools: list[str], ratio: tuple[str, str]) -> None:
    print(f"{'':<14}" + "".join(f"{tool:>13}" for tool in tools) + "        ratio")
    for name in names:
        results = {tool: _in_process(tool, name) for tool in tools}
        cells = "".join(f"{_text(results[tool]):>13}" for tool in tools)
        one, two = (results.get(tool, {}).get("seconds") for tool in ratio)
        print(f"{name:<14}{cells}" + (f"{one / two:>13.2f}" if one and two else ""), flush=True)


def _text(result: dict[str, Any]) -> str:
    return f"{1000 * result['seconds']:.1f}" if "seconds" in result else str(result["error"])


def _in_process(tool: str, name: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_prepare", tool, name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1].partition(":")[0] if done.stderr.strip() else "crashed"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        tool, name = sys.argv[1:]
        print(json.dumps(coverage(tool) if name == "coverage" else measure(tool, name)))
    else:
        main()
