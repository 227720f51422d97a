"""Forward does more than compute."""

from __future__ import annotations

import logging
import time
import warnings

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows

logger = logging.getLogger(__name__)


@case(rows())
class PrintsItem(nn.Module):
    def forward(self, x):
        y = x.relu()
        print(f"mean {y.mean().item():.3f}")
        return y


@case(rows())
class LogsValue(nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        logger.info("max is %f", y.max().item())
        return y


@case(rows())
class DebugFlag(nn.Module):
    def __init__(self):
        super().__init__()
        self.debug = True

    def forward(self, x):
        if self.debug:
            print("range", float(x.min()), float(x.max()))
        return x * 2


@case(rows())
class AssertsFinite(nn.Module):
    def forward(self, x):
        assert torch.isfinite(x).all(), "not finite"
        return x.sqrt().nan_to_num()


@case(rows())
class RaisesIfEmptyRow(nn.Module):
    def forward(self, x):
        if (x.abs().sum(dim=1) == 0).any():
            raise ValueError("a row is empty")
        return x / x.abs().sum(dim=1, keepdim=True)


@case(rows())
class WarnsIfLarge(nn.Module):
    def forward(self, x):
        if x.abs().max() > 100:
            warnings.warn("large values", stacklevel=2)
        return x * 0.1


@case(rows())
class HistoryList(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        y = x.sigmoid()
        self.history.append(y.mean().item())
        return y


@case(rows())
class RunningMeanFloat(nn.Module):
    def __init__(self):
        super().__init__()
        self.running = 0.0

    def forward(self, x):
        self.running = 0.9 * self.running + 0.1 * x.mean().item()
        return x * 2


@case(rows())
class TimerAndItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.seconds = 0.0
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        start = time.time()
        y = self.fc(x)
        self.seconds += time.time() - start
        if y.mean().item() > 100:
            print("exploded")
        return y


@case(rows())
class CounterWithLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        if self.steps % 10 == 0:
            print("loss so far", x.sum().item())
        return x + 1


@case(rows())
class StoresStatistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.last_norm = None

    def forward(self, x):
        self.last_norm = x.norm().item()
        return x / 2


@case(rows())
class CheckedRange(nn.Module):
    def forward(self, x):
        p = x.sigmoid()
        assert p.min() >= 0 and p.max() <= 1
        return p.log()


@case(rows())
class AssertsItem(nn.Module):
    def forward(self, x):
        total = x.softmax(-1).sum().item()
        assert abs(total - x.shape[0]) < 1e-3, f"sum is {total}"
        return x.softmax(-1)


@case(lambda: [torch.randint(0, 10, (2, 5)), torch.randint(0, 10, (3, 5))])
class ChecksIds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, ids):
        if ids.max() >= 10 or ids.min() < 0:
            raise IndexError(f"id {ids.max()} is outside the vocabulary")
        return self.embed(ids)


@case(rows())
class MeterInHelper(nn.Module):
    def __init__(self):
        super().__init__()
        self.stats = {}

    def _record(self, name, value):
        self.stats[name] = value.mean().item()

    def forward(self, x):
        y = x.relu()
        self._record("relu", y)
        return y


@case(rows(6))
class BeginsWithTheFirst(nn.Module):
    """A count of zero that no call has changed yet, as a floating-point number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.count == 0:
            self.mean.copy_(x.mean(0))
        else:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.count += 1
        return x - self.mean
