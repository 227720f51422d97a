"""Parts that cannot be traced, inside models that can."""

import torch
from torch import nn

from tests.zoo import case, tensors


class ReturnsIterator(nn.Module):
    def forward(self, x):
        return iter(x)


@case(
    tensors((2, 4), (3, 4)),
    [],
    failed=("0",),
    kinds=("iteration over a tensor",),
    symbolic_failed=("0",),
    refused="iterator",
)
def returns_an_iterator():
    return nn.Sequential(ReturnsIterator())


class Numpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.conv(x)
        return torch.from_numpy(y.detach().numpy() * 2)


@case(
    tensors((2, 3, 4, 4), (3, 3, 5, 4)),
    tensors((6, 3, 7, 4)),
    failed=("1",),
    kinds=("numpy call",),
    symbolic_failed=("1",),
)
def numpy_inside():
    return nn.Sequential(nn.Conv2d(3, 3, 1), Numpy(), nn.Flatten())


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x)
        if y.mean() > 100:
            return {"out": y, "aux": None}
        return {"out": self.b(y), "aux": (x.sum(), y)}


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList([Gate(), Gate()])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for gate in self.gates:
            result = gate(x)
            x = result["out"] + result["aux"][1] * result["aux"][0]
        return self.head(x.reshape(x.shape[0], -1, 4).flatten(1))


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("gates.0", "gates.1"),
    kinds=("data-dependent branch", "data-dependent branch"),
    symbolic_failed=("gates.0", "gates.1"),
    leaves=("gates.0", "gates.1"),
)
def two_gates():
    return Gated()


class Speaks(nn.Module):
    def forward(self, x):
        import logging
        import time

        logging.getLogger("model").debug("called %s", time.time())
        return x * 2


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), symbolic_failed=())
def side_effects():
    return nn.Sequential(nn.Linear(4, 4), Speaks())
