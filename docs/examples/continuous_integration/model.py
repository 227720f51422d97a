"""A model, its samples, and what compiles it: replace these with your own."""

from __future__ import annotations

import torch
from torch import nn

import prepbench as pb


class Classifier(nn.Module):
    """A classifier of 8×8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).flatten(1))


def model() -> nn.Module:
    """The model with its weights; a real one would load them here."""
    torch.manual_seed(0)
    return Classifier().eval()


def samples() -> list[torch.Tensor]:
    """Two batch sizes: so the batch is dynamic."""
    return [torch.randn(2, 1, 8, 8), torch.randn(3, 1, 8, 8)]


def batches() -> list[torch.Tensor]:
    """What outputs are compared on."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 1, 8, 8, generator=generator) for _ in range(4)]


if __name__ == "__main__":
    compiled = pb.compile_model(
        model(),
        tracing_inputs=samples(),
        calibration_inputs=batches(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    compiled.save("build/int8")
