"""Which models in half precision compile, on which target and with which bits, and how far they are from float32.

A cell has the SQNR in dB of the compiled half-precision model against its float32 twin (the same weights, computed in
float32), ``x/y`` for the layers that are quantized of those that could be, and ``!`` where a result has another dtype
than the model's. One process per model and type; captures are reused within it.

``python -m tests.benchmarks.bench_half_precision [--models llama t5] [--types bfloat16] [--targets onnxruntime]
[--bits float w4]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

TYPES = ("bfloat16", "float16")
TARGETS = ("eager", "onnxruntime", "openvino", "executorch", "inductor")
BITS = ("float", "w8a8", "w8", "w4")
LIMIT = 1800

Built = tuple[nn.Module, list[Any]]


class Tagger(nn.Module):
    """An LSTM in both directions over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Bag(nn.Module):
    """An embedding bag with a weight for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(50, 32, mode="sum"), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(ids, per_sample_weights=weights).tanh())


class Mixed(nn.Module):
    """Linear layers in half precision between norms in float32, as mixed checkpoints have them."""

    keeps = (nn.LayerNorm,)

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + linear(norm(x.float()).to(x.dtype)).relu()
        return x


def _noise(*sizes: tuple[int, ...]) -> list[Any]:
    return [(torch.randn(*size),) for size in sizes]


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length))


OWN: dict[str, Callable[[], Built]] = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        _noise((2, 32), (5, 32)),
    ),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8),
        ),
        _noise((2, 3, 16, 16), (5, 3, 16, 16)),
    ),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False),
        _noise((2, 7, 32), (3, 12, 32)),
    ),
    "lstm": lambda: (Tagger(), [(_ids(2, 7),), (_ids(3, 12),)]),
    "bag": lambda: (Bag(), [(_ids(2, 7), torch.rand(2, 7)), (_ids(3, 12), torch.rand(3, 12))]),
    "mixed": lambda: (Mixed(), _noise((2, 7, 32), (3, 12, 32))),
}  # fmt: skip
FAMILIES = ("llama", "qwen3", "gemma2", "mixtral", "t5", "whisper", "mamba")
MODELS = (*OWN, *FAMILIES)


def build(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, list[Any]]:
    """The model in half precision, its float32 twin with the same weights, and samples in half precision."""
    torch.manual_seed(0)
    if name in OWN:
        model, samples = OWN[name]()
    else:
        from tests.zoo.huggingface import build as build_family

        model, samples = build_family(name)
    model = model.eval().to(dtype)
    for module in model.modules():
        if isinstance(module, getattr(model, "keeps", ())):
            module.float()
    return model, copy.deepcopy(model).float(), cast(samples, dtype)


def cast(values: Any, dtype: torch.dtype) -> Any:
    """The same values with all floating tensors in this type."""
    floating = lambda value: isinstance(value, torch.Tensor) and value.is_floating_point()  # noqa: E731
    return _pytree.tree_map(lambda value: value.to(dtype) if floating(value) else value, values)


def _called(model: Any, sample: Any) -> Any:
    return model(**sample) if isinstance(sample, dict) else model(*sample)


def _cell(model: nn.Module, twin: nn.Module, samples: list[Any], target: str, bits: str, reuse: Any) -> str:
    import prepbench as pb
    from prepbench.objects.compare import sqnr
    from prepbench.objects.flatten import collect

    settings = {
        "float": None,
        "w8a8": pb.QuantizationSettings(),
        "w8": pb.QuantizationSettings(prefer_weights_only_quantization=True),
        "w4": pb.QuantizationSettings(
            prefer_weights_only_quantization=True, weights_num_bits=4, weights_only_quantization_block_size=32
        ),
    }[bits]
    deployments = {
        "eager": pb.EagerDeployment, "onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment,
        "executorch": pb.ExecuTorchDeployment, "inductor": pb.InductorDeployment,
    }  # fmt: skip
    compiled = pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=samples if settings else None,
        deployment_settings=deployments[target](),
        quantization_settings=settings,
        reuse=reuse,
        fullgraph=False,
    )
    with torch.no_grad():
        half = _called(model, copy.deepcopy(samples[1]))
        exact = _called(twin, cast(copy.deepcopy(samples[1]), torch.float32))
    found = _called(compiled, copy.deepcopy(samples[1]))
    mark = "!" if [value.dtype for value in collect(found)] != [value.dtype for value in collect(half)] else ""
    layers = compiled.report.layers
    counted = f" {sum(row.quantized for row in layers)}/{len(layers)}" if layers else ""
    return f"{sqnr(exact, found):.0f}{mark}{counted}" + (
        f" {len(compiled.report.fallbacks)}f" if compiled.report.fallbacks else ""
    )


def measure(name: str, dtype: str, targets: list[str], bits: list[str], out: Path) -> None:
    """Write the cells of one model in one type to ``out`` as they come."""
    import logging

    import prepbench as pb

    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    reuse, cells = pb.KeptStages(), {}
    model, twin, samples = build(name, getattr(torch, dtype))
    for target in targets:
        for kind in bits:
            try:
                cells[f"{target} {kind}"] = _cell(model, twin, samples, target, kind, reuse)
            except Exception as error:
                cells[f"{target} {kind}"] = f"{type(error).__name__}: {error}"
            out.write_text(json.dumps(cells))


def _in_process(name: str, dtype: str, targets: list[str], bits: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cells.json"
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_half_precision", "--one", str(out)]
        command += ["--models", name, "--types", dtype, "--targets", *targets, "--bits", *bits]
        try:
            end = f"ended with {subprocess.run(command, capture_output=True, timeout=LIMIT).returncode}"
        except subprocess.TimeoutExpired:
            end = f"over {LIMIT} s"
        cells = json.loads(out.read_text()) if out.exists() else {}
    return {f"{target} {kind}": cells.get(f"{target} {kind}", end) for target in targets for kind in bits}


def main() -> None:
    """Print a row for each model, type and target, then each error once with the places that have it."""
    parser = argparse.ArgumentParser()
    for option, choices in (("models", MODELS), ("types", TYPES), ("targets", TARGETS), ("bits", BITS)):
        parser.add_argument(f"--{option}", nargs="+", choices=choices, default=list(choices))
    parser.add_argument("--one", help="the file that gets the cells of the only model and type")
    given = parser.parse_args()
    if given.one:
        measure(given.models[0], given.types[0], given.targets, given.bits, Path(given.one))
        return
    print(f"{'':<32}" + "".join(f"{kind:>16}" for kind in given.bits))
    errors: dict[str, list[str]] = {}
    for name in given.models:
        for dtype in given.types:
            cells = _in_process(name, dtype, given.targets, given.bits)
            for target in given.targets:
                row = [cells[f"{target} {kind}"] for kind in given.bits]
                for kind, cell in zip(given.bits, row, strict=True):
                    if not cell[:1].isdigit() and not cell.startswith(("-", "inf")):
                        errors.setdefault(cell.splitlines()[0][:400], []).append(f"{name} {dtype} {target} {kind}")
                shown = [cell.split(":")[0][:15] for cell in row]
                print(f"{f'{name} {dtype} {target}':<32}" + "".join(f"{cell:>16}" for cell in shown), flush=True)
    for text, places in sorted(errors.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(places)}x {text}\n    {', '.join(places)}")


if __name__ == "__main__":
    main()
