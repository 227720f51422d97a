"""Operators that torch makes for one size are one graph for all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.errors import ConditionError

FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "windows": lambda x: F.max_pool1d(x, 4, 3, 1, ceil_mode=True) + 1,
    "windows without a step": lambda x: F.max_pool1d(x, 3, dilation=1),
    "means of a computed number": lambda x: F.adaptive_avg_pool1d(x, x.shape[2] // 2),
    "area": lambda x: F.interpolate(x, scale_factor=0.5, mode="area"),
    "area of a computed size": lambda x: F.interpolate(x, size=x.shape[2] - 2, mode="area"),
    "a ramp": lambda x: x * torch.linspace(-1, 3, x.shape[2]),
    "no dim of one entry": lambda x: x.squeeze(2) + torch.squeeze(x[:, :1], (1, 2)).sum(),
    "times of real numbers": lambda x: torch.arange(0, x.shape[2] / 10, 0.1) * x.sum(),
    "a grid of real numbers": lambda x: torch.arange(1.5, 2.5, 1 / x.shape[2]) * x.sum(),
    "parts": lambda x: torch.cat(x.tensor_split(3, 2)[::-1], 2),
    "the second part": lambda x: torch.tensor_split(x, 4, -1)[1] * 2,
    "a root": lambda x: x[..., : int(math.sqrt(x.shape[2]))] + int(math.sqrt(x.shape[2])),
    "a root by its name": lambda x: x * int(sqrt(x.shape[2])),
    "memory in another order": lambda x: x.transpose(0, 2).reshape(x.shape[0], -1),
    "powers between powers": lambda x: x * torch.logspace(0, 1, x.shape[2]),
    "a window": lambda x: x * torch.hann_window(x.shape[2]) + torch.blackman_window(x.shape[2]),
    "a symmetric window": lambda x: x * torch.hamming_window(x.shape[2], False),
    "pairs above": lambda x: (x[..., None] * x[..., None, :])[(..., *torch.triu_indices(x.shape[2], x.shape[2], 1))],
    "pairs from the diagonal on": lambda x: torch.triu_indices(x.shape[2], x.shape[2]) * x.sum(),
    "pairs below": lambda x: torch.tril_indices(x.shape[2], x.shape[2], -1) * x.sum(),
    "pairs to the diagonal": lambda x: torch.tril_indices(x.shape[2], x.shape[2]) * x.sum(),
    "frequencies": lambda x: x * torch.fft.fftfreq(x.shape[2], 0.5),
    "frequencies of real signals": lambda x: torch.fft.rfft(x).real * torch.fft.rfftfreq(x.shape[2]),
    "classes": lambda x: F.one_hot(x.argmax(2), x.shape[2]) * x,
    "powers": lambda x: torch.vander(x[0, 0] / 4, x.shape[2]),
    "rising powers": lambda x: torch.vander(x[0, 0] / 4, increasing=True),
    "a grid": lambda x: F.affine_grid(x[:, :2, :3], [x.shape[0], 1, 3, x.shape[2]], align_corners=False),
    "a grid to the corners": lambda x: F.affine_grid(x[:, :2, :3], [x.shape[0], 1, x.shape[2], 4], align_corners=True),
    "the mean of all": lambda x: F.avg_pool1d(x, x.shape[2]),
    "the mean of an image": lambda x: F.avg_pool2d(x[:, None], x[:, None].shape[2:]) * x,
    "the largest of all": lambda x: F.max_pool1d(x, kernel_size=x.shape[-1]) + F.max_pool2d(x[:, None], x.shape[1:]),
    "every product": lambda x: torch.kron(x[0], x[:, 0]),
    "along a dim": lambda x: torch.take_along_dim(x, x.argsort(2)[:, :1], 2) + x.take_along_dim(x.argsort(2), -1),
    "along all": lambda x: x.take_along_dim(x.argmax()),
    "covariances": lambda x: torch.cov(x[:, 0].T) + x[:, 1].mean(),
    "correlations": lambda x: torch.corrcoef(x[0]) * x[0, 0, 0],
    "what is cut off in some samples": lambda x: (
        F.pad(x, (0, -x.shape[2] % 4)).unflatten(2, (-1, 4)).flip(2).flatten(2)[..., : x.shape[2]].contiguous()
    ),
    "a sound from its frames": lambda x: torch.istft(
        torch.stft(x[:, 0].repeat(1, 8), 16, 4, window=torch.hann_window(16), return_complex=True),
        16,
        4,
        window=torch.hann_window(16),
        length=8 * x.shape[2] + 3,
    ),
    "a sound from whole frames": lambda x: torch.istft(
        torch.fft.fft(x[0, 0, :, None] * torch.ones(12) + torch.arange(12.0), dim=1).T,
        12,
        3,
        center=False,
        normalized=True,
    ),
    "every fourth": lambda x: F.linear(x[:, 0, ::4].unsqueeze(-1), torch.ones(2, 1)),
}


class Formed(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.form = FORMS[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(x) * 2


@pytest.mark.parametrize("name", FORMS)
def test_one_graph_for_all_sizes(name: str) -> None:
    model = Formed(name)
    program = capture(model, [torch.randn(2, 3, 8), torch.randn(3, 3, 13), torch.randn(4, 3, 4)]).program.module()
    for batch, length in ((2, 5), (5, 6), (3, 16), (4, 25)):
        x = torch.randn(batch, 3, length)
        torch.testing.assert_close(program(x), model(x))


def test_sizes_that_do_not_change_keep_their_operators() -> None:
    captured = capture(Formed("windows"), [torch.randn(2, 3, 8), torch.randn(3, 3, 8)])
    assert "aten.max_pool1d.default" in {str(node.target) for node in captured.program.graph.nodes}


def test_what_the_model_itself_asks_is_told_first() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.t().reshape(x.shape[0], -1)
            return x + 1 if x.shape[1] % 2 else x - 1

    with pytest.raises(Exception, match=r"x\.shape\[1\] % 2 else x - 1\n.*Mod\(x.shape\[1\], 2\) != 0 holds"):
        capture(Asks(), [torch.randn(2, 4), torch.randn(3, 9)])


def test_what_decides_about_sizes_is_not_left_out() -> None:
    class Pools(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.avg_pool1d(x.unsqueeze(1), 3, 3, 1, ceil_mode=True).squeeze(1)
            return (x * x.shape[1]).softmax(0)

    model = Pools()
    try:  # the one sample whose last window is left out has one row, of which a softmax makes 1 whatever it is
        program = capture(model, [torch.randn(1, 8), torch.randn(5, 6), torch.randn(2, 15)]).program.module()
    except FullGraphError:
        return
    x = torch.randn(6, 20)
    torch.testing.assert_close(program(x), model(x))


class Classes(nn.Module):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.one_hot(labels, x.shape[1]) * x


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment()], ids=["eager", "ort"])
def test_a_class_beyond_the_size_is_refused(target: pb.DeploymentSettings) -> None:
    samples = [(torch.randn(rows, size), torch.randint(size, (rows,))) for rows, size in ((2, 5), (3, 8))]
    compiled = pb.compile_model(Classes(), tracing_inputs=samples, deployment_settings=target)
    x = torch.randn(2, 9)
    torch.testing.assert_close(compiled(x, torch.tensor([0, 8])), Classes()(x, torch.tensor([0, 8])))
    for wrong in (9, -1):
        with pytest.raises(pb.PrepbenchError, match="Class values"):
            compiled(x, torch.tensor([1, wrong]))


SCATTERS = {
    "select": (lambda x, y: torch.select_scatter(x, y, 1, 0), lambda n: (n, 4), lambda n: (n,)),
    "slice": (lambda x, y: x.slice_scatter(y, 1, 0, 3), lambda n: (n, 4), lambda n: (n, 3)),
    "diagonal": (lambda x, y: torch.diagonal_scatter(x, y), lambda n: (n, n), lambda n: (n,)),
}


class Scatters(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function = SCATTERS[name][0]

    def forward(self, x, y):
        return self.function(x, y)


@pytest.mark.parametrize("name", SCATTERS)
def test_a_source_of_another_size_than_its_place_is_refused(name):
    _, into, source = SCATTERS[name]
    samples = [(torch.randn(into(n)), torch.randn(source(n))) for n in (3, 5)]
    compiled = pb.compile_model(Scatters(name).eval(), tracing_inputs=samples, discard_input_model=False)
    given = torch.randn(into(7)), torch.randn(source(7))
    torch.testing.assert_close(compiled(*given), SCATTERS[name][0](*given))
    for wrong in (6, 1):
        with pytest.raises(ConditionError):
            compiled(torch.randn(into(7)), torch.randn(source(wrong)))


@pytest.mark.parametrize("name", ["times of real numbers", "a grid of real numbers"])
def test_steps_of_real_numbers_are_counted_as_torch_counts_them(name: str) -> None:
    model = Formed(name)
    samples = [torch.ones(1, 1, length) for length in (8, 13, 21)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    for length in range(1, 100):  # in float32, a third of them have one step more
        x = torch.ones(1, 1, length)
        torch.testing.assert_close(compiled(x), model(x))
