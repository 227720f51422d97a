"""Training back on digits: what few bits and half of the channels cost, what `pb.recover` brings back, what steps cost.

A convolutional network and a transformer are trained in float. They get weights and activations of 8 bits, of 4 bits,
and 8 bits with half of the channels removed. Of the digits to train on, 200 are held out: they choose the learning rate
and the score of channels, by short trainings, and later the best weights. Accuracies are those of the compiled models,
on digits that none of this saw. Seconds include the choosing. A step in 8 bits is timed in turn with one of the float
model, and the peak of memory is that of a process of its own.

``python -m tests.benchmarks.bench_training_back``
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prepbench as pb

INT8 = pb.QuantizationSettings()
FEW_BITS = pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4)
HALF = [pb.PruningSettings(mask_type="channels", score=score) for score in ("magnitude", "activations")]
WAYS: dict[str, list[dict[str, Any]]] = {
    "8 bits": [{"quantization_settings": INT8}],
    "4 bits": [{"quantization_settings": FEW_BITS}],
    "half the channels": [{"quantization_settings": INT8, "pruning_settings": half} for half in HALF],
}
TRAINED, FITTED, STEPS = 1200, 1000, 1600
RATES, TRIED = (1e-3, 3e-3), 300  # learning rates, and the steps of a training that chooses
# without training these lose more; 8 bits may lose nothing
LOSING = ("4 bits", "half the channels")
LARGEST_DROP, LONGEST = 0.5, 120.0  # points, seconds
LARGEST_STEP, LARGEST_MEMORY = 2.5, 2.0  # times float
MEBIBYTE = 2**20


class Block(nn.Module):
    """An inverted residual, as networks for phones have them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up, self.up_norm = nn.Conv2d(channels, 2 * channels, 1, bias=False), nn.BatchNorm2d(2 * channels)
        self.deep = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels, bias=False)
        self.deep_norm = nn.BatchNorm2d(2 * channels)
        self.down, self.down_norm = nn.Conv2d(2 * channels, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.up_norm(self.up(x)))
        inner = torch.relu(self.deep_norm(self.deep(inner)))
        return x + self.down_norm(self.down(inner))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.blocks = nn.Sequential(Block(24), nn.MaxPool2d(2), Block(24), Block(24))
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem_norm(self.stem(x.unsqueeze(1))))
        return self.head(self.blocks(x).flatten(1))


