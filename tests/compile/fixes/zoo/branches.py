"""Python decides with tensor values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)

    def forward(self, x):
        # the gate opens for positive batches
        if x.sum() > 0:
            return self.linear(x)
        return torch.zeros_like(x)


@case(rows())
class Normalise(nn.Module):
    def forward(self, x):
        norm = x.norm()
        if norm > 1.0:
            x = x / norm
        return x * 2


@case(rows())
class ElifChain(nn.Module):
    def forward(self, x):
        s = x.mean()
        if s > 0.1:
            y = x * 2
        elif s < -0.1:
            y = x * 3
        else:
            y = x
        return y + 1


@case(rows())
class AndOrNot(nn.Module):
    def forward(self, x):
        if (x.max() > 2 and not x.min() < -2) or x.mean() > 0.5:
            x = x.clamp(-1, 1)
        return x


@case(rows())
class ChosenNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(10, 4)

    def forward(self, x):
        scale = 0.5 if x.abs().max() > 2.5 else 2.0
        return self.lin(x) * scale


@case(rows())
class ChosenInteger(nn.Module):
    def forward(self, x):
        power = 1
        if x.mean() > 0:
            power = 2
        return x.abs() ** power


@case(rows())
class ChosenModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(10, 10)
        self.big = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))

    def forward(self, x):
        expert = self.big if x.var() > 1 else self.small
        return expert(x)


@case(rows())
class ChosenActivation(nn.Module):
    def forward(self, x):
        act = F.relu if x.mean() > 0 else torch.tanh
        h = act(x)
        return h - 1


@case(rows())
class MaxOfTwo(nn.Module):
    def forward(self, x):
        a = x[:, :5].abs().sum()
        b = x[:, 5:].abs().sum()
        return x / max(a, b)


@case(rows())
class MinWithNumber(nn.Module):
    def forward(self, x):
        scale = min(1.0, x.norm())
        return x * scale


@case(rows())
class NestedResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        logits = self.head(x)
        if logits.max() > 0.5:
            return {"logits": logits, "extra": (logits.softmax(-1), logits.mean())}
        return {"logits": logits * 2, "extra": (logits.sigmoid(), logits.sum())}


@case(rows())
class EarlyReturn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x):
        h = torch.relu(self.a(x))
        if (h == 0).all():
            return h
        h = self.b(h)
        h = h + x
        return h


@case(rows())
class NestedIfs(nn.Module):
    def forward(self, x):
        m = x.mean()
        if m > 0:
            if x.max() > 2:
                x = x - m
            else:
                x = x + m
        else:
            x = x.abs()
        return x.sum(dim=1)


@case(rows())
class BoolCall(nn.Module):
    def forward(self, x):
        if bool((x > 3).any()):
            x = x.clamp(max=3)
        return x


@case(rows())
class TruthOfTensor(nn.Module):
    def forward(self, x):
        overflow = torch.isinf(x).any()
        if overflow:
            x = torch.nan_to_num(x)
        return x * 2


@case(rows())
class NanGuard(nn.Module):
    def forward(self, x):
        if torch.isnan(x).any():
            x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
        return x.cumsum(0)


@case(rows())
class FloatCompare(nn.Module):
    def forward(self, x):
        if float(x.mean()) > 0.0:
            y = x + 1
        else:
            y = x - 1
        return y


@case(rows())
class ItemCompare(nn.Module):
    def forward(self, x):
        value = x.std().item()
        if value > 0.9:
            return x / value
        return x


@case(rows())
class DtypeChoice(nn.Module):
    def forward(self, x):
        limit = torch.finfo(x.dtype).max if x.dtype == torch.float16 else 1e4
        if x.abs().max() > limit:
            x = x.clamp(-limit, limit)
        return x


@case(rows())
class AllClose(nn.Module):
    def forward(self, x):
        if torch.allclose(x.sum(), torch.zeros(())):
            return x + 1e-3
        return x


@case(rows())
class AugmentedInPlace(nn.Module):
    def forward(self, x):
        y = x * 1.5
        if y.min() < -1:
            y += 1
        return y


@case(rows())
class SeveralNames(nn.Module):
    def forward(self, x):
        scale, shift = 1.0, 0.0
        if x.mean() > 0:
            scale = 2.0
            shift = x.mean()
        return x * scale + shift


@case(rows())
class TernaryInCall(nn.Module):
    def forward(self, x):
        return F.leaky_relu(x, 0.1) + (x if x.sum() > 0 else -x).mean()


@case(rows())
class LoopWithBreak(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if x.abs().mean() < 0.25:
                break
        return x


@case(rows())
class BranchInLoop(nn.Module):
    def forward(self, x):
        out = x
        for i in range(3):
            if out.mean() > 0:
                out = out - x * i
            else:
                out = out + 1
        return out


@case(rows())
class SkipWithContinue(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[0])
        for i in range(2):
            row = x[i]
            if row.sum() < 0:
                continue
            total = total + row
        return total


@case(rows())
class TorchCondNeeded(nn.Module):
    def forward(self, x):
        if x.numel() > 0 and x.min() > 0:
            return torch.log(x)
        return x - x.min()


@case(rows())
class RepeatedCondition(nn.Module):
    def forward(self, x):
        hot = x.max() > 2
        if hot:
            x = x * 0.5
        y = x.sigmoid()
        if hot:
            y = y * 2
        return y


@case(rows())
class MatchOnSign(nn.Module):
    def forward(self, x):
        sign = 1 if x.sum() >= 0 else -1
        return x.sort(dim=-1, descending=False).values * sign


@case(rows())
class ListOfResults(nn.Module):
    def forward(self, x):
        outs = []
        for row in (x[0], x[1]):
            if row.mean() > 0:
                outs.append(row * 2)
            else:
                outs.append(row)
        return torch.stack(outs)


@case(rows())
class AssignsAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.zeros(()))

    def forward(self, x):
        m = x.abs().max()
        if m > self.peak:
            self.peak = m
        return x / (self.peak + 1)


@case(rows())
class BothWaysCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.yes, self.no = nn.Linear(10, 4), nn.Linear(10, 4)

    def forward(self, x, *, flip=False):
        """Route whole batches."""
        positive = x.mean() > 0
        if positive != flip:
            out = self.yes(x)
        else:
            out = self.no(x)
        return out
