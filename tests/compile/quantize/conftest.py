from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import fx, nn

from prepbench.quantize import LayerReport, Placement, calibrate, convert, insert_observers
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import LayerRules, QuantizationSettings, explain_settings


@dataclass
class Quantized:
    """A quantized graph and what became of each layer."""

    graph: fx.GraphModule
    layers: dict[str, LayerReport]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.graph(x)

    def operators(self) -> list[str]:
        """Short names of the operators in execution order; ``q`` and ``dq`` stand for those of activations."""
        short = {"quantize_per_tensor": "q", "dequantize_per_tensor": "dq"}
        names = [str(n.target).split(".")[1] for n in self.graph.graph.nodes if n.op == "call_function"]
        return [short.get(name, name) for name in names if name != "dequantize_per_channel"]


def export(model: nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    """The model with a dynamic batch."""
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    return torch.export.export(model.eval(), (x,), dynamic_shapes=shapes, strict=False)


def run_quantize(
    model: nn.Module,
    calibration: Sequence[torch.Tensor],
    settings: QuantizationSettings | None = None,
    rules: LayerRules | None = None,
    placement: Placement | None = None,
) -> Quantized:
    """All stages at once."""
    placement = placement or Placement(conv_outputs=True, conv_additions=True)
    explained = explain_settings(model, settings or QuantizationSettings(), rules)
    observed = insert_observers(export(model, calibration[0]), model, explained, placement)
    calibrate(observed, normalize_samples(model, calibration))
    return Quantized(convert(observed), {row.fqn: row for row in observed.layers})


@pytest.fixture
def quantize() -> Callable[..., Quantized]:
    return run_quantize
