"""Networks that are trained here on the text of Python's standard library and of installed packages."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tests.board.entry import NotInstalledError, Outputs, Task, accuracy, hits
from tests.board.layers import Block, Tokens
from tests.board.training import trained

LETTERS = 128


def _codes(text: str) -> np.ndarray:
    """Return the letters as numbers; all that are not of ASCII are one."""
    return np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), LETTERS - 1).astype(np.int64)


def _pieces(codes: np.ndarray, length: int, count: int, seed: int) -> torch.Tensor:
    starts = np.random.default_rng(seed).integers(0, len(codes) - length, count)
    return torch.from_numpy(np.stack([codes[start : start + length] for start in starts]))


class LanguageModel(nn.Module):
    """A GPT over letters."""

    def __init__(self, length: int, width: int = 96, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.tokens = Tokens(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS, bias=False)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next letter at each place."""
        return self.head(self.norm(self.blocks(self.tokens(self.letters(letters)))))


_LENGTH = 96
_UNSEEN = ("argparse.py", "dataclasses.py", "statistics.py", "tarfile.py", "typing.py")


def language_model(epochs: int = 1) -> Task:
    """A language model on Python's standard library; the modules of the test are not in the training."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    read = lambda some: _codes("\n".join(file.read_text(encoding="utf-8", errors="replace") for file in some))  # noqa: E731
    x = _pieces(read([file for file in files if file.name not in _UNSEEN]), _LENGTH + 1, 9600, 0)
    seen = _pieces(read([folder / name for name in _UNSEEN]), _LENGTH + 1, 160, 1)

    def loss(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())

    model = trained("language-model", lambda: LanguageModel(_LENGTH), (x,), epochs, loss, batch=16, rate=4e-3)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        logits = torch.from_numpy(np.concatenate([each[0] for each in results])).double()
        return nn.functional.cross_entropy(logits.mT, seen[:, 1:], reduction="none").mean(1).numpy()

    test = [(piece[None, :-1],) for piece in seen]
    calibration = [(piece[None, :-1],) for piece in x[:64]]
    return Task(model, calibration, test, parts, perplexity, test[0])


def perplexity(rows: np.ndarray) -> float:
    """The perplexity of a letter; rows are mean logarithmic losses of pieces of equal length."""
    return float(np.exp(rows.mean()))


KINDS = (".py", ".h", ".json", ".js", ".css", ".md", ".txt", ".pyi")
_SNIPPET = 192


class FileKind(nn.Module):
    """Convolutions over letters; the largest of each feature is classified."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 32)
        self.layers = nn.Sequential(
            nn.Conv1d(32, width, 5, 1, 2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, 1, 2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, 1, 2), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
            nn.Flatten(), nn.Linear(2 * width, len(KINDS)),
        )  # fmt: skip

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return the logits of the kinds of files."""
        return self.layers(self.letters(letters).transpose(1, 2))


def _files(kind: str, packages: Path, most: int = 160) -> Iterator[np.ndarray]:
    found = [file for file in sorted(packages.rglob(f"*{kind}")) if file.stat().st_size > 2 * _SNIPPET]
    if len(found) < 40:
        raise NotInstalledError(f"{len(found)} files *{kind} in the installed packages, 40 are needed")
    for file in found[:: max(1, len(found) // most)][:most]:
        with file.open("rb") as opened:
            yield _codes(opened.read(20_000).decode("utf-8", "replace"))


def file_kinds(epochs: int = 8) -> Task:
    """Which kind of file is a snippet of? Every fourth file of a kind is in the test."""
    packages = Path(np.__file__).parents[1]
    random = np.random.default_rng(0)
    found: tuple[list[tuple[torch.Tensor, int]], list[tuple[torch.Tensor, int]]] = ([], [])
    for label, kind in enumerate(KINDS):
        for number, codes in enumerate(_files(kind, packages)):
            snippets = _pieces(codes, _SNIPPET, 4, int(random.integers(2**31))) if len(codes) > _SNIPPET else ()
            found[number % 4 == 3].extend((snippet, label) for snippet in snippets)
    (x, y), (seen, labels) = (
        (torch.stack([one for one, _ in some]), torch.tensor([n for _, n in some])) for some in found
    )
    model = trained("file-kinds", FileKind, (x, y), epochs)
    order = random.permutation(len(seen))[:600]
    test = [(seen[index][None],) for index in order]
    calibration = [(piece[None],) for piece in x[:: max(1, len(x) // 64)][:64]]
    return Task(model, calibration, test, hits(labels.numpy()[order]), accuracy, test[0])
