"""Networks that are trained here in a minute, on real data; their weights are kept in ``build/board``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.board.audio import mel_spectrogram, speech
from tests.board.entry import Task, accuracy, hits

KEPT = Path(__file__).parents[2] / "build" / "board"


def _trained(name: str, make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, epochs: int) -> nn.Module:
    """Return a network with the weights of an earlier run, or train it."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model, file = make(), KEPT / f"{name}-{epochs}.safetensors"
    if file.exists():
        model.load_state_dict(load_file(file))
        return model.eval()
    steps = epochs * -(-len(x) // 64)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, steps)
    with torch.enable_grad():
        for _ in range(epochs):
            for places in torch.randperm(len(x)).split(64):
                loss = nn.functional.cross_entropy(model(x[places]), y[places], label_smoothing=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if schedule.last_epoch < steps:
                    schedule.step()
    KEPT.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), file)
    return model.eval()


class Residual(nn.Module):
    """Two convolutions and what they are added to."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.down = nn.Identity() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.down(x)).relu()


def _resnet() -> nn.Module:
    blocks = [Residual(16, 32, 1), Residual(32, 64, 2), Residual(64, 64, 1)]
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 6 * before
        self.body = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.adds = stride == 1 and before == after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return x + self.body(x) if self.adds else self.body(x)


def _mobilenet() -> nn.Module:
    sizes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*stem, *(Inverted(*size) for size in sizes), *end)


def _digits(name: str, make: Callable[[], nn.Module], epochs: int) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[order] / 8 - 1).float()[:, None]
    labels = torch.from_numpy(data.target[order])
    model = _trained(name, make, images[:1000], labels[:1000], epochs)
    calls = [(image[None],) for image in images]
    return Task(model, calls[:64], calls[1000:], hits(labels[1000:].numpy()), accuracy, calls[1000])


def digits_resnet(epochs: int = 12) -> Task:
    """A small ResNet on scikit-learn's digits."""
    return _digits("resnet", _resnet, epochs)


def digits_mobilenet(epochs: int = 15) -> Task:
    """A small MobileNetV2 on scikit-learn's digits."""
    return _digits("mobilenet", _mobilenet, epochs)


WORDS = ("yes", "no", "up", "down", "left", "right", "stop", "go", "on", "off", "seven", "house")


class KeywordSpotter(nn.Module):
    """Two layers of GRU over a spectrogram."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(40, 96, 2, batch_first=True)
        self.head = nn.Linear(96, len(WORDS))

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Return the logits of the words."""
        states, _ = self.gru(mels)
        return self.head(states.mean(1))


def keywords(epochs: int = 12) -> Task:
    """A keyword spotter on synthetic speech in noise; the voices of the test are no voices of the training."""
    random = np.random.default_rng(0)

    def spectrogram(word: str, voice: str, speed: int, pitch: int) -> np.ndarray:
        sound = np.zeros(9600, np.float32)
        said = speech(word, voice, speed, pitch)[:9600]
        start = int(random.integers(0, len(sound) - len(said) + 1))
        sound[start : start + len(said)] = said
        sound += random.standard_normal(len(sound)).astype(np.float32) * float(random.uniform(0.005, 0.05))
        return np.log(mel_spectrogram(sound) + 1e-3)

    def spoken(voices: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        ways = [(speed, pitch) for speed in (130, 160, 190) for pitch in (35, 50, 65)]
        found = [
            (spectrogram(word, voice, *way), label)
            for label, word in enumerate(WORDS)
            for voice in voices
            for way in ways
        ]
        return torch.from_numpy(np.stack([one for one, _ in found])), torch.tensor([label for _, label in found])

    x, y = spoken(("en-us+m1", "en-us+m3", "en-us+f1", "en-us+f3", "en-gb+m2"))
    seen, labels = spoken(("en-gb+f4", "en-us+m7", "en-gb-scotland+f2"))
    model = _trained("keywords", KeywordSpotter, x, y, epochs)
    test = [(one[None],) for one in seen]
    calibration = [(one[None],) for one in x[::9]]
    return Task(model, calibration, test, hits(labels.numpy()), accuracy, test[0])
