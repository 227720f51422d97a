"""What the attacks start from: a saved model of each target, and documents as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import prepbench as pb
from prepbench.document.codec import to_json
from prepbench.package.artifact import MANIFEST
from prepbench.views.display import combined
from tests.system.stress.models import Small, samples


class Sums(nn.Module):
    """Has an operator that ONNX lacks, so that PyTorch runs it between two partitions; and sizes in its graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i1e(self.first(x)) if x.shape[0] < 1000 else self.first(x)
        return self.last(y.reshape(-1, x.shape[0] * 6).reshape(x.shape[0], 6))


class Half(nn.Module):
    """Can be exported by itself, so that its leaf is a program of its own."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 6), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


class Other(Half):
    """Another class of the same form."""


class Leaves(nn.Module):
    """Leaves of both kinds: two modules, and statements that stay in Python."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.one, self.two = Half(torch.tanh), Other(torch.sigmoid)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two(self.one(self.first(x)))
        if y.sum() > 1000:
            y = y * 2
        return self.last(y)


@functools.cache
def model_of(kind: str) -> nn.Module | None:
    """The model that loading takes."""
    return Leaves().eval() if kind in ("leaves", "leaves in eager") else None


FAST = ("eager", "onnxruntime", "openvino", "parts", "leaves")
"""Targets that load in a fraction of a second."""

ALL = (*FAST, "leaves in eager", "int8", "inductor", "executorch")


def save(kind: str, folder: Path) -> None:
    """Compile a small model for a target, and save it to ``folder``."""
    targets = {
        "eager": pb.EagerDeployment,
        "leaves in eager": pb.EagerDeployment,
        "openvino": pb.OpenVinoDeployment,
        "inductor": pb.InductorDeployment,
        "executorch": pb.ExecuTorchDeployment,
    }
    settings = targets.get(kind, pb.OnnxRuntimeDeployment)()
    leaves = model_of(kind)
    model = leaves if leaves is not None else Sums() if kind == "parts" else Small(1)
    calibrated = {"calibration_inputs": samples(), "quantization_settings": pb.QuantizationSettings()}
    compiled = pb.compile_model(
        model.eval(),
        tracing_inputs=samples(),
        deployment_settings=settings,
        fullgraph=leaves is None and kind != "parts",
        leaf_modules=() if leaves is None else ["one", "two"],
        **(calibrated if kind == "int8" else {}),
    )
    assert bool(compiled.report.fallbacks) == (kind in ("parts", "leaves"))
    compiled.save(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["report"]["seconds"] = {}  # so that the same seed does the same
    (folder / MANIFEST).write_text(json.dumps(manifest))


def documents() -> list[str]:
    """Documents of all kinds: module graphs, an ATen graph, two levels with an overlay, a comparison, failures."""

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    small = Small(1).eval()
    modules = pb.recursive_trace(small, inputs=samples()).document()
    failing = pb.recursive_trace(nn.Sequential(nn.Linear(4, 4), Fails()), inputs=samples()).document()
    captured = pb.capture(small, samples()).document()
    levels = pb.diagram(modules, captured).overlay({"first": 3.0, "norm": -1.5}, name="bits").document
    compared = combined(modules, captured, compare=True)
    return [to_json(each) for each in (modules, failing, captured, levels, compared)]
