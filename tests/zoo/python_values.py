"""Python numbers, ``len``, ``math``, unpacking and iteration."""

import math

import torch
from torch import nn

from tests.zoo import case, tensors


class Unpacks(nn.Module):
    def forward(self, x):
        a, b = x
        rows, columns = x.size()
        rest = [r * 2 for r in x]
        return a + b + sum(r for r in x), x.view(columns, rows), torch.stack(rest)


@case(tensors((2, 4), (2, 5)), tensors((2, 7)), symbolic_failed=("",), bounded=("x.shape[1]",))
def unpacking_and_iteration():
    return Unpacks()


class Numbers(nn.Module):
    def forward(self, x):
        n = len(x)
        y = x / math.sqrt(x.shape[-1]) / n
        if x.shape[0] in (1, 100):
            y = y * 0
        return y.reshape(n * x.shape[1])


@case(tensors((2, 4), (3, 6)), tensors((5, 9)), symbolic_failed=("",), bounded=("x.shape[0]",))
def numbers_from_shapes():
    return Numbers()


class Factories(nn.Module):
    def forward(self, x):
        n, m = x.shape
        x = x + torch.arange(n, device=x.device)[:, None] + torch.zeros(n, m) + torch.full((n, m), 2.0)
        return x @ torch.eye(m) + torch.linspace(0, 1, 4)[-1] + torch.ones_like(x)


@case(tensors((2, 4), (3, 6)), tensors((5, 9)))
def factories_of_any_size():
    return Factories()


class ItemScale(nn.Module):
    def forward(self, x):
        return x / x.abs().max().item(), x[:, : (x.shape[1] + 1) // 2]


@case(tensors((2, 4), (3, 6)), tensors((5, 9)), bounded=("x.shape[1]",))
def item_as_operand():
    return ItemScale()


class BooleanMask(nn.Module):
    def forward(self, x):
        kept = x[x > 0]
        return kept * 2, (x > 0).nonzero(), kept.new_zeros(kept.shape[0])


@case(tensors((2, 4), (3, 6)), tensors((5, 9)))
def sizes_from_data():
    return BooleanMask()


class Reflected(nn.Module):
    def forward(self, x):
        y = 1 - x + 2**x + 7.1 / (x.abs() + 1) + (3 // (x.abs() + 1)) + x % 2 - (-x)
        return y, x > 0, ~(x > 0) | (x < 1), abs(x), round(y.sum().shape.numel())


@case(tensors((2, 4), (3, 4)), tensors((5, 4)))
def operators_in_every_order():
    return Reflected()
