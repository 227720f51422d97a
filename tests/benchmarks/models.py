"""Models that the benchmarks run on: built here with random weights, small enough for two cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Samples = list[Any]


class Block(nn.Module):
    """A residual block with batch norm, as in ResNet."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network for 64×64 images: 8 blocks, 64 to 256 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3)
        widths = [64, 64, 64, 128, 128, 192, 192, 256, 256]
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*[Block(a, b, 1 if a == b else 2) for a, b in pairs])
        self.head = nn.Linear(256, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class Inverted(nn.Module):
    """An inverted residual with a depthwise convolution, as in MobileNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand, self.expand_bn = nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise, self.depthwise_bn = (
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
        )
        self.project, self.project_bn = nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.expand_bn(self.expand(x)))
        y = F.relu6(self.depthwise_bn(self.depthwise(y)))
        return x + self.project_bn(self.project(y))


def resnet() -> tuple[nn.Module, Samples]:
    """A residual network and two samples of different batch."""
    return ResNet().eval(), [torch.randn(2, 3, 64, 64), torch.randn(3, 3, 64, 64)]


def mobilenet() -> tuple[nn.Module, Samples]:
    """Six inverted residuals and two samples of different batch."""
    layers = [
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.ReLU(),
        *[Inverted(32) for _ in range(6)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ]
    return nn.Sequential(*layers).eval(), [torch.randn(2, 3, 64, 64), torch.randn(3, 3, 64, 64)]


def mlp() -> tuple[nn.Module, Samples]:
    """Three wide linear layers."""
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers).eval(), [torch.randn(8, 256), torch.randn(16, 256)]


def _tokens(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(0, 200, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }


def bert() -> tuple[nn.Module, Samples]:
    """A small BERT classifier; batch and sequence vary."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=200, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    return BertForSequenceClassification(config).eval(), [_tokens(2, 32), _tokens(3, 48)]


def gpt2() -> tuple[nn.Module, Samples]:
    """A small GPT-2 that returns its cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval(), [_tokens(2, 32), _tokens(3, 48)]


def t5() -> tuple[nn.Module, Samples]:
    """A small encoder-decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    samples = [
        {**_tokens(b, n), "decoder_input_ids": torch.randint(0, 200, (b, m))} for b, n, m in ((2, 12, 5), (3, 20, 9))
    ]
    return T5ForConditionalGeneration(config).eval(), samples


def llama() -> tuple[nn.Module, Samples]:
    """A small Llama-like decoder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval(), [_tokens(2, 16), _tokens(3, 24)]


MODELS: dict[str, Callable[[], tuple[nn.Module, Samples]]] = {
    f.__name__: f for f in (resnet, mobilenet, mlp, bert, gpt2, t5, llama)
}


def build(name: str) -> tuple[nn.Module, Samples]:
    """The model and its samples, always with the same random weights."""
    torch.manual_seed(0)
    return MODELS[name]()
