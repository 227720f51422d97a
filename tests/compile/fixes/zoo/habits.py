"""Several habits in one module, as they come in projects."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.compile.fixes.zoo.case import case, images, rows


@case(rows())
class AdaptiveClip(nn.Module):
    """Clips by a running threshold that it keeps as a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("limit", torch.tensor(1.0))

    def forward(self, x):
        norm = torch.linalg.vector_norm(x)
        if norm > self.limit:
            x = x * (self.limit / (norm + 1e-6))
        return x


@case(rows())
class DynamicTemperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 6)

    def forward(self, x):
        logits = self.head(x)
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        temperature = 1.0
        if entropy.item() > 1.5:
            temperature = 0.7
        elif entropy.item() < 0.5:
            temperature = 1.3
        return F.softmax(logits / temperature, dim=-1)


@case(images)
class BrightnessFix(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        if image.max() > 1.0:
            image = image / 255.0
        mean, std = image.mean(), image.std()
        image = (image - mean) / (std + 1e-6)
        return self.conv(image)


@case(
    lambda: [
        (torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])),
        (torch.randn(3, 5, 8), torch.ones(3, 5).long()),
    ]
)
class MaskedPooling(nn.Module):
    def forward(self, hidden, mask):
        if mask.sum() == mask.numel():
            return hidden.mean(dim=1)
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


@case(rows())
class LossScaleCheck(nn.Module):
    def forward(self, x):
        loss = (x**2).mean()
        if torch.isnan(loss) or torch.isinf(loss):
            loss = torch.zeros_like(loss)
        return loss


@case(rows())
class GaussianKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigma = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        s = float(self.sigma)
        grid = torch.arange(-2, 3, dtype=x.dtype)
        kernel = torch.exp(-(grid**2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi))
        if s > 1.0:
            kernel = kernel / kernel.sum()
        return F.conv1d(x.unsqueeze(1), kernel.view(1, 1, -1), padding=2).squeeze(1)


@case(lambda: [torch.randn(2, 12), torch.randn(4, 12)])
class TopShare(nn.Module):
    """Keeps the smallest number of entries that hold half of the mass."""

    def forward(self, x):
        p = x.softmax(-1)
        values, order = p.sort(dim=-1, descending=True)
        keep = values.cumsum(-1) - values < 0.5
        if not keep.any():
            return x
        kept = torch.where(keep, values, torch.zeros_like(values))
        return torch.zeros_like(p).scatter(-1, order, kept)


@case(rows())
class StepDecay(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(12))

    def forward(self, x):
        warm = min(1.0, self.step.item() / 10)
        rate = warm * 0.5 ** (self.step.item() // 5)
        return x * rate


@case(rows())
class SignedLog(nn.Module):
    def forward(self, x):
        total = x.sum()
        if total >= 0:
            scale = math.log1p(total)
        else:
            scale = -math.log1p(-total)
        return x * scale


@case(lambda: [(torch.randn(2, 6), torch.tensor(0)), (torch.randn(3, 6), torch.tensor(2))])
class TaskHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(6, 4) for _ in range(3)])

    def forward(self, x, task):
        return self.heads[task.item()](x)


@case(lambda: [(torch.randn(2, 6), torch.tensor(0)), (torch.randn(3, 6), torch.tensor(1))])
class TaskNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(6, 4)})

    def forward(self, x, task):
        if task == 0:
            head = self.heads["a"]
        else:
            head = self.heads["b"]
        return head(x).relu()


@case(rows())
class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(10, 10) for _ in range(3)])
        self.heads = nn.ModuleList([nn.Linear(10, 4) for _ in range(3)])

    def forward(self, x):
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = torch.relu(block(x))
            logits = head(x)
            if logits.softmax(-1).max() > 0.42:
                return logits
        return logits


@case(rows())
class FixedPoint(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(10, 10)
        with torch.no_grad():
            self.cell.weight.mul_(0.3)

    def forward(self, x):
        z = torch.zeros_like(x)
        for _ in range(50):
            z_next = torch.tanh(self.cell(z) + x)
            if torch.norm(z_next - z) < 1e-4:
                break
            z = z_next
        return z


@case(rows())
class RangeCheck(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = -50.0, 50.0

    def forward(self, x):
        lo, hi = x.min().item(), x.max().item()
        if lo < self.low or hi > self.high:
            raise ValueError(f"values from {lo} to {hi}")
        return (x - self.low) / (self.high - self.low)


@case(rows())
class NumpyHistogramScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = np.array([-1.0, 0.0, 1.0])
        self.gains = torch.tensor([0.5, 1.0, 1.5, 2.0])

    def forward(self, x):
        bins = np.digitize(x.detach().cpu().numpy(), self.edges)
        return x * self.gains[torch.from_numpy(bins)]


@case(rows())
class Standardise(nn.Module):
    """A guard against zero, as in normalisers."""

    def forward(self, x):
        mean, std = x.mean(0), x.std(0)
        if (std == 0).any():
            std = torch.where(std == 0, torch.ones_like(std), std)
        return (x - mean) / std


@case(
    lambda: [(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])), (torch.randn(5, 4), torch.tensor([0, 1, 1, 2, 2]))]
)
class SegmentMeans(nn.Module):
    def forward(self, x, segments):
        out = []
        for i in range(int(segments.max()) + 1):
            rows = x[segments == i]
            if len(rows) > 0:
                out.append(rows.mean(dim=0))
            else:
                out.append(torch.zeros_like(x[0]))
        return torch.stack(out).sum(0)


@case(rows())
class VerboseNan(nn.Module):
    def __init__(self):
        super().__init__()
        self.nan_count = 0
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        y = self.fc(x)
        if torch.isnan(y).any():
            self.nan_count += 1
            print("nan in", type(self).__name__)
            y = torch.nan_to_num(y)
        return y


@case(rows())
class SwitchDtype(nn.Module):
    def forward(self, x):
        h = x
        if h.abs().max() > 1e4:
            h = h.double()
        return (h * 2).float()


@case(rows())
class Lookahead(nn.Module):
    def forward(self, x):
        best = -float("inf")
        chosen = x
        for scale in (0.5, 1.0, 2.0):
            candidate = torch.tanh(x * scale)
            score = candidate.mean().item()
            if score > best:
                best = score
                chosen = candidate
        return chosen


@case(rows(), fixable=False)  # the number of steps is a Python number in the result
class WhileShrinks(nn.Module):
    def forward(self, x):
        n = 0
        while x.abs().max() > 0.5 and n < 4:
            x = x * 0.5
            n += 1
        return x, n
