"""Layers that several networks of the board share."""

from __future__ import annotations

import torch
from torch import nn


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


class Inverted(nn.Module):
    """A block of MobileNetV2, or of EfficientNet: with another activation and a gate for each channel."""

    def __init__(
        self, before: int, after: int, stride: int, activation: type[nn.Module] = nn.ReLU6, *, gated: bool = False
    ) -> None:
        super().__init__()
        wide = 6 * before
        self.body = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), activation(),
            *([Gate(wide)] if gated else []),
            nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.adds = stride == 1 and before == after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return x + self.body(x) if self.adds else self.body(x)


class Gate(nn.Module):
    """Squeeze and excitation: each channel times a factor that the means of all channels give."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        few = channels // 8
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), nn.SiLU(), nn.Conv2d(few, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated channels."""
        return x * self.layers(x)


class Block(nn.Module):
    """A block of a transformer, with the norms first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result for tokens of shape (batch, tokens, width)."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(found.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


class Tokens(nn.Module):
    """Adds a learned number for each place to tokens of shape (batch, tokens, width)."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, count, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens with their places."""
        return x + self.places


class UNet(nn.Module):
    """Two levels down and up, with the shallow results beside the deep ones."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.first, self.second = _twice(inputs, width), _twice(width, 2 * width)
        self.deep = _twice(2 * width, 4 * width)
        self.up2, self.back2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _twice(4 * width, 2 * width)
        self.up1, self.back1 = nn.ConvTranspose2d(2 * width, width, 2, 2), _twice(2 * width, width)
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return maps of the size of the images."""
        first = self.first(x)
        second = self.second(nn.functional.max_pool2d(first, 2))
        deep = self.deep(nn.functional.max_pool2d(second, 2))
        found = self.back2(torch.cat([second, self.up2(deep)], 1))
        found = self.back1(torch.cat([first, self.up1(found)], 1))
        return self.last(found)


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip
