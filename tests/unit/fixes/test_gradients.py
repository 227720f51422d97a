"""A change that gives the same values is refused where a gradient is another, or is there no longer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from prepbench.fixes.proof import observe, prove
from prepbench.inputs import Sample


class Scaled(nn.Module):
    """Multiplies by its weight as it is told to."""

    def __init__(self, product: Callable[[torch.Tensor, nn.Parameter], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.product = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3)), product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, self.weight) + self.bias


PRODUCTS: dict[str, tuple[Callable[[torch.Tensor, nn.Parameter], torch.Tensor], bool]] = {
    "in another order": (lambda x, weight: weight * x, True),
    "without a gradient": (lambda x, weight: x * weight.detach(), False),
    "with another gradient": (lambda x, weight: x * (2 * weight - weight.detach()), False),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_are_compared(name: str) -> None:
    product, is_right = PRODUCTS[name]
    samples = [Sample((torch.arange(1.0, 4.0),), {}, 0)]
    proof = prove(Scaled(product), observe(Scaled(lambda x, weight: x * weight), samples))
    assert (proof.problem == "") == is_right, proof.problem
    assert is_right or "gradient" in proof.problem
