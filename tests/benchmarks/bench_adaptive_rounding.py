"""What each way to round weights costs a small trained convolutional network: SQNR of its logits, and its accuracy.

A row is an algorithm, a column one form of weights: 4 bits with a scale for each channel and activations in float
("w4"), the same in blocks where layers can be cut ("w4 16"), and activations in 8 bits as well ("w4a8"). No layer goes
back to float. Both figures are of digits that neither training nor calibration saw.

``python -m tests.benchmarks.bench_adaptive_rounding``
"""

from __future__ import annotations

import time

import torch
from torch import nn

import prepbench as pb

ALGORITHMS = ("nearest", "hqq", "awq", "gptq", "adaround")
FORMS = ("w4", "w4 16", "w4a8")
SEEDS = (0, 1, 2)
LEAST_GAIN = 1.0  # dB over rounding to nearest, on average


class Digits(nn.Module):
    """Plain, grouped and depthwise convolutions with batch norms, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_block(1, 24, 3), *_block(24, 24, 3, groups=24), *_block(24, 48, 1), nn.MaxPool2d(2),
            *_block(48, 48, 3, groups=4), *_block(48, 64, 1), nn.AvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.wide, self.head = nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.wide(self.body(x))))


def _block(channels: int, filters: int, kernel: int, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, filters, kernel, padding=kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(filters), nn.ReLU()]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """The digits in an order that mixes writers."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    return images[order], torch.tensor(found.target)[order]


def trained(seed: int) -> nn.Module:
    """A network after some passes over two thirds of the digits."""
    torch.manual_seed(seed)
    (images, labels), model = data(), Digits()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(12):
        for picked in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
    return model.eval()


def settings(algorithm: str, form: str) -> pb.QuantizationSettings:
    return pb.QuantizationSettings(
        weights_num_bits=4,
        weights_algorithm=algorithm,
        prefer_weights_only_quantization=form != "w4a8",
        weights_only_quantization_block_size=16 if form == "w4 16" else 0,
    )


def measured(model: nn.Module, algorithm: str, form: str) -> tuple[float, float, float]:
    """SQNR in dB, accuracy in percent, and seconds of compiling."""
    images, labels = data()
    start = time.perf_counter()
    compiled = pb.compile_model(
        model,
        calibration_inputs=list(images[:520].split(64)),  # the last one is smaller: a dynamic batch
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=settings(algorithm, form),
        compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
    )
    seconds = time.perf_counter() - start
    unseen, target = images[1200:], labels[1200:]
    with torch.no_grad():
        expected = model(unseen)
        found = compiled(unseen)
    return pb.metrics.sqnr(found, expected), 100 * pb.metrics.accuracy(found, target), seconds


def main() -> int:
    models = [trained(seed) for seed in SEEDS]
    images, labels = data()
    with torch.no_grad():
        right = [100 * pb.metrics.accuracy(model(images[1200:]), labels[1200:]) for model in models]
    print(f"float: {sum(right) / len(right):.2f} % right; means of {len(models)} networks")
    print(f"{'':<10}" + "".join(f"{form:<30}" for form in FORMS), flush=True)
    sqnr: dict[tuple[str, str], float] = {}
    for algorithm in ALGORITHMS:
        cells = []
        for form in FORMS:
            found = [measured(model, algorithm, form) for model in models]
            decibels, accuracy, seconds = (sum(each) / len(models) for each in zip(*found, strict=True))
            sqnr[algorithm, form] = decibels
            cells.append(f"{decibels:5.2f} dB  {accuracy:5.2f} %  {seconds:4.1f} s")
        print(f"{algorithm:<10}" + "".join(f"{cell:<30}" for cell in cells), flush=True)
    gains = {form: sqnr["adaround", form] - sqnr["nearest", form] for form in FORMS}
    print("adaround over nearest: " + ", ".join(f"{form} {gain:+.2f} dB" for form, gain in gains.items()))
    return int(min(gains.values()) < LEAST_GAIN)


if __name__ == "__main__":
    raise SystemExit(main())
