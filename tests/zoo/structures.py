"""Inputs and outputs that are not one tensor."""

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

from tests.zoo import case, tensors

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    logits: torch.Tensor
    extra: list
    loss: torch.Tensor | None = None


class Cache:
    """An object that torch knows nothing about."""

    def __init__(self):
        self.items = []

    def push(self, x):
        self.items.append(x)
        return torch.cat(self.items, dim=1)


class Varargs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 4, 1)
        self.b = nn.Conv2d(3, 4, 1)

    def forward(self, *inputs):
        return self.a(inputs[0]) + self.b(inputs[1])


@case(
    [tuple(tensors((2, 3, 4, 4), (2, 3, 4, 4))), tuple(tensors((3, 3, 4, 4), (3, 3, 4, 4)))],
    [tuple(tensors((5, 3, 4, 4), (5, 3, 4, 4)))],
)
def any_number_of_inputs():
    return Varargs()


class Keywords(nn.Module):
    def forward(self, x, *, bias, **options):
        return x * options.get("scale", 2) + bias


@case(
    [{"x": x, "bias": x[0], "scale": 3.0} for x in tensors((2, 4), (3, 4))],
    [{"x": x, "bias": x[0], "scale": 3.0} for x in tensors((6, 4))],
)
def keywords_only():
    return Keywords()


class Nested(nn.Module):
    def forward(self, batch, past=None):
        total = batch["a"] + batch["b"][0] + batch["b"][1]
        return {"total": total, "none": None, "pair": Pair(total * 2, total.sum()), "size": total.shape[0]}


@case(
    [({"a": a, "b": [a, a * 2]},) for a in tensors((2, 4), (3, 4))],
    [({"a": a, "b": [a, a * 2]},) for a in tensors((6, 4))],
)
def nested_dictionaries():
    return Nested()


class Objects(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        cache = Cache()
        cache.push(x)
        both = cache.push(self.linear(x))
        return Result(both, [x.sum(), cache]), torch.max(both, dim=1)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def own_classes_in_the_output():
    return Objects()


class Passthrough(nn.Module):
    def forward(self, x, y):
        return y, x, 3


@case([tuple(tensors((2, 4), (2, 5))), tuple(tensors((3, 4), (3, 5)))], [tuple(tensors((6, 4), (6, 5)))])
def inputs_returned():
    return Passthrough()
