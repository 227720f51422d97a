"""Small networks, each with a way of using channels that pruning must understand, or say that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BATCH = {0: torch.export.Dim("batch")}


class Residual(nn.Module):
    """Channels that meet in additions, and a block whose shortcut has a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.one = _Block(16, 16)
        self.two = _Block(16, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.two(self.one(F.relu(self.norm(self.stem(x)))))
        return self.head(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class Depthwise(nn.Module):
    """Inverted residuals with a gate over channels, as in mobile networks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.n1 = nn.Conv2d(8, 32, 1), nn.BatchNorm2d(32)
        self.deep, self.n2 = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.down, self.n3 = nn.Conv2d(32, 8, 1), nn.BatchNorm2d(8)
        self.multiplied = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.stem(x))
        y = F.relu6(self.n2(self.deep(F.relu6(self.n1(self.up(x))))))
        y = y * self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))).sigmoid()
        return self.head(self.multiplied(x + self.n3(self.down(y)))).amax((2, 3))


class Dense(nn.Module):
    """Channels side by side: each layer reads those of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 8 * i, 8, 3, padding=1) for i in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 8 * i) for i in range(3))
        self.first, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(28, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = torch.cat([x, layer(F.relu(norm(x)))], 1)
        return self.head(F.max_pool2d(x, 2)).flatten(1).mean(1, keepdim=True)


class Grouped(nn.Module):
    """Convolutions in few and in many groups, and norms over groups of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.few = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 24, 3, groups=2)
        self.norm = nn.GroupNorm(6, 24)
        self.b, self.many = nn.Conv2d(24, 32, 1), nn.Conv2d(32, 32, 3, groups=16)
        self.head = nn.Conv2d(32, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.norm(self.few(self.a(x))))
        return self.head(F.silu(self.many(self.b(x)))).mean((-1, -2))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and what was before beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.join, self.head = nn.Conv2d(20, 8, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.avg_pool2d(one, 2)))
        up = F.interpolate(self.up(two), size=one.shape[2:], mode="bilinear")
        return self.head(F.relu(self.join(torch.cat([up, one], 1))))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5).softmax(-1)
        return self.out((scores @ v).transpose(1, 2).reshape(b, t, c))


class Transformer(nn.Module):
    """Fused queries, keys and values; a table of embeddings that is also the head; torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.place = nn.Parameter(torch.randn(1, 1, 32))
        self.attention, self.torchs = _Attention(32, 4), nn.MultiheadAttention(32, 4, batch_first=True)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(32) for _ in range(3))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.gate, self.value, self.back = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.place
        y = self.n1(x)
        x = x + self.attention(y)
        y = self.n2(x)
        x = x + self.torchs(y, y, y)[0]
        y = self.n3(x)
        x = x + self.down(F.gelu(self.up(y))) + self.back(F.silu(self.gate(y)) * self.value(y))
        return F.linear(x, self.table.weight)


class Rotary(nn.Module):
    """Fewer heads of keys than of queries, turned by position, in torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.o, self.first, self.head = nn.Linear(32, 32), nn.Linear(6, 32), nn.Linear(32, 3)
        self.register_buffer("angles", torch.randn(1, 1, 1, 8))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * self.angles.cos() + torch.cat([-right, left], -1) * self.angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (e[:, :, None].expand(-1, -1, 2, -1, -1).reshape(b, 4, t, 8) for e in (self.turned(k), v))
        y = F.scaled_dot_product_attention(self.turned(q), k, v, is_causal=True)
        return self.head(self.o(y.transpose(1, 2).flatten(2)) + x)


class BesideLstm(nn.Module):
    """A recurrent layer, whose channels are not followed, between layers that can be pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.lstm = nn.Linear(6, 12), nn.LSTM(12, 10, batch_first=True)
        self.middle, self.head = nn.Linear(10, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(self.before(x))
        return self.head(F.relu(self.middle(y[:, -1])))


class Flattened(nn.Module):
    """Places and channels in one dim before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True)
        self.one, self.two = nn.Linear(8 * 9, 20), nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.two(F.glu(torch.cat([self.one(x.flatten(1))] * 2, 1)))


class Shuffled(nn.Module):
    """Channels that become places, and a layer whose output is sorted over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.c, self.head = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(F.pixel_shuffle(self.a(x), 2)).relu()
        return self.head(self.c(x).sort(1).values)


class Shared(nn.Module):
    """One layer that is called twice, so that its inputs and outputs are the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head(self.twice(self.twice(x).relu()).relu() + x)


Case = tuple[nn.Module, torch.Tensor, dict[int, Any], list[torch.Tensor]]


def _images(model: Callable[[], nn.Module], size: int = 8) -> Callable[[], Case]:
    return lambda: (model(), torch.randn(2, 3, size, size), BATCH, [torch.randn(5, 3, size, size)])


def _rows(model: Callable[[], nn.Module]) -> Callable[[], Case]:
    return lambda: (model(), torch.randn(2, 6), BATCH, [torch.randn(7, 6)])


def _steps(model: Callable[[], nn.Module]) -> Callable[[], Case]:
    return lambda: (model(), torch.randn(2, 5, 6), BATCH, [torch.randn(3, 5, 6)])


def _tokens() -> Case:
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    return Transformer(), torch.randint(50, (2, 5)), sizes, [torch.randint(50, (3, 9))]


ZOO: dict[str, Callable[[], Case]] = {
    "residual": _images(Residual),
    "depthwise": _images(Depthwise),
    "dense": _images(Dense),
    "grouped": _images(Grouped),
    "unet": _images(UNet),
    "transformer": _tokens,
    "rotary": _steps(Rotary),
    "lstm": _steps(BesideLstm),
    "flattened": _images(Flattened),
    "shuffled": _images(Shuffled),
    "shared": _rows(Shared),
}
