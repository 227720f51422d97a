"""Modules as they come in projects: checks, searches, solvers and state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.compile.fixes.zoo.case import case


@case(lambda: [torch.randint(0, 20, (2, 7)), torch.randint(0, 20, (3, 7))])
class Tagger(nn.Module):
    def __init__(self, vocab=20, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, 8)
        self.out = nn.Linear(8, tags)
        self.history = []

    def forward(self, ids):
        if ids.max() >= self.embed.num_embeddings:
            raise ValueError(f"token id {ids.max().item()} is out of range")
        scores = self.out(self.embed(ids))
        confidence = scores.softmax(-1).max(-1).values.mean().item()
        self.history.append(confidence)
        scale = 1.0 + confidence
        return scores * scale


@case(lambda: [(torch.randn(2, 3, 7), torch.zeros(2, 3)), (torch.randn(4, 3, 7), torch.zeros(4, 3))])
class BeamStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.eos = 2

    def forward(self, logits, scores):
        total = scores.unsqueeze(-1) + logits.log_softmax(-1)
        b, k, v = total.shape
        best, flat = total.view(b, -1).topk(k, dim=-1)
        tokens = flat % v
        if (tokens == self.eos).all():
            return best, torch.full_like(tokens, self.eos)
        return best, tokens


@case(lambda: [torch.randn(2, 5, 8), torch.randn(3, 5, 8)])
class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        shape = x.shape
        x = x.view(-1, shape[-1])
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == e)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return out.view(shape)


@case(lambda: [[torch.randn(2, 5), torch.randn(2, 5)], [torch.randn(3, 5), torch.randn(3, 5)]])
class BuiltinAny(nn.Module):
    def forward(self, a, b):
        if any(t.abs().max() > 2.5 for t in (a, b)):
            a, b = a.clamp(-2.5, 2.5), b.clamp(-2.5, 2.5)
        return a + b


@case(lambda: [(torch.randn(2, 5), torch.tensor(1)), (torch.randn(3, 5), torch.tensor(4))])
class SpecialStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.special = [1, 3]

    def forward(self, x, step):
        if step.item() in self.special:
            return x * 0.5
        return x


@case(lambda: [torch.randn(2, 6), torch.randn(3, 6)])
class RunningStat(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        if self.count == 0:
            self.mean.copy_(x.mean(0))
        else:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.count += 1
        return x - self.mean


@case(lambda: [(torch.rand(6, 4), torch.rand(6)), (torch.rand(6, 4), torch.rand(6))])
class GreedySuppress(nn.Module):
    def forward(self, boxes, scores):
        order = scores.argsort(descending=True)
        keep = torch.ones_like(scores, dtype=torch.bool)
        for i in range(boxes.shape[0]):
            if not keep[order[i]]:
                continue
            d = (boxes[order] - boxes[order[i]]).abs().sum(-1)
            close = (d < 0.5) & (torch.arange(boxes.shape[0]) > i)
            keep[order[close]] = False
        return scores * keep


@case(lambda: [(torch.randn(4, 3), torch.tensor(2)), (torch.randn(4, 3), torch.tensor(7))])
class MaybePick(nn.Module):
    def forward(self, x, i):
        if i < x.shape[0]:
            return x[i]
        return torch.zeros(3)


@case(lambda: [(torch.eye(3).expand(2, 3, 3) + 0, torch.randn(2, 3, 1)), (torch.zeros(3, 3, 3), torch.randn(3, 3, 1))])
class SolveIfRegular(nn.Module):
    def forward(self, a, b):
        if torch.linalg.det(a).abs().min() > 1e-6:
            return torch.linalg.solve(a, b)
        return torch.zeros_like(b)


@case(lambda: [torch.eye(4) + 0.01 * torch.randn(2, 4, 4).abs(), -torch.eye(4).expand(3, 4, 4) + 0])
class SafeCholesky2(nn.Module):
    def __init__(self, jitter=3.0):
        super().__init__()
        self.jitter = jitter

    def forward(self, cov):
        cov = 0.5 * (cov + cov.mT)
        try:
            L = torch.linalg.cholesky(cov)
        except torch.linalg.LinAlgError:
            L = torch.linalg.cholesky(cov + self.jitter * torch.eye(cov.shape[-1]))
        return L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@case(
    lambda: [
        (torch.eye(3) + 0.1 * torch.randn(2, 3, 3), torch.randn(2, 3, 1)),
        (torch.zeros(4, 3, 3), torch.randn(4, 3, 1)),
    ]
)
class Solver2(nn.Module):
    def forward(self, a, b):
        try:
            return torch.linalg.solve(a, b)
        except RuntimeError:
            return torch.linalg.pinv(a) @ b


@case(lambda: [torch.randn(2, 6), torch.randn(3, 6)])
class SpectralNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)
        self.max_norm = 0.5

    def forward(self, x):
        with torch.no_grad():
            norm = self.fc.weight.norm(dim=1, keepdim=True)
            self.fc.weight.data = self.fc.weight.data * (self.max_norm / norm.clamp(min=self.max_norm))
        return self.fc(x)


@case(lambda: [torch.randn(2, 6), torch.randn(3, 6)])
class CentreWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        w = self.weight.data
        if w.mean() > 0.1:
            w = w - w.mean()
        return F.linear(x, w)


@case(lambda: [torch.randn(2, 4, 4), torch.randn(3, 4, 4)])
class Sinkhorn(nn.Module):
    def __init__(self, tol=1e-2):
        super().__init__()
        self.tol = tol

    def forward(self, scores):
        p = scores.softmax(-1)
        converged = False
        it = 0
        while not converged:
            p = p / p.sum(-2, keepdim=True)
            p = p / p.sum(-1, keepdim=True)
            err = (p.sum(-2) - 1).abs().max()
            it += 1
            converged = bool(err < self.tol) or it >= 30
        return p
