"""Operators that runtimes compute for fixed sizes only, differently, or badly at large values."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from tests.turns import one_pair_each

TARGETS = [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.ExecuTorchDeployment()]
LINES, IMAGES = [(2, 2, 14), (4, 2, 17)], [(1, 2, 12, 15), (2, 2, 16, 11)]
# operators, the shapes of the samples, and a shape that none had
OVER_SIZES: dict[str, tuple[list[Callable[[torch.Tensor], torch.Tensor]], list[tuple[int, ...]], tuple[int, ...]]] = {
    "pooling of lines": (
        [
            lambda x: F.avg_pool1d(x, 4, 3, 2, ceil_mode=True),
            lambda x: F.avg_pool1d(x, 5, 3, 1, ceil_mode=True, count_include_pad=False),
            lambda x: F.avg_pool1d(x, 2, 3, ceil_mode=True),
            lambda x: F.avg_pool1d(x, 3, 3, 1, ceil_mode=True, count_include_pad=False),
            lambda x: F.lp_pool1d(x.abs() + 0.1, 3, 2, 4, ceil_mode=True),
            lambda x: F.adaptive_avg_pool1d(x, 5),
            lambda x: F.interpolate(x, size=3, mode="area"),
        ],
        LINES,
        (3, 2, 20),
    ),
    "pooling of images": (
        [
            lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True),
            lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7),
            lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4),
            lambda x: F.adaptive_avg_pool2d(x, (4, 1)),
        ],
        IMAGES,
        (3, 2, 13, 14),
    ),
    "maxima": (
        [
            lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            lambda x: F.max_pool2d(x, (3, 2), (3, 3), (1, 0), ceil_mode=True),
            lambda x: F.adaptive_max_pool2d(x, (3, 2)),
        ],
        IMAGES,
        (3, 2, 13, 14),
    ),
    "resizing": (
        [
            lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True),
            lambda x: F.interpolate(x, size=(5, 8), mode="bicubic", antialias=True),
            lambda x: F.interpolate(x, scale_factor=1.3, mode="nearest-exact"),
            lambda x: F.interpolate(x, scale_factor=0.7, mode="nearest"),
        ],
        IMAGES,
        (3, 2, 13, 14),
    ),
    "cutting and joining": (
        [
            lambda x: F.pad(x, (2, 1), mode="circular"),
            lambda x: x.roll(x.shape[2] // 3, 2) + x.roll((-5, 1), (2, 0)),
            lambda x: torch.fft.fftshift(x, 2) - torch.fft.ifftshift(x, 2),
            lambda x: torch.cat([part.cumsum(2) for part in x.chunk(2, 2)], 2),
            lambda x: x.tensor_split(3, 2)[1].cumsum(2),
        ],
        LINES,
        (3, 2, 20),
    ),
    "integers and orders": (
        [
            lambda x: (x * 9).to(torch.int64) % 4,
            lambda x: torch.remainder((x * 9).to(torch.int32), (x.abs() * 3).to(torch.int32) + 1),
            lambda x: (x * 90).to(torch.int32) >> 2,
            lambda x: torch.bitwise_left_shift((x * 9).to(torch.int64), 3),
            lambda x: x.sort(2, descending=True).values.cumsum(2),
            lambda x: F.gelu(-x.abs(), approximate="tanh"),
            lambda x: F.prelu(x, torch.tensor([0.25, -2.0])) + F.prelu(x[0, 0], torch.tensor([0.5])).sum(),
        ],
        LINES,
        (3, 2, 20),
    ),
}
LARGE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.layer_norm(x + 2000, (12,)),
    lambda x: F.group_norm((x + 2000).reshape(-1, 4, 3, 1), 2),
    lambda x: F.instance_norm((x + 2000).reshape(-1, 2, 6)),
    lambda x: F.batch_norm((x + 2000).reshape(-1, 3), None, None, training=True),
    lambda x: (x + 2000).var(1) + (x + 2000).std(1),
    lambda x: F.group_norm((x * 0 + 103.7).reshape(-1, 4, 3, 1), 2) + x.reshape(-1, 4, 3, 1),
]
SATURATED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.logsigmoid(x),
    lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none"),
    lambda x: F.softplus(x) + torch.logsumexp(x, 1, keepdim=True) + x.log_softmax(1),
]


named = functools.partial(pytest.mark.parametrize, ids=lambda target: type(target).__name__.removesuffix("Deployment"))


class Applied(nn.Module):
    def __init__(self, operators: list[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        super().__init__()
        self.operators = operators

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [operator(x) for operator in self.operators]


BY_NAME = {type(target).__name__.removesuffix("Deployment"): target for target in TARGETS}


@pytest.mark.parametrize(("kind", "target"), one_pair_each({kind: kind for kind in OVER_SIZES}, BY_NAME, 3))
def test_sizes_that_no_sample_had_are_right(kind: str, target: pb.DeploymentSettings) -> None:
    operators, shapes, other = OVER_SIZES[kind]
    torch.manual_seed(0)
    samples = [torch.randn(*shape) for shape in shapes]
    for place, operator in enumerate(operators):
        # one by one: the sizes of several have conditions together, which takes torch longer than all of them apart
        model = Applied([operator])
        compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
        for x in (torch.randn(*other), torch.rand(*other).round()):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5, msg=f"operator {place}")


@pytest.mark.stress
def test_inductor_pools_any_size() -> None:
    model = Applied([lambda x: F.adaptive_max_pool1d(x, 3), lambda x: F.adaptive_avg_pool1d(x, 5)])
    samples = [torch.randn(*shape) for shape in LINES]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.InductorDeployment())
    x = torch.randn(3, 2, 20)
    for found, expected in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@named("target", TARGETS)
def test_large_values_are_right(target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    model = Applied([*LARGE, *SATURATED])
    samples = [torch.randn(2, 12), torch.randn(4, 12)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    x = torch.randn(4, 12)
    for found, expected in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    x = torch.linspace(-150, 150, 24).reshape(2, 12)
    for found, expected in zip(compiled(x)[len(LARGE) :], model(x)[len(LARGE) :], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-4)  # values of 150 are rounded on the way


@named("target", TARGETS)
def test_small_results_keep_their_digits(target: pb.DeploymentSettings) -> None:
    model = Applied([F.softplus, lambda x: F.softplus(x, 3.0), lambda x: F.logsigmoid(-x), lambda x: torch.expm1(x)])
    compiled = pb.compile_model(
        model, tracing_inputs=[torch.randn(2, 12), torch.randn(4, 12)], deployment_settings=target
    )
    x = -torch.logspace(-6, 1.4, 24).reshape(2, 12)
    for found, expected in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


class Logs(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.log1p(x.abs() * 1e-7)]


@named("target", TARGETS[:2])
def test_sums_of_exponentials_and_small_logarithms_are_right(target: pb.DeploymentSettings) -> None:
    samples = [(torch.randn(4), torch.randn(4)), (torch.randn(6), torch.randn(6))]
    compiled = pb.compile_model(Logs(), tracing_inputs=samples, deployment_settings=target)
    x = torch.tensor([500.0, -700.0, 3.0, 0.0, -0.3])
    y = torch.tensor([-400.0, -701.0, 3.0, 1e4, 1e-6])
    for found, expected in zip(compiled(x, y), Logs()(x, y), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


def test_the_angle_of_a_point_has_the_sign_of_zeros() -> None:
    class Angle(nn.Module):
        def forward(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.atan2(y, x)

    compiled = pb.compile_model(
        Angle(),
        tracing_inputs=[(torch.randn(rows), torch.randn(rows)) for rows in (4, 7)],
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-30, -1e30])
    y, x = torch.cartesian_prod(values, values).unbind(1)
    torch.testing.assert_close(compiled(y, x), torch.atan2(y, x), equal_nan=True)


class Degrees(nn.Module):
    """The degree of each node of a graph net, and the sum of the weights of its edges."""

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = ends.float() / 2
        return torch.bincount(ends, minlength=x.shape[0]), torch.bincount(ends, weights, minlength=x.shape[0])


@named("target", TARGETS[:2])
def test_numbers_are_counted_up_to_a_size(target: pb.DeploymentSettings) -> None:
    def graph(nodes: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(nodes, 2), torch.arange(3 * nodes) % (last + 1)

    compiled = pb.compile_model(Degrees(), tracing_inputs=[graph(4, 2), graph(7, 6)], deployment_settings=target)
    for call in (graph(5, 4), graph(9, 3)):
        for found, expected in zip(compiled(*call), Degrees()(*call), strict=True):
            assert torch.equal(found, expected)
    if isinstance(target, pb.OnnxRuntimeDeployment):  # OpenVINO has no operator that raises
        with pytest.raises(pb.PrepbenchError):
            compiled(torch.zeros(5, 2), torch.tensor([1, -1, 2]))
