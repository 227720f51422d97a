"""What each way to lose less by rounding gains a small trained MobileNetV2: SQNR of its logits, target by target.

Channels have ranges as training leaves them ("even"), or begin with batch norms of unlike scales ("uneven"). A row is a
way, a column one form of weights: in 8 or 4 bits, with a scale for each channel or one for the whole weight.
Activations have 8 bits, and no layer goes back to float. Images are digits that neither training nor calibration saw.

``python -m tests.benchmarks.bench_rounding``
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import torch
from torch import nn

import prepbench as pb
from tests.benchmarks.bench_adaptive_rounding import data

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({"weights_algorithm": "nearest"}, {"bias_correction": False}),
    "bias correction": ({"weights_algorithm": "nearest"}, {}),
    "equalised": ({"weights_algorithm": "nearest"}, {"bias_correction": False, "cross_layer_equalization": True}),
    "equalised + bias": ({"weights_algorithm": "nearest"}, {"cross_layer_equalization": True}),
    "adaround": ({"weights_algorithm": "adaround"}, {"bias_correction": False}),
    "adaround + bias": ({"weights_algorithm": "adaround"}, {}),
    "all": ({"weights_algorithm": "adaround"}, {"cross_layer_equalization": True}),
}
FORMS = {
    "w8": {"weights_num_bits": 8},
    "w8 tensor": {"weights_num_bits": 8, "per_channel": False},
    "w4": {"weights_num_bits": 4},
    "w4 tensor": {"weights_num_bits": 4, "per_channel": False},
}
TARGETS = {
    "eager": pb.EagerDeployment,
    "ORT": pb.OnnxRuntimeDeployment,
    "OpenVINO": pb.OpenVinoDeployment,
}
SEEDS = (0, 1)
SPREAD = 0.8  # of the logarithm of scales


class Inverted(nn.Module):
    """An inverted residual with a depthwise convolution."""

    def __init__(self, channels: int, filters: int, activation: type[nn.Module]) -> None:
        super().__init__()
        wide = 4 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, filters, 1, bias=False), nn.BatchNorm2d(filters),
        )  # fmt: skip
        self.is_residual = channels == filters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def mobilenet(activation: type[nn.Module]) -> nn.Module:
    widths = [16, 16, 24, 24, 24, 32, 32, 32]
    blocks = [Inverted(one, two, activation) for one, two in itertools.pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), activation(), *blocks[:3], nn.AvgPool2d(2),
        *blocks[3:], nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64), activation(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def trained(activation: type[nn.Module], seed: int, uneven: bool) -> nn.Module:
    """A network after some passes over two thirds of the digits."""
    torch.manual_seed(seed)
    (images, labels), model = data(), mobilenet(activation)
    for norm in model.modules():
        if uneven and isinstance(norm, nn.BatchNorm2d):
            norm.weight.data = (torch.randn_like(norm.weight) * SPREAD).exp()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.05)
    for _ in range(10):
        for picked in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
    return model.eval()


def measured(model: nn.Module, target: str, form: str, way: str) -> tuple[float, float, float]:
    """SQNR in dB, accuracy in percent, and seconds of compiling."""
    images, labels = data()
    settings, options = WAYS[way]
    start = time.perf_counter()
    compiled = pb.compile_model(
        model,
        calibration_inputs=list(images[:520].split(64)),  # the last one is smaller: a dynamic batch
        deployment_settings=TARGETS[target](),
        quantization_settings=pb.QuantizationSettings(**FORMS[form], **settings),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False, **options),
    )
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right, got = model(images[1200:]), compiled(images[1200:])
    noise = float((right - got).square().sum() / right.square().sum())
    return (
        -10 * float(torch.tensor(noise).log10()),
        100 * float((got.argmax(1) == labels[1200:]).float().mean()),
        seconds,
    )


def main() -> None:
    """Print a table for each activation and target; each cell is the mean SQNR and accuracy over seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    given = parser.parse_args()
    images, labels = data()
    for activation, uneven in itertools.product((nn.ReLU, nn.ReLU6), (False, True)):
        models = [trained(activation, seed, uneven) for seed in SEEDS]
        with torch.no_grad():
            right = [100 * float((model(images[1200:]).argmax(1) == labels[1200:]).float().mean()) for model in models]
        for target in given.targets:
            ranges = "uneven" if uneven else "even"
            print(f"{activation.__name__}, {ranges}, {target}; accuracy in float {sum(right) / len(right):.1f} %")
            print(f"{'':<20}" + "".join(f"{form:>24}" for form in given.forms), flush=True)
            for way in given.ways:
                cells = []
                for form in given.forms:
                    found = torch.tensor([measured(model, target, form, way) for model in models]).mean(0).tolist()
                    cells.append(f"{found[0]:.1f} dB {found[1]:.1f} % {found[2]:.0f} s")
                print(f"{way:<20}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
