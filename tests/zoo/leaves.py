"""Modules that cannot be in a graph, called and answering in every way: what keeping them as one operator must bear."""

import enum
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

from tests.zoo import case, tensors

Two = namedtuple("Two", "kept rest")
BRANCH = "data-dependent branch"
NUMBER = "item() / Python number from a tensor"
ITERATION = "iteration over a tensor"


def positive(x):
    """A decision on data, which no graph can hold."""
    return x.sum() > 0


@dataclass
class Answer:
    scores: torch.Tensor
    rows: int
    extra: tuple


class Mode(enum.Enum):
    PLAIN = "plain"
    SCALED = "scaled"


class Rich(nn.Module):
    """Takes keywords and an enum, returns nested things of every kind."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, mode=Mode.PLAIN, shift=None, names=frozenset()):
        y = self.linear(x) if positive(x) else x * 2
        y = y * 3 if mode is Mode.SCALED else y
        y = y if shift is None else y + shift
        y = y + 1 if 3 in names else y
        return {"answer": Answer(y, x.shape[0], (None, "text", 0.5)), "pair": Two(y.sum(0), [y.mean()])}


class CallsRich(nn.Module):
    def __init__(self):
        super().__init__()
        self.rich = Rich()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        first = self.rich(x, mode=Mode.SCALED)
        second = self.rich(first["answer"].scores, shift=first["pair"].kept, names={3, 1})
        third = self.rich(second["answer"].scores[None, 0])
        assert first["answer"].extra[1] == "text"
        total = second["answer"].scores * first["answer"].rows + third["pair"].rest[0]
        return self.head(total), third["answer"].rows


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("rich",), kinds=(BRANCH,), leaves=("rich",))
def leaf_with_keywords_and_rich_outputs():
    return CallsRich()


class Flexible(nn.Module):
    """Takes tensors of any rank, or a list of them."""

    def forward(self, x):
        if isinstance(x, list):
            return [part * 2 if positive(part) else part for part in x]
        return x * 2 if positive(x) else -x


class CallsFlexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.flexible = Flexible()

    def forward(self, x):
        a = self.flexible(x)
        b = self.flexible(x[:, :, None].expand(-1, -1, 3))
        c, d = self.flexible([a, b.sum(-1)])
        return self.flexible(c.sum()) + d


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("flexible",), kinds=(BRANCH,), leaves=("flexible",))
def leaf_called_with_other_structures():
    return CallsFlexible()


class Gate(nn.Module):
    def __init__(self, linear=None):
        super().__init__()
        self.linear = linear or nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) if positive(x) else x


class SharesWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.first, self.second = Gate(self.linear), Gate(self.linear)

    def forward(self, x):
        return self.second(self.linear(self.first(x)))


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("first", "second"),
    kinds=(BRANCH, BRANCH),
    leaves=("first", "second"),
)
def leaves_that_share_weights():
    return SharesWeights()


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Gate(), nn.ReLU()])
        self.alias = self.blocks[0]
        self.by_name = nn.ModuleDict({"again": self.alias})

    def forward(self, x):
        return self.by_name["again"](self.blocks[1](self.alias(x)) + self.blocks[0](x))


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("blocks.0",), kinds=(BRANCH,), leaves=("blocks.0",))
def one_leaf_under_three_names():
    return TwoNames()


class Outer(nn.Module):
    """Fails itself, and so does what it calls."""

    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        y = self.gate(x)
        return y if positive(y) else y + 1


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("1", "1.gate"),
    kinds=(BRANCH, BRANCH),
    leaves=("1.gate", "1"),
)
def leaf_inside_a_leaf():
    return nn.Sequential(nn.Linear(4, 4), Outer(), nn.Linear(4, 4))


class NormGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(x)
        return y * 2 if positive(x) else y


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("1",), kinds=(BRANCH,), leaves=("1",))
def leaf_that_updates_batch_norm():
    return nn.Sequential(nn.Linear(4, 4), NormGate(), nn.ReLU()).train()


class Selected(nn.Module):
    """As many rows as the data asks for."""

    def forward(self, x):
        rows = x[x.sum(-1) > 0]
        return rows * 2 if positive(x) else rows, x.nonzero()


class CallsSelected(nn.Module):
    def __init__(self):
        super().__init__()
        self.selected = Selected()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        rows, places = self.selected(x)
        return self.head(rows).relu(), places + 1


@case(tensors((12, 4), (17, 4)), tensors((23, 4)), failed=("selected",), kinds=(BRANCH,), leaves=("selected",))
def leaf_of_a_size_that_data_decides():
    return CallsSelected()


class Counts(nn.Module):
    """Returns a Python number that depends on data."""

    def forward(self, x):
        return int((x > 0).sum().item()) if x.numel() else 0, x * 2


class CallsCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = Counts()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        n, y = self.counts(self.linear(x))
        return y / (n + 1) if n > 3 else y


@case(tensors((6, 4), (9, 4)), tensors((7, 4)), failed=("", "counts"), kinds=(NUMBER, NUMBER), leaves=("counts", ""))
def number_that_data_decides():
    return CallsCounts()


class Tokens(nn.Module):
    """Hands out an iterator over what it computed."""

    def forward(self, x):
        y = x * 2 if positive(x) else x
        return (y[:, i] for i in range(2))


class Consumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = Tokens()

    def forward(self, x):
        return sum(self.tokens(x), x[:, 0])


@case(
    tensors((2, 4), (3, 4)),
    tensors((6, 4)),
    failed=("1.0", "1.0.tokens"),
    kinds=(ITERATION, BRANCH),
    leaves=("1.0.tokens",),
)
def iterator_inside():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Consumes(), nn.ReLU()))


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x) if positive(x.abs()) else x


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("1",), kinds=(BRANCH,), leaves=("1",))
def leaf_that_draws_random_numbers():
    return nn.Sequential(nn.Linear(4, 4), Noise(), nn.Dropout(0.5)).train()


class Nothing(nn.Module):
    """Returns nothing at all; what it does happens to its argument."""

    def forward(self, x):
        if positive(x.abs()):
            x.relu_()


class CallsNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.nothing = Nothing()

    def forward(self, x):
        y = x * 2
        assert self.nothing(y) is None
        return y + 1


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), failed=("nothing",), kinds=(BRANCH,), leaves=("nothing",))
def leaf_that_returns_nothing():
    return CallsNothing()
