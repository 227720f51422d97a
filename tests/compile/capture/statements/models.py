"""Models of which some lines cannot be captured."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Ends(nn.Module):
    """A layer before the lines in question, and one after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 4)


class SeveralNames(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.positive = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        if x.sum() > 0:
            y = h * 2
            z = self.inner(h)
            self.positive += 1
        else:
            y = -h
            z = h + 1
        return self.last(y + z).softmax(-1)


class Loop(Ends):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        h = self.first(x)
        steps = 0
        while h.norm() > 1:
            h = h * 0.7
            steps += 1
        return self.last(h), steps


class ItemUsedTwice(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        n = int(h.abs().sum().item()) % 5
        k = h[:, : n + 1].sum(1, keepdim=True)
        h = h + k * (1 if n > 2 else 2)
        return self.last(h)


class SelectedRows(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        rows = h[h.sum(1) > 0]
        if rows.shape[0] > 1:
            rows = rows - rows.mean(0)
        return self.last(rows)


class SizeMadeByLines(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if h.sum() > 0:
            rows = h[h.sum(1) > 0]
        else:
            rows = h[h.sum(1) <= 0] + 1
            rows = rows - 1
        return self.last(rows)


def limited(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * scale
    if y.max() > 1:
        y = y / y.max()
    return y + 1


class HelperTwice(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = limited(self.first(x), 2.0)
        return limited(self.last(h), 3.0)


class LoopOverLayers(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
            if x.mean() > 0.0:
                x = torch.relu(x)
            x = x + 1
        return self.last(x)


class EarlyReturn(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        if h.sum() > 50:
            return self.last(h)
        h = h + 1
        return self.last(h)


class NestedResult(Ends):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = self.first(x)
        if h.sum() > 0:
            found = {"a": h, "more": [h + 1, (h.mean(0), None)]}
        else:
            found = {"a": -h, "more": [h - 1, (h.sum(0), None)]}
        return {"y": self.last(found["a"] + found["more"][0]), **found}


class MayBeUnbound(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if x.sum() > 1e9:
            note = "large"
        if x.sum() > 1e9:
            h = h + len(note)
        return self.last(h)


class WritesIntoTensor(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if h.sum() > 0:
            h[h < 0] = 0.5
        return self.last(h)


class Parent(Ends):
    def scaled(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2


class CallsParent(Parent):
    def scaled(self, h: torch.Tensor) -> torch.Tensor:
        h = h + 1
        if h.sum() > 0:
            h = super().scaled(h) + 1
        return h + 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.scaled(self.first(x)))


class ReadsLayer(Ends):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            if x.sum() > 0:
                x = layer(x)
        return self.last(x)


ROWS = [torch.linspace(-1, 1, 8 * n).reshape(n, 8).sin() for n in (4, 6)]
"""Two samples."""


def more_rows() -> list[torch.Tensor]:
    """Rows of other values and sizes, which take the other sides."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 8, generator=generator) * scale for n, scale in ((4, 1), (5, 0.1), (6, 8), (9, 1), (2, -3))]
