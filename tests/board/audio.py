"""Speech for the board: synthesised by espeak-ng, its spectrogram, and sounds of known pitch."""

from __future__ import annotations

import functools
import io
import shutil
import subprocess
import wave

import numpy as np
from scipy.signal import resample_poly

from tests.board.entry import NotInstalledError

RATE = 16000


def check_espeak() -> None:
    """Raise NotInstalledError unless espeak-ng is there."""
    if shutil.which("espeak-ng") is None:
        raise NotInstalledError("espeak-ng, which speaks the data, is not installed (apt-get install espeak-ng)")


@functools.cache
def speech(text: str, voice: str = "en", speed: int = 160, pitch: int = 50) -> np.ndarray:
    """Return what espeak-ng says, as numbers from -1 to 1 at 16 kHz."""
    check_espeak()
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(data)) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    found: np.ndarray = resample_poly(sound.astype(np.float64) / 2**15, RATE, rate).astype(np.float32)
    return found


def mel_spectrogram(sound: np.ndarray, window: int = 400, hop: int = 160, bands: int = 40) -> np.ndarray:
    """Return the power in bands on Slaney's mel scale, of shape (frames, bands), as librosa computes it."""
    padded = np.pad(sound, window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop] * np.hanning(window + 1)[:-1]
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    return (power @ mel_filters(window, bands).T).astype(np.float32)


@functools.cache
def mel_filters(window: int, bands: int) -> np.ndarray:
    """Return triangles on Slaney's mel scale, of shape (bands, frequencies)."""
    frequencies = np.fft.rfftfreq(window, 1 / RATE)
    edges = _hertz(np.linspace(0.0, _mel(RATE / 2), bands + 2))
    rises = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falls = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    filters: np.ndarray = np.maximum(0, np.minimum(rises, falls)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return filters


def _mel(hertz: float) -> float:
    # Slaney's scale is linear up to 1000 Hz, then logarithmic
    return float(hertz / (200 / 3) if hertz < 1000 else 15 + np.log(hertz / 1000) / (np.log(6.4) / 27))


def _hertz(mels: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    return found


def tone(frequency: float, count: int, random: np.random.Generator, noise: float = 0.05) -> np.ndarray:
    """Return a sound of this pitch with random harmonics and noise."""
    time = np.arange(count) / RATE
    harmonics = np.arange(1, 9)
    strengths = random.uniform(0.1, 1, 8) / harmonics
    phases = random.uniform(0, 2 * np.pi, 8)
    waves = np.sin(2 * np.pi * frequency * harmonics[:, None] * time + phases[:, None])
    found: np.ndarray = (strengths @ waves + noise * random.standard_normal(count)).astype(np.float32)
    return found
