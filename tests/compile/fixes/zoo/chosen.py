"""What a number chooses, and sizes and objects that data decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.compile.fixes.zoo.case import case


@dataclass
class Out:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


@case(lambda: [(torch.randn(2, 5), torch.tensor(0)), (torch.randn(3, 5), torch.tensor(1))])
class ByDomain(nn.Module):
    NAMES = ("photo", "sketch")

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleDict({n: nn.LayerNorm(5) for n in self.NAMES})
        nn.init.constant_(self.norms["sketch"].bias, 0.5)

    def forward(self, x, domain):
        name = self.NAMES[domain.item()]
        return self.norms[name](x)


@case(lambda: [(torch.randn(2, 5), torch.tensor(0)), (torch.randn(3, 5), torch.tensor(1))])
class HeadByAttr(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_0 = nn.Linear(5, 2)
        self.head_1 = nn.Linear(5, 2)

    def forward(self, x, task):
        head = getattr(self, f"head_{int(task)}")
        return head(x).softmax(-1)


@case(lambda: [(torch.randn(2, 5), torch.tensor(0)), (torch.randn(3, 5), torch.tensor(1))])
class HeadByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"0": nn.Linear(5, 2), "1": nn.Linear(5, 2)})

    def forward(self, x, task):
        return self.heads[str(task.item())](x)


@case(lambda: [(torch.randn(2, 5), torch.tensor(0)), (torch.randn(3, 5), torch.tensor(2))])
class GainTable(nn.Module):
    GAINS = (0.5, 1.0, 2.0)

    def forward(self, x, level):
        gain = self.GAINS[level.item()]
        return x * gain


@case(lambda: [torch.tensor([0, 2, 1, 3]), torch.tensor([3, 1, 0])])
class OneHotLabels(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, labels):
        onehot = F.one_hot(labels).to(self.weight.dtype)
        return onehot @ self.weight


@case(lambda: [torch.randn(2, 20), torch.randn(3, 20)])
class HistFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        hist, _ = np.histogram(x.detach().cpu().numpy(), bins=8, range=(-3, 3))
        h = torch.from_numpy(hist).float()
        return self.fc(h / h.sum())


@case(lambda: [torch.randn(16), torch.randn(20)])
class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = np.array([0.25, 0.5, 0.25])

    def forward(self, signal):
        y = np.convolve(signal.detach().numpy(), self.kernel, mode="same")
        return torch.from_numpy(y).float()


@case(lambda: [torch.randn(2, 5), torch.randn(3, 5)])
class WithDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        logits = self.fc(x)
        if torch.isnan(logits).any():
            return Out(logits=torch.zeros_like(logits), loss=None)
        return Out(logits=logits, loss=None)


@case(lambda: [(torch.randn(3, 5), torch.tensor([10, 30, 20])), (torch.randn(4, 5), torch.tensor([20, 20, 10, 30]))])
class ScalesByLabel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {10: 1.0, 20: 2.5, 30: 0.3}

    def forward(self, x, labels):
        scales = torch.tensor([self.table[label.item()] for label in labels])
        return x * scales.unsqueeze(1)


@case(lambda: [(torch.randn(2, 5), torch.tensor(0)), (torch.randn(3, 5), torch.tensor(1))])
class ByNameOfDomain(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = {0: "news", 1: "web"}
        self.heads = nn.ModuleDict({name: nn.Linear(5, 2) for name in self.names.values()})

    def forward(self, x, domain):
        name = self.names[int(domain)]
        return self.heads[name](x)


@case(lambda: [torch.randn(2, 5), torch.randn(3, 5)])
class ByText(nn.Module):
    def __init__(self):
        super().__init__()
        self.activations = {"relu": F.relu, "tanh": torch.tanh}

    def forward(self, x):
        if x.abs().max() > 1.5:
            mode = "large"
        else:
            mode = "small"
        y = self.activations["relu" if x.mean() > 0 else "tanh"](x)
        return y / 2 if mode == "large" else y


@case(lambda: [(torch.randn(2, 4), torch.tensor([1.0])), (torch.randn(3, 4), torch.tensor([0.0]))])
class RefusesOtherFlags(nn.Module):
    def forward(self, x, flag):
        if flag.item() == 1.0:
            y = x * 2
        elif flag.item() == 0.0:
            y = x.tanh()
        else:
            raise NotImplementedError(f"flag {flag}")
        return y