class Layer(nn.Module):
    """Attention that takes as many heads as its weights have, and a feed-forward part."""

    def __init__(self, channels: int, head: int) -> None:
        super().__init__()
        self.head = head
        self.norm, self.norm_after = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.out = nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        heads = [layer(y).unflatten(2, (-1, self.head)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_after(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(8, 48)
        self.places = nn.Parameter(torch.randn(8, 48) * 0.1)
        self.layers = nn.Sequential(Layer(48, 12), Layer(48, 12))
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.rows(x) + self.places).mean(1))


KINDS: dict[str, type[nn.Module]] = {"conv": ConvNet, "transformer": Transformer}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """The digits in an order that mixes writers."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.images, dtype=torch.float32)[order] / 8 - 1, torch.tensor(found.target)[order]


def trained(kind: str) -> nn.Module:
    """A network after some passes over two thirds of the digits."""
    torch.manual_seed(0)
    (images, labels), model = data(), KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(20):
        for picked in torch.randperm(TRAINED).split(64):
            step(model, optimizer, images[picked], labels[picked])
    return model.eval()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def prepared_of(model: nn.Module, settings: dict[str, Any] | None = None) -> pb.TrainableModel:
    images, _ = data()
    calibration = list(images[:520].split(64))  # the last one is smaller: a dynamic batch
    return pb.trainable(
        model,
        calibration_inputs=calibration,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        **(WAYS["8 bits"][0] if settings is None else settings),
    )


def accuracy(model: Any) -> float:
    """In percent, of digits that neither training nor calibration saw."""
    images, labels = data()
    with torch.no_grad():
        return 100 * pb.metrics.accuracy(model(images[TRAINED:]), labels[TRAINED:])


def step_ratio(model: nn.Module) -> float:
    """The time of a step of the prepared model over that of the float one, in turn, batches of 128."""
    pair = [one.train() for one in (model, prepared_of(model))]
    optimizers = [torch.optim.Adam(one.parameters(), 1e-5) for one in pair]
    images, labels = (each[:128] for each in data())
    ratios = []
    for turn in range(25):
        seconds = []
        for one, optimizer in zip(pair, optimizers, strict=True):
            start = time.perf_counter()
            step(one, optimizer, images, labels)
            seconds.append(time.perf_counter() - start)
        if turn >= 5:
            ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios)


def memory(kind: str, form: str) -> None:
    """Print by how many bytes memory rises above that of a small step while some large ones run."""
    model = KINDS[kind]()
    made = (prepared_of(model) if form == "prepared" else model).train()
    optimizer = torch.optim.Adam(made.parameters(), 1e-5)
    images, labels = data()
    step(made, optimizer, images[:16], labels[:16])
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    for _ in range(3):
        step(made, optimizer, images[:TRAINED], labels[:TRAINED])
    print(_resident("VmHWM") - before)


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def memory_ratio(kind: str) -> float:
    peaks = []
    for form in ("float", "prepared"):
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_training_back", kind, form]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]))
    return peaks[1] / max(peaks[0], MEBIBYTE)


def told(value: str, is_within: bool) -> str:
    """A cell of the table, which says where a limit is missed."""
    return f"{value if is_within else f'{value} ABOVE':>18}"


def recovered(prepared: pb.TrainableModel, model: nn.Module, rate: float, steps: int) -> pb.Recovery:
    """Train on the digits that are not held out."""
    images, labels = data()
    pairs, generator = TensorDataset(images[:FITTED], labels[:FITTED]), torch.Generator().manual_seed(0)
    batches = DataLoader(pairs, batch_size=50, shuffle=True, generator=generator)
    held_out = list(zip(images[FITTED:TRAINED].split(100), labels[FITTED:TRAINED].split(100), strict=True))
    return pb.recover(
        prepared,
        batches,
        F.cross_entropy,
        teacher=model,
        steps=steps,
        learning_rate=rate,
        metric=pb.metrics.accuracy,
        validation=held_out,
    )


def chosen(model: nn.Module, way: str) -> tuple[dict[str, Any], float]:
    """The settings and the learning rate that are best on the digits held out; of equally good ones the first."""
    tried = [(settings, rate) for settings in WAYS[way] for rate in RATES]
    scores = [recovered(prepared_of(model, settings), model, rate, TRIED).after for settings, rate in tried]
    return tried[scores.index(max(scores))]


def measured(kind: str, model: nn.Module, way: str, exact: float) -> bool:
    """Print the row of one way to make a network smaller; whether it is within the limits."""
    start = time.perf_counter()
    settings, rate = chosen(model, way)
    prepared = prepared_of(model, settings)
    lost = exact - accuracy(pb.compile_model(prepared))
    found = recovered(prepared, model, rate, STEPS)
    drop = exact - accuracy(pb.compile_model(prepared))
    seconds = time.perf_counter() - start
    is_won = drop <= LARGEST_DROP and (drop < lost or way not in LOSING)
    limits = [is_won, seconds < LONGEST]
    cells = (f"{lost:18.2f}", told(f"{drop:.2f}", is_won), told(f"{seconds:.0f}", limits[1]))
    score = f", {settings['pruning_settings'].score}" if "pruning_settings" in settings else ""
    print(f"{kind:<13}{way:<19}" + "".join(cells) + f"{found.best_step:12d}   {rate:g}{score}", flush=True)
    return all(limits)


def main() -> int:
    if len(sys.argv) > 2:
        memory(*sys.argv[1:3])
        return 0
    print(f"points of accuracy lost to float, of digits never seen; seconds with both compiles; {STEPS} steps at most")
    print(
        f"{'':<32}"
        + "".join(f"{name:>18}" for name in ("without training", "trained back", "seconds"))
        + "   best step   chosen"
    )
    results = []
    for kind in KINDS:
        model = trained(kind)
        exact = accuracy(model)
        print(f"{kind:<13}{'float':<19}{exact:17.2f}%", flush=True)
        results += [measured(kind, model, way, exact) for way in WAYS]
        ratio, peak = step_ratio(model), memory_ratio(kind)
        results += [ratio <= LARGEST_STEP, peak <= LARGEST_MEMORY]
        step_cell, peak_cell = told(f"{ratio:.2f}x", results[-2]), told(f"{peak:.2f}x", results[-1])
        print(f"{kind:<13}{'a step over float':<19}{step_cell}, its memory{peak_cell}", flush=True)
    print(
        f"limits: {LARGEST_DROP} points once trained back, and less than without training ({', '.join(LOSING)}); "
        f"{LONGEST:.0f} s; a step {LARGEST_STEP}x float, its memory {LARGEST_MEMORY:.0f}x"
    )
    return int(not all(results))


if __name__ == "__main__":
    raise SystemExit(main())
