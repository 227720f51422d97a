"""Models that keep Python values between calls: meters, logs, counters, in every kind of place."""

import collections
import dataclasses
import random
import types

import numpy as np
from torch import nn

from tests.zoo import case, tensors


class Meter:
    """An average over all calls, printed as training loops do."""

    def __init__(self):
        self.values, self.total, self.text = [], 0.0, ""

    def update(self, value):
        self.values.append(value)
        self.total += value
        self.text = f"{self.total / len(self.values)}"


class Slotted:
    __slots__ = ("last", "values")

    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)
        self.last = value


@dataclasses.dataclass
class Counts:
    calls: int = 0
    rows: int = 0
    by_rank: dict = dataclasses.field(default_factory=dict)

    def update(self, x):
        self.calls += 1
        self.rows = self.rows + x.shape[0]
        self.by_rank[x.dim()] = x.abs().max().item()


class Only:
    """One instance for the whole process."""

    instance = None

    def __new__(cls):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
            cls.instance.values = []
        return cls.instance

    def update(self, value):
        self.values.append(value)


class Metered(nn.Module):
    def __init__(self, meter):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.meter = meter

    def forward(self, x):
        y = self.linear(x)
        self.meter.update(y.mean().item())
        return y * 2


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def meter():
    return Metered(Meter())


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def meter_with_slots():
    return Metered(Slotted())


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def meter_of_which_there_is_one():
    return Metered(Only())


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = Counts()

    def forward(self, x):
        self.counts.update(x)
        return x + 1


@case(tensors((2, 4), (3, 6)), tensors((6, 9)))
def dataclass_of_counts():
    return nn.Sequential(Counted(), nn.ReLU())


class Logs(nn.Module):
    """Every kind of container, and containers in containers."""

    def __init__(self):
        super().__init__()
        self.log = []
        self.recent = collections.deque(maxlen=2)
        self.table = {"losses": [], "largest": None}
        self.space = types.SimpleNamespace(calls=0, values=[])
        self.history = np.zeros(3)
        self.sizes = set()
        self.last = None

    def forward(self, x):
        value = x.sum().item()
        self.log.append(value)
        self.recent.append(x.shape[0])
        self.table["losses"].append(value)
        self.table["largest"] = x.abs().max().item()
        self.space.calls += 1
        self.space.values.append(value)
        self.history[x.dim()] += 1
        self.sizes.add(x.dim())
        self.last = x.mean()
        return x * 2


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def logs_in_containers():
    return Logs()


HISTORY = []
COLLECTOR = Meter()
CALLS = 0


def note(value):
    global CALLS
    CALLS += 1
    HISTORY.append(value)
    note.last = value


note.last = None


class Global(nn.Module):
    def forward(self, x):
        value = x.sum().item()
        note(value)
        COLLECTOR.update(value)
        return x * 2


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def logs_in_globals():
    return nn.Sequential(Global(), nn.ReLU())


class OnTheClass(nn.Module):
    seen = []  # noqa: RUF012 - that is the habit
    calls = 0
    largest = 0.0

    def forward(self, x):
        value = x.sum().item()
        self.seen.append(value)
        type(self).calls += 1
        OnTheClass.largest = value
        type(self).forward.last = value
        return x * 2


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def logs_on_the_class():
    return OnTheClass()


def counting_hook():
    calls = 0
    values = []

    def hook(module, args, output):
        nonlocal calls
        calls += 1
        values.append(output.sum().item())
        return output

    return hook


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def logs_in_a_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(counting_hook())
    return model


class Draws(nn.Module):
    def forward(self, x):
        return x * 2 if random.random() < 2 and np.random.rand() < 2 else x


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def random_numbers_of_python_and_numpy():
    return Draws()
