"""Loops over a length that is dynamic, as one operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench._torch_compat.scans import scans_in
from prepbench.capture.aten.capture import capture


class A(nn.Module):
    def forward(s, a, b):
        h = torch.zeros(a.shape[0], a.shape[2])
        ys = []
        for t in range(a.shape[1]):
            h = a[:, t] * h + b[:, t]
            ys.append(h)
        return torch.stack(ys, 1)


class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.cell = nn.LSTMCell(3, 4)
        s.out = nn.Linear(4, 2)

    def forward(s, x):
        h = x.new_zeros(x.size(0), 4)
        c = torch.zeros_like(h)
        ys = []
        for x_t in x.unbind(1):
            h, c = s.cell(x_t, (h, c))
            ys.append(s.out(h))
        return torch.stack(ys, dim=1), h


class G(nn.Module):
    def __init__(s):
        super().__init__()
        s.cells = nn.ModuleList([nn.GRUCell(3, 4), nn.GRUCell(4, 4)])

    def forward(s, x):
        T = x.size(0)
        hs = [x.new_zeros(x.size(1), 4) for _ in s.cells]
        out = x.new_zeros(T, x.size(1), 4)
        for t in reversed(range(T)):
            i = x[t]
            for k, cell in enumerate(s.cells):
                hs[k] = cell(i, hs[k])
                i = hs[k]
            out[t] = i
        return out, hs[-1]


class Z(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.randn(3, 3))
        s.lin = nn.Linear(3, 3)

    def forward(s, x, y):
        h = 0
        outs = []
        for t, (u, v) in enumerate(zip(x.transpose(0, 1), torch.unbind(y, dim=1))):
            g = torch.sigmoid(s.lin(u))
            h = h * g + (1 - g) * (v @ s.w)
            outs.append(h.unsqueeze(1))
        return torch.cat(outs, dim=1), outs[-1]


class R(nn.Module):
    def forward(s, x):
        L = x.shape[1]
        h = torch.zeros_like(x[:, 0])
        ys = []
        for t in range(L - 1, -1, -1):
            h = torch.tanh(h + x[:, t])
            ys.append(h)
        return torch.stack(ys[::-1], 1), h


class D(nn.Module):
    def forward(s, x):
        acc = x[:, 0]
        for t in range(1, x.shape[1]):
            acc = acc * 0.5 + x[:, t] - x[:, t - 1]
        return acc


CASES: dict[str, Any] = {
    "A": lambda b, t: (torch.rand(b, t, 3), torch.randn(b, t, 3)),
    "L": lambda b, t: (torch.randn(b, t, 3),),
    "G": lambda b, t: (torch.randn(t, b, 3),),
    "Z": lambda b, t: (torch.randn(b, t, 3), torch.randn(b, t, 3)),
    "R": lambda b, t: (torch.randn(b, t, 3),),
    "D": lambda b, t: (torch.randn(b, t, 3),),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_is_one_operator_for_all_lengths(name: str) -> None:
    model, sample = globals()[name]().eval(), CASES[name]
    captured = capture(model, [sample(2, 4), sample(3, 6)])
    assert len(scans_in(captured.program.graph)) == 1
    for sizes in ((1, 1), (2, 3), (4, 11)):
        given = sample(*sizes)
        with torch.no_grad():
            torch.testing.assert_close(captured.program.module()(*given), model(*given))
