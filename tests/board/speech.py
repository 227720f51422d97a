"""Networks that are trained here on speech that espeak-ng synthesises."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from tests.board.audio import check_espeak, mel_spectrogram, speech
from tests.board.entry import Outputs, Task, accuracy, hits
from tests.board.shipped import SENTENCES
from tests.board.training import trained

WORDS = ("yes", "no", "up", "down", "left", "right", "stop", "go", "on", "off", "seven", "house")
_VOICES = ("en-us+m1", "en-us+m3", "en-us+f1", "en-us+f3", "en-gb+m2")
_UNSEEN = ("en-gb+f4", "en-us+m7", "en-gb-scotland+f2")


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
    check_espeak()
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

    x, y = spoken(_VOICES)
    seen, labels = spoken(_UNSEEN)
    model = trained("keywords", KeywordSpotter, (x, y), epochs)
    test = [(one[None],) for one in seen]
    calibration = [(one[None],) for one in x[::9]]
    return Task(model, calibration, test, hits(labels.numpy()), accuracy, test[0])


class Enhancer(nn.Module):
    """Conv-TasNet in small: learned bands, a mask of dilated convolutions, and back to a wave."""

    def __init__(self, bands: int = 128, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.bands = nn.Conv1d(1, bands, 32, 16, bias=False)
        self.enter = nn.Conv1d(bands, width, 1)
        self.blocks = nn.ModuleList(_dilated(width, 2**index) for index in range(depth))
        self.mask = nn.Conv1d(width, bands, 1)
        self.wave = nn.ConvTranspose1d(bands, 1, 32, 16, bias=False)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Return the speech in sounds of shape (batch, samples)."""
        bands = self.bands(sound[:, None]).relu()
        found = self.enter(bands)
        for block in self.blocks:
            found = found + block(found)
        return self.wave(bands * self.mask(found).sigmoid())[:, 0]


def _dilated(width: int, dilation: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(width, 2 * width, 1), nn.BatchNorm1d(2 * width), nn.PReLU(),
        nn.Conv1d(2 * width, 2 * width, 3, 1, dilation, dilation, 2 * width), nn.BatchNorm1d(2 * width), nn.PReLU(),
        nn.Conv1d(2 * width, width, 1),
    )  # fmt: skip


def _ratio(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the ratio of speech to what is wrong, in dB, whatever the loudness."""
    scale = (found * wanted).sum(1, keepdim=True) / (wanted.square().sum(1, keepdim=True) + 1e-8)
    right = scale * wanted
    return 10 * ((right.square().sum(1) + 1e-8) / ((found - right).square().sum(1) + 1e-8)).log10()


def enhancement(epochs: int = 5) -> Task:
    """A network that takes noise out of speech; the voices of the test are no voices of the training."""
    check_espeak()
    random = np.random.default_rng(0)
    samples = 8192

    def spoken(texts: Sequence[str], voices: Sequence[str], count: int) -> tuple[torch.Tensor, torch.Tensor]:
        clean = []
        for number in range(count):
            said = speech(texts[number % len(texts)], voices[number % len(voices)])
            start = int(random.integers(1600, len(said) - samples - 1600))
            clean.append(said[start : start + samples] / (np.abs(said).max() + 1e-6))
        wanted = torch.from_numpy(np.stack(clean))
        noise = np.cumsum(random.standard_normal((count, samples)), 1)
        noise = noise - np.apply_along_axis(np.convolve, 1, noise, np.ones(32) / 32, "same")  # without the lowest
        noise = noise / noise.std(1, keepdims=True) * random.uniform(0.03, 0.15, (count, 1))
        return wanted + torch.from_numpy(noise.astype(np.float32)), wanted

    x, y = spoken(SENTENCES[:5], _VOICES, 480)
    seen, wanted = spoken(SENTENCES[5:], _UNSEEN, 120)
    loss = lambda model, noisy, clean: -_ratio(model(noisy), clean).mean()  # noqa: E731
    model = trained("enhancement", Enhancer, (x, y), epochs, loss, batch=12, rate=3e-3)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        return _ratio(torch.from_numpy(np.concatenate([each[0] for each in results])), wanted).double().numpy()

    test = [(one[None],) for one in seen]
    return Task(model, [(one[None],) for one in x[:64]], test, parts, lambda rows: float(rows.mean()), test[0])
