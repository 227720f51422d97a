"""``nn.Transformer`` and its stacks with masks: torch asks values of a mask for a hint, which no graph needs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb

mask_of = nn.Transformer.generate_square_subsequent_mask


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=mask_of(x.shape[1]))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return self.both(x, y, tgt_mask=mask_of(y.shape[1]), **masks)


class Given(Encoder):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x, mask=mask)


def encoded(batch: int, length: int, _: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length, 16),)


def translated(batch: int, length: int, other: int) -> tuple[torch.Tensor, ...]:
    padding = torch.arange(length)[None] >= torch.arange(length - batch + 1, length + 1)[:, None]
    return torch.randn(batch, length, 16), torch.randn(batch, other, 16), padding


def given(batch: int, length: int, other: int) -> tuple[torch.Tensor, ...]:
    mask = mask_of(length) if other % 2 else torch.randn(length, length)
    return torch.randn(batch, length, 16), mask


CASES = {"encoder": (Encoder, encoded), "both": (Both, translated), "given": (Given, given)}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_every_mask(name: str) -> None:
    kind, made = CASES[name]
    model = kind().eval()
    program = pb.capture(model, [made(2, 8, 5), made(3, 12, 7)]).program.module()
    for sizes in ((1, 4, 9), (4, 15, 4)):
        inputs = made(*sizes)
        torch.testing.assert_close(program(*inputs), model(*inputs), atol=1e-5, rtol=1e-5)


class CausalFrom(nn.Module):
    """Asks a size whether attention is causal, which a single token need not be."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=x.shape[1] > self.least)


def test_a_size_may_say_whether_attention_is_causal() -> None:
    samples = [torch.randn(2, 6, 4), torch.randn(3, 9, 4)]
    for least, refused in ((1, ()), (3, (1, 2, 3))):
        model = CausalFrom(least)
        compiled = pb.compile_model(
            model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(), discard_input_model=False
        )
        for length in (1, 2, 3, 4, 7):
            x = torch.randn(2, length, 4)
            if length in refused:
                with pytest.raises(pb.errors.ConditionError, match="at least 4"):
                    compiled(x)
            else:
                torch.testing.assert_close(compiled(x), model(x))
