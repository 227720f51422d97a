"""Networks that are trained here on real tables and series, of scikit-learn and statsmodels."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from tests.board.entry import Outputs, Task
from tests.board.layers import Block
from tests.board.shipped import area_under_curve, installed_file
from tests.board.training import classification, trained


class TabularTransformer(nn.Module):
    """FT-Transformer: a token for each column, and one whose result is classified."""

    def __init__(self, columns: int, classes: int, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randn(columns, width) / width**0.5)
        self.shifts = nn.Parameter(torch.randn(columns, width) / width**0.5)
        self.answer = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits for rows of shape (batch, columns)."""
        tokens = x[:, :, None] * self.scales + self.shifts
        tokens = torch.cat([self.answer.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


def _columns(x: np.ndarray, count: int) -> torch.Tensor:
    """Return columns with the mean 0 and the deviation 1 in the first rows, which are those of the training."""
    known = x[:count]
    return torch.from_numpy(((x - known.mean(0)) / (known.std(0) + 1e-9)).clip(-4, 4)).float()


def breast_cancer(epochs: int = 20) -> Task:
    """A tabular transformer on scikit-learn's table of tumours."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = _columns(data.data[order], 300), torch.from_numpy(data.target[order])
    make = lambda: TabularTransformer(x.shape[1], 2)  # noqa: E731
    model = trained("breast-cancer", make, (x[:300], y[:300]), epochs, classification, batch=32, rate=1e-3)
    labels = y[300:].double().numpy()

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        logits = np.concatenate([each[0] for each in results])
        return np.stack([logits[:, 1] - logits[:, 0], labels], 1)

    calls = [(row[None],) for row in x]
    return Task(model, calls[:64], calls[300:], parts, area_under_curve, calls[300])


class TableNetwork(nn.Module):
    """Residual layers over a row of a table."""

    def __init__(self, columns: int, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(columns, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.last = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for each row."""
        found = self.first(x)
        for block in self.blocks:
            found = found + block(found)
        return self.last(found)[:, 0]


def correlation(rows: np.ndarray) -> float:
    """Pearson's correlation; rows are (found, wanted)."""
    return float(np.corrcoef(rows.T)[0, 1])


def diabetes(epochs: int = 12) -> Task:
    """A residual network that predicts the progress of diabetes."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = _columns(data.data[order], 260), _columns(data.target[order][:, None], 260)[:, 0]
    loss = lambda model, rows, wanted: nn.functional.mse_loss(model(rows), wanted)  # noqa: E731
    make = lambda: TableNetwork(x.shape[1])  # noqa: E731
    model = trained("diabetes", make, (x[:260], y[:260]), epochs, loss, batch=32, rate=2e-3)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        return np.stack([np.concatenate([each[0] for each in results]), y[260:].numpy()], 1).astype(np.float64)

    calls = [(row[None],) for row in x]
    return Task(model, calls[:64], calls[260:], parts, correlation, calls[260])


class Forecaster(nn.Module):
    """Dilated convolutions that see two years of weeks and give the half year after them."""

    def __init__(self, width: int = 32, ahead: int = 26) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, dilation in ((1, 1), (width, 2), (width, 4), (width, 8)):
            layers += [nn.Conv1d(before, width, 5, 1, 2 * dilation, dilation), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AvgPool1d(4), nn.Flatten(), nn.Linear(width * 26, ahead))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weeks after those of shape (batch, 104), as differences from the last one."""
        last = x[:, -1:]
        return last + self.layers((x - last)[:, None])


def carbon_dioxide(epochs: int = 40) -> Task:
    """A forecast of the carbon dioxide over Mauna Loa; the years of the test come after those of the training."""
    with installed_file("statsmodels", "datasets/co2/co2.csv", "statsmodels").open(newline="") as file:
        cells = [row[1] for row in csv.reader(file)][1:]
    values = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    known = ~np.isnan(values)
    values = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])  # weeks without a value
    windows = torch.from_numpy(np.lib.stride_tricks.sliding_window_view(values, 130).copy()).float()
    x, y = windows[:, :104] / 10 - 34, windows[:, 104:] / 10 - 34
    loss = lambda model, before, after: nn.functional.smooth_l1_loss(model(before), after, beta=0.1)  # noqa: E731
    count = len(x) * 2 // 3
    model = trained("carbon-dioxide", Forecaster, (x[:count], y[:count]), epochs, loss, rate=3e-3)
    first = count + 130  # no week of the test is one of the training

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        found = np.concatenate([each[0] for each in results]).astype(np.float64)
        return np.abs(found - y[first::3].numpy()).mean(1) * 10

    calls = [(window[None],) for window in x]
    return Task(model, calls[:count:20], calls[first::3], parts, lambda rows: float(rows.mean()), calls[first])
