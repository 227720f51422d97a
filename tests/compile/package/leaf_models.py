"""Models of which some lines stay in Python; thresholds are far from any sample's value."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Branching(nn.Module):
    """A branch in the root's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        if x.sum() > 0.5:
            y = h * 2
            y = y - 1
        else:
            y = -h + 1
        return self.last(y)


def limited(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * scale
    while y.abs().max() > 1.5:
        y = y / 2
    return y


class Gate(nn.Module):
    def forward(self, x: torch.Tensor, *, mode: str = "plain") -> Any:
        kept = x[x.sum(1) > 0.25]
        count = int(kept.shape[0])
        return {"kept": kept if mode == "plain" else kept * count, "all": x}


class Several(nn.Module):
    """Leaves in a list of modules, one class called twice, in a helper, and of a size that data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList([Gate(), Gate()])
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = limited(x, 3.0)
        first = self.gates[0](y, mode="counted")
        second = self.gates[1](self.gates[1](y)["all"] + 1)
        return self.last(first["kept"]), self.last(second["kept"])

    def load_secret(self, path: str) -> str:
        """Nothing that a forward leads to."""
        text = open(path).read()  # noqa: SIM115
        if text:
            text = text.strip()
        return text


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        y = torch.relu(self.inner(x))
        return (y if mask is None else y * mask), {"mean": y.mean(-1, keepdim=True)}


class WithBlock(nn.Module):
    """A block that can be exported, called twice with other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = Block(), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, info = self.block(x)
        z, _ = self.block(y, mask=info["mean"])
        result: torch.Tensor = self.last(z)
        return result


class Changing(nn.Module):
    """A leaf that returns another structure for some values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.inner(x)
        rows = [row for row in y if bool(x.sum() > -100.0)] or [y[0] * 0]
        return self.last(torch.stack(rows))


class Held:
    """What JSON cannot hold, and no model knows by name."""


class WithObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.last, self.held = Taking(), nn.Linear(8, 3), Held()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.block(x, self.held))
        return result


class Taking(nn.Module):
    def forward(self, x: torch.Tensor, held: Held) -> torch.Tensor:
        return x + float(x.sum().item() > 1) if isinstance(held, Held) else x
