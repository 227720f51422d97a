"""Arithmetic of sizes is that of Python on every target, at sizes that no sample had."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError
from tests.turns import every_second

TARGETS = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.ExecuTorchDeployment()]
# each takes the number of rows and of columns
NUMBERS: dict[str, list[Callable[[int, int], float]]] = {
    "whole numbers": [
        lambda rows, n: (7 - n) // 3,
        lambda rows, n: -(-(n - 9) // 4),
        lambda rows, n: n // -5,
        lambda rows, n: (1 - n) // (rows + 1),
        lambda rows, n: (5 - n) % 4,
        lambda rows, n: n % -3,
        lambda rows, n: min(n - 20, 4) - max(5 - n, -3),
        lambda rows, n: abs(11 - n) ** 2,
    ],
    "shifts and bits": [
        lambda rows, n: n >> 1,
        lambda rows, n: (3 - n) >> 2,
        lambda rows, n: (n << 3) - 1,
    ],
    "real numbers": [
        lambda rows, n: round((9 - n) / 2),
        lambda rows, n: round(n * 0.375),
        lambda rows, n: int((4 - n) / 3),
        lambda rows, n: int(n * 0.625),
        lambda rows, n: math.floor((2 - n) / 6),
        lambda rows, n: math.ceil((8 - n) / 6),
        lambda rows, n: math.ceil(n * 1.25),
        lambda rows, n: round(n / 7, 1),
        lambda rows, n: n // 2.5,
        lambda rows, n: n / rows,
    ],
    "decimals": [
        lambda rows, n: round(n * 0.3),
        lambda rows, n: int(n * 0.57),
        lambda rows, n: math.ceil(n * 1.1),
    ],
    "roots": [
        lambda rows, n: int(math.sqrt(n)),
        lambda rows, n: 10 * math.sqrt(n),
        lambda rows, n: n**-0.5,
    ],
}


REFUSED = {
    ("roots", pb.ExecuTorchDeployment): r"cannot compute (sqrt|pow) of a size, .*test_size_arithmetic.py:\d+",
    ("decimals", pb.OpenVinoDeployment): r"computes real numbers in float32, .*test_size_arithmetic.py:\d+",
}


class Computes(nn.Module):
    def __init__(self, numbers: list[Callable[[int, int], float]]) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.sum() * 0 + number(*x.shape) for number in self.numbers])


BY_NAME = {type(target).__name__.removesuffix("Deployment"): target for target in TARGETS}


@pytest.mark.parametrize(("kind", "target"), every_second({kind: kind for kind in NUMBERS}, BY_NAME))
def test_numbers_of_sizes_are_those_of_python(kind: str, target: pb.DeploymentSettings) -> None:
    model = Computes(NUMBERS[kind])
    if refusal := REFUSED.get((kind, type(target))):
        with pytest.raises(TargetError, match=refusal):
            pb.compile_model(model, tracing_inputs=[torch.ones(2, 24), torch.ones(3, 36)], deployment_settings=target)
        return
    compiled = pb.compile_model(
        model, tracing_inputs=[torch.ones(2, 24), torch.ones(3, 36)], deployment_settings=target
    )
    for rows, columns in [(2, 2), (3, 3), (2, 10), *((3, n) for n in range(5, 48, 3)), (4, 20), (5, 36), (2, 40)]:
        x = torch.ones(rows, columns)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=0)


class Numbered(nn.Module):
    """Integers times a real number of sizes, which torch makes an operator with a scalar."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[1]) * (x.shape[1] / 7) + x


@pytest.mark.parametrize("target", TARGETS[:2], ids=lambda target: type(target).__name__.removesuffix("Deployment"))
def test_integers_may_be_scaled_by_real_numbers_of_sizes(target: pb.DeploymentSettings) -> None:
    samples = [torch.ones(2, 24), torch.ones(3, 36)]
    compiled = pb.compile_model(Numbered(), tracing_inputs=samples, deployment_settings=target)
    for n in (5, 19):
        torch.testing.assert_close(compiled(torch.ones(2, n)), Numbered()(torch.ones(2, n)), rtol=1e-6, atol=0)


class Cut(nn.Module):
    """In float32 57 hundredths of 100 are 57, in Python 56."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x.shape[1] * 0.57)]


class CutByWholeNumbers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[1] * 57 // 100]


def test_numbers_that_float32_rounds_otherwise_are_refused_by_openvino() -> None:
    samples = [torch.ones(2, 24), torch.ones(3, 36)]
    with pytest.raises(TargetError, match=r"for a size of 100 first \(.*test_size_arithmetic.py:\d+\)"):
        pb.compile_model(Cut(), tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())
    remedy = pb.compile_model(CutByWholeNumbers(), tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())
    assert remedy(torch.ones(2, 100)).shape == (2, 57)
