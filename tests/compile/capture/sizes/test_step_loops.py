"""Loops over a length that is dynamic, as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench._torch_compat.scans import scans_in
from prepbench.errors import TargetError

Sample = Callable[[int, int], tuple[torch.Tensor, ...]]


class Decay(nn.Module):
    """Indices, a state, a list."""

    def forward(self, a, b):
        h = torch.zeros(a.shape[0], a.shape[2])
        ys = []
        for t in range(a.shape[1]):
            h = a[:, t] * h + b[:, t]
            ys.append(h)
        return torch.stack(ys, 1)


class Cells(nn.Module):
    """Rows of ``unbind``, two states, a layer on each."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = x.new_zeros(x.size(0), 4)
        c = torch.zeros_like(h)
        ys = []
        for x_t in x.unbind(1):
            h, c = self.cell(x_t, (h, c))
            ys.append(self.out(h))
        return torch.stack(ys, dim=1), h


class Stacked(nn.Module):
    """A list of states, backwards, into a tensor that is there before."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(3, 4), nn.GRUCell(4, 4)])

    def forward(self, x):
        x = x.transpose(0, 1)
        steps = x.size(0)
        hs = [x.new_zeros(x.size(1), 4) for _ in self.cells]
        out = x.new_zeros(steps, x.size(1), 4)
        for t in reversed(range(steps)):
            given = x[t]
            for k, cell in enumerate(self.cells):
                hs[k] = cell(given, hs[k])
                given = hs[k]
            out[t] = given
        return out, hs[-1]


class Zipped(nn.Module):
    """Two sequences side by side, a state that begins as a number, joined by ``cat``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gate = nn.Parameter(torch.randn(3, 3)), nn.Linear(3, 3)

    def forward(self, x, y):
        h = 0
        outs = []
        for _, (u, v) in enumerate(zip(x.transpose(0, 1), torch.unbind(y, dim=1))):  # noqa: B905
            g = torch.sigmoid(self.gate(u))
            h = h * g + (1 - g) * (v @ self.weight)
            outs.append(h.unsqueeze(1))
        return torch.cat(outs, dim=1), outs[-1]


class Backwards(nn.Module):
    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        ys = []
        for t in range(x.shape[1] - 1, -1, -1):
            h = torch.tanh(h + x[:, t])
            ys.append(h)
        return torch.stack(ys[::-1], 1), h


class Differences(nn.Module):
    """From the second entry on: none at length 1."""

    def forward(self, x):
        total = x[:, 0]
        for t in range(1, x.shape[1]):
            total = total * 0.5 + x[:, t] - x[:, t - 1]
        return total


class BothWays(nn.Module):
    """Two loops in one function; the second fills its list from the front."""

    def __init__(self) -> None:
        super().__init__()
        self.forth, self.back, self.head = nn.RNNCell(3, 4), nn.RNNCell(3, 4), nn.Linear(8, 2)

    def forward(self, x):
        batch, length, _ = x.shape
        h = torch.zeros(batch, 4, dtype=x.dtype)
        first, second = [], []
        for t in range(length):
            h = self.forth(x[:, t], h)
            first.append(h)
        h = torch.zeros(batch, 4, dtype=x.dtype)
        for t in reversed(range(length)):
            h = self.back(x[:, t], h)
            second.insert(0, h)
        return self.head(torch.cat([torch.stack(first, 1), torch.stack(second, 1)], -1))


class Alternating(nn.Module):
    """Each step asks for its number, so no graph is right for all of them."""

    def forward(self, x):
        total = x[:, 0]
        for t in range(1, x.shape[1]):
            total = total + x[:, t] if t % 2 else total - x[:, t]
        return total


def one(b: int, t: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(b, t, 3),)


def two(b: int, t: int) -> tuple[torch.Tensor, ...]:
    return torch.rand(b, t, 3), torch.randn(b, t, 3)


CASES: dict[type[nn.Module], Sample] = {
    Decay: two, Cells: one, Stacked: one, Zipped: two, Backwards: one, Differences: one, BothWays: one,
}  # fmt: skip
LOOPS = {BothWays: 2}


def right_at(call: Any, model: nn.Module, sample: Sample, dtype: torch.dtype = torch.float32) -> None:
    for sizes in ((1, 1), (2, 3), (4, 11)):
        given = tuple(each.to(dtype) for each in sample(*sizes))
        with torch.no_grad():
            close = {"rtol": 1e-2, "atol": 1e-2} if dtype != torch.float32 else {}
            torch.testing.assert_close(call(*given), model(*given), **close)


@pytest.mark.parametrize("kind", CASES)
def test_a_loop_is_one_operator_for_all_lengths(kind: type[nn.Module]) -> None:
    model, sample = kind().eval(), CASES[kind]
    captured = pb.capture(model, [sample(2, 4), sample(3, 6)])
    assert len(scans_in(captured.program.graph)) == LOOPS.get(kind, 1)
    right_at(captured.program.module(), model, sample)


@pytest.mark.parametrize("deployment", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.EagerDeployment()])
def test_targets_run_loops(deployment: Any, tmp_path: Any) -> None:
    model = BothWays().eval()
    samples = [one(2, 4), one(3, 6)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=deployment)
    compiled.save(tmp_path / "saved")
    for each in (compiled, pb.load_compiled(tmp_path / "saved")):
        right_at(each, model, one)
    named = {row.name for row in pb.profile(compiled, samples[0], rounds=1).rows if row.is_layer}
    assert "head" in named
    assert named <= {"", "head", "forth", "back"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loop_in_half_precision(dtype: torch.dtype) -> None:
    """ONNX Runtime ends the process where loops hold float16."""
    model = BothWays().eval().to(dtype)
    compiled = pb.compile_model(model, tracing_inputs=[(x.to(dtype),) for (x,) in (one(2, 4), one(3, 6))])
    right_at(compiled, model, one, dtype)


def test_layers_beside_a_loop_are_quantized() -> None:
    model = BothWays().eval()
    compiled = pb.compile_model(
        model,
        calibration_inputs=[one(2, 4), one(3, 6)],
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=pb.EagerDeployment(),
    )
    assert {row.fqn for row in compiled.report.layers if row.quantized} == {"head"}
    given = torch.randn(4, 9, 3)
    assert pb.metrics.sqnr(compiled(given), model(given)) > 25


@pytest.mark.parametrize("deployment", [pb.InductorDeployment(), pb.ExecuTorchDeployment()])
def test_targets_without_loops_say_so(deployment: Any) -> None:
    with pytest.raises(TargetError, match=r"a loop of dynamic length\. .* the model: scan\. With fullgraph=False"):
        pb.compile_model(Differences(), tracing_inputs=[one(2, 4), one(3, 6)], deployment_settings=deployment)


def test_steps_that_ask_for_their_number_stay_in_python() -> None:
    model, samples = Alternating().eval(), [one(2, 4), one(3, 6)]
    captured = pb.capture(model, samples, fullgraph=False)
    assert captured.leaves
    right_at(captured.program.module(), model, one)


def test_a_length_without_steps_is_told_from_a_wrong_result() -> None:
    model = Differences().eval()
    compiled = pb.compile_model(model, tracing_inputs=[one(2, 4), one(3, 6)])
    with pytest.raises(pb.PrepbenchError):
        compiled(torch.randn(2, 0, 3))
