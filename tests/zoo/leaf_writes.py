"""Modules that cannot be in a graph and write: into arguments, through views, into state that they keep."""

import torch
from torch import nn

from tests.zoo import case, tensors
from tests.zoo.leaves import BRANCH, positive

MUTATION = "mutation"


class WritesArgument(nn.Module):
    def forward(self, x, memory):
        memory[:, 0] = x[:, 0]
        if positive(x):
            memory.add_(1)
        return x * 2


class CallsWriter(nn.Module):
    def __init__(self):
        super().__init__()
        self.writer = WritesArgument()

    def forward(self, x):
        memory = torch.zeros_like(x)
        y = self.writer(x, memory)
        z = self.writer(y, memory[:, 1:])
        return y + z, memory


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("writer",), kinds=(BRANCH,), leaves=("writer",))
def leaf_that_writes_into_its_arguments():
    return CallsWriter()


class WritesInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.writer = WritesArgument()

    def forward(self, x, memory):
        return self.writer(x, memory) + memory


@case(
    [(x, x * 2) for x in tensors((2, 4), (3, 4))],
    [(x, x * 2) for x in tensors((6, 4))],
    failed=("writer",),
    kinds=(BRANCH,),
    leaves=("writer",),
)
def leaf_that_writes_into_the_callers_tensor():
    return WritesInput()


class MaybeView(nn.Module):
    """Returns a view of its input."""

    def forward(self, x):
        return x[:, :2] if positive(x.abs()) else x[:, 2:]


class WritesThroughView(nn.Module):
    def __init__(self):
        super().__init__()
        self.view = MaybeView()

    def forward(self, x):
        x = x * 1
        part = self.view(x)
        part.mul_(10)
        return x + 1


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("view",),
    kinds=(BRANCH,),
    leaves=("",),
)
def write_through_the_view_a_leaf_returns():
    return WritesThroughView()


class MaybeSame(nn.Module):
    def forward(self, x):
        return x if positive(x.abs()) else x + 0


class WritesThroughSame(WritesThroughView):
    def __init__(self):
        super().__init__()
        self.view = MaybeSame()


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("view",), kinds=(BRANCH,), leaves=("",))
def write_into_the_input_a_leaf_returns():
    return WritesThroughSame()


class Remembers(nn.Module):
    """Appends to a list that its caller owns."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, cache):
        y = self.linear(x) if positive(x) else x
        cache.append(y)
        return y.sum(0, keepdim=True) + x


class HasCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Remembers(), Remembers()])

    def forward(self, x):
        cache = []
        for step in self.steps:
            x = step(x, cache)
        return torch.cat(cache, dim=-1), x


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("", "steps.0", "steps.1"),
    kinds=(MUTATION, BRANCH, BRANCH),
    leaves=("steps.0", "steps.1"),
)
def leaf_that_grows_a_cache():
    return HasCache()


class OneTensorTwice(nn.Module):
    """The same tensor in two arguments, one of which is written."""

    def __init__(self):
        super().__init__()
        self.writer = WritesArgument()

    def forward(self, x):
        y = x * 3
        return self.writer(y, y) + y


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("writer",), kinds=(BRANCH,), leaves=("writer",))
def leaf_given_one_tensor_twice():
    return OneTensorTwice()
