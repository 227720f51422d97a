"""What the attacks start from: a saved model of each target, and documents as text."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import prepbench as pb
from prepbench.compile.artifact import MANIFEST
from prepbench.document.codec import to_json
from prepbench.views.diagrams import combined
from tests.stress.models import Small, samples


class Sums(nn.Module):
    """Has an operator that ONNX lacks, so that PyTorch runs it between two partitions; and sizes in its graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.i1e(self.first(x)) if x.shape[0] < 1000 else self.first(x)
        return self.last(y.reshape(-1, x.shape[0] * 6).reshape(x.shape[0], 6))


FAST = ("eager", "onnxruntime", "openvino", "parts")
"""Targets that load in a fraction of a second."""

ALL = (*FAST, "int8", "inductor", "executorch")


def save(kind: str, folder: Path) -> None:
    """Compile a small model for a target, and save it to ``folder``."""
    targets = {
        "eager": pb.EagerDeployment,
        "openvino": pb.OpenVinoDeployment,
        "inductor": pb.InductorDeployment,
        "executorch": pb.ExecuTorchDeployment,
    }
    settings = targets.get(kind, pb.OnnxRuntimeDeployment)()
    model = Sums() if kind == "parts" else Small(1)
    calibrated = {"calibration_inputs": samples(), "quantization_settings": pb.QuantizationSettings()}
    compiled = pb.compile_model(
        model.eval(),
        tracing_inputs=samples(),
        deployment_settings=settings,
        fullgraph=kind != "parts",
        **(calibrated if kind == "int8" else {}),
    )
    assert bool(compiled.report.fallbacks) == (kind == "parts")
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
