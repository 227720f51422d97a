"""Control flow on values, shapes, types and flags."""

import torch
from torch import nn

from tests.zoo import case, tensors


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)

    def forward(self, x):
        if x.sum() > 0:
            return self.linear(x)
        return torch.zeros(10)


@case(
    tensors((2, 10), (3, 10)),
    [],
    failed=("",),
    kinds=("data-dependent branch",),
    symbolic_failed=("",),
    leaves=("",),
    bounded=("x.shape[0]",),
)
def branch_on_values():
    return TwoBranches()


@case(
    [torch.ones(2, 10), -torch.ones(3, 10)],
    [],
    failed=("",),
    kinds=("data-dependent branch",),
    symbolic_failed=("",),
    refused="neither exported nor kept as one operator.*runs it in Python",
)
def branches_of_two_ranks():
    return TwoBranches()


class Masked(TwoBranches):
    def forward(self, x):
        return self.linear(x) * (x.sum() > 0)


@case(tensors((2, 10), (3, 10)), tensors((1, 10), (7, 10)), symbolic_failed=())
def branch_as_product():
    return Masked()


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)

    def forward(self, x, test_flag=False):
        if test_flag:
            x = x + 1
        return self.conv(x)


@case(tensors((2, 3, 8, 8), (3, 3, 9, 8)), tensors((1, 3, 12, 8)), symbolic_failed=())
def flag_with_default():
    return Flagged()


@case([(x, {"test_flag": True}) for x in tensors((2, 3, 8, 8))], [])
def flag_given():
    return Flagged()


class ShapeBranch(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.second = nn.Conv2d(3, 3, 1)
        if inner is not None:
            self.more = inner

    def forward(self, q):
        o = self.first(q) + self.second(q)
        if hasattr(self, "more"):
            o = self.more(o)
        return 2 * o if q.shape[0] > 10 else o


@case(
    tensors((2, 3, 4, 4), (3, 3, 4, 4)),
    tensors((1, 3, 4, 4), (9, 3, 4, 4)),
    symbolic_failed=("1", "1.more"),
)
def branch_on_shape():
    return nn.Sequential(nn.Conv2d(3, 3, 1), ShapeBranch(ShapeBranch()), nn.Conv2d(3, 3, 1))


class RootShapeBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
        self.right = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

    def forward(self, x):
        out = self.left(x)
        if out.shape[0] > 10:
            return self.right(out)
        return self.right(out)


@case(tensors((2, 3, 4, 4), (3, 3, 4, 4)), tensors((5, 3, 4, 4)), symbolic_failed=("",))
def root_branches_on_shape():
    return RootShapeBranch()


class TypeBranch(nn.Module):
    def forward(self, x):
        return x * 2 if isinstance(x, torch.Tensor) else x


@case(tensors((2, 4), (3, 4)), tensors((5, 4)), symbolic_failed=())
def branch_on_type():
    return TypeBranch()


class Recurrence(nn.Module):
    def forward(self, x):
        o = x[:, 0]
        for i in range(x.shape[1]):
            o = 0.5 * o + x[:, i]
        return o


@case(tensors((3, 4), (3, 6)), tensors((3, 5)), assumes="x.size(1) == 4", symbolic_failed=("",))
def loop_over_a_size():
    return Recurrence()


class TryView(nn.Module):
    def forward(self, x):
        try:
            return x.view(-1, 3)
        except RuntimeError:
            return x


@case(tensors((2, 4)), [], leaves=("",))
def try_and_except():
    return TryView()


class AsksForType(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        if type(y) is torch.Tensor and type(self.linear.weight) is nn.Parameter and isinstance(type(y), type):
            return y * 2
        return y


@case(tensors((2, 3), (3, 3)), tensors((1, 3), (5, 3)), symbolic_failed=())
def type_of_tensor():
    return AsksForType()
