"""Loops over the rows of a batch, whose number changes."""

from __future__ import annotations

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class StacksRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 4)

    def forward(self, x):
        return torch.stack([self.fc(row).tanh() * row.norm() for row in x])


@case(lambda: [(torch.randn(size, 10), torch.randn(size, 10)) for size in (2, 3)])
class AppendsPairs(nn.Module):
    def forward(self, x, y):
        out = []
        for one, other in zip(x, y, strict=True):
            product = one * other
            # the diagonal is not wanted
            matrix = torch.outer(one, other) - torch.diag(product)
            out.append(matrix.sum(0))
        return torch.stack(out) + 1


@case(lambda: [(torch.randn(size, 10), torch.randn(size, 3, 10)) for size in (2, 3)])
class CountsRows(nn.Module):
    def forward(self, x, keys):
        out = []
        for i in range(x.shape[0]):
            out.append(keys[i] @ x[i] + x[i, :3])
        return torch.stack(out, dim=0)


@case(rows(), fixable=False)
class RunsOverRows(nn.Module):
    """Each row's result depends on the rows before."""

    def forward(self, x):
        total = torch.zeros(10)
        out = []
        for row in x:
            total = total * 0.5 + row
            out.append(total)
        return torch.stack(out)


def sequences() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (torch.randn(2, 5, 4), torch.tensor([3, 5])),
        (torch.randn(3, 5, 4), torch.tensor([1, 4, 2])),
    ]


@case(sequences)
class TakesLastStates(nn.Module):
    def forward(self, x, lengths):
        return torch.stack([x[i, int(lengths[i]) - 1] for i in range(x.size(0))], dim=0)


@case(sequences)
class MeansByLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, lengths):
        pooled = []
        for one, n in zip(x, lengths.tolist(), strict=True):
            pooled.append(self.fc(one[:n]).mean(dim=0))
        return torch.stack(pooled)


@case(sequences)
class LargestByLength(nn.Module):
    """A part without values has no largest one: that call is refused, too."""

    def forward(self, x, lengths):
        batch = x.shape[0]
        out = x.new_zeros(batch, 4)
        for b in range(batch):
            n = lengths[b].item()
            out[b] = x[b, :n].max(dim=0).values
        return out


@case(sequences)
class MasksByLength(nn.Module):
    def forward(self, x, lengths):
        mask = torch.zeros(x.shape[0], x.shape[1], dtype=torch.bool)
        for i, n in enumerate(lengths.tolist()):
            mask[i, :n] = True
        return x.masked_fill(~mask.unsqueeze(-1), 0.0)


@case(sequences)
class BlanksPadding(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, lengths):
        y = self.fc(x)
        for i in range(len(lengths)):
            y[i, lengths[i] :] = 0
        return y


@case(lambda: [(torch.rand(size, 6, 4), torch.rand(size, 6)) for size in (2, 3)])
class KeepsBoxes(nn.Module):
    def forward(self, boxes, scores):
        out = torch.zeros_like(boxes)
        best, total = [], 0.0
        for b in range(boxes.shape[0]):
            keep = scores[b] > 0.5
            out[b, keep] = boxes[b][keep]
            best.append(scores[b].max())
            total -= scores[b].mean()
        return out, torch.stack(best), total


@case(lambda: [(torch.randn(2, 7, 4), torch.tensor([3, 7])), (torch.randn(3, 5, 4), torch.tensor([1, 4, 2]))])
class StepsToTheLongest(nn.Module):
    """The bound of the loop is larger than the length of one of the samples."""

    def forward(self, x, lengths):
        state = x.new_zeros(x.size(0), 4)
        for t in range(int(lengths.max())):
            state = torch.tanh(x[:, t] + state * 0.5)
        return state


@case(lambda: [(torch.randn(5, 4), torch.tensor(parents)) for parents in ([-1, 0, 0, 1, 1], [-1, 0, 1, 2, 3])],
      fixable=False)  # fmt: skip
class AddsToParents(nn.Module):
    """Rows are read and written in the order of a tree."""

    def forward(self, x, parents):
        rows = list(x.tanh())
        for i in range(len(rows) - 1, 0, -1):
            p = parents[i].item()
            rows[p] = rows[p] + torch.tanh(rows[i])
        return rows[0]


@case(lambda: [torch.randn(1, 6), torch.randn(2, 6)], fixable=False)
class FillsUpAfterTheEnd(nn.Module):
    """How long the list is depends on data, and is asked for."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(6, 6), nn.Linear(6, 5)

    def forward(self, h):
        tokens = []
        for _ in range(4):
            h = self.cell(h, h)
            token = self.out(h).argmax(-1)
            tokens.append(token)
            if (token == 0).all():
                break
        while len(tokens) < 4:
            tokens.append(torch.zeros_like(token))
        return torch.stack(tokens, 1)
