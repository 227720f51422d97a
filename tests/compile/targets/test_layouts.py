"""Every target reads an input as its values say, however it lies in memory; sizes among the results stay numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import MissingPackageError
from prepbench.objects.compare import ROUNDED, difference
from prepbench.targets import target_for
from tests.turns import every_second

TARGETS = [
    pb.OnnxRuntimeDeployment(),
    pb.OpenVinoDeployment(),
    pb.TensorRtDeployment(),
    pb.ExecuTorchDeployment(),
    pb.InductorDeployment(),
]
NAMED = {type(target).__name__: target for target in TARGETS}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(len(x), -1),
    "sliced": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "every other row": lambda x: x.repeat_interleave(2, 0)[::2],
    "flipped": lambda x: x.flip(0, 1),
    "with an offset": lambda x: torch.cat([x[:1], x])[1:],
    "imaginary part": lambda x: torch.complex(x, x).imag,
    "negated view": lambda x: torch.complex(x, x).conj().imag,
    "of requires_grad": lambda x: x.clone().requires_grad_(),
    "empty": lambda x: x[:0],
}


def compiled(
    target: pb.DeploymentSettings,
    model: nn.Module,
    *shape: int,
    memory_format: torch.memory_format = torch.contiguous_format,
    **options: Any,
) -> pb.CompiledModel:
    try:
        target_for(target).check_available()
    except MissingPackageError as error:
        pytest.skip(str(error))
    torch.manual_seed(1)
    samples = [torch.rand(count, *shape).to(memory_format=memory_format) for count in (4, 6)]
    return pb.compile_model(  # type: ignore[no-any-return]
        model, tracing_inputs=samples, calibration_inputs=samples, deployment_settings=target, **options
    )


@functools.cache
def linear(target: pb.DeploymentSettings, is_quantized: bool) -> pb.CompiledModel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU())
    options: dict[str, Any] = {"quantization_settings": pb.QuantizationSettings()} if is_quantized else {}
    return compiled(target, model, 64, **options)


@pytest.mark.parametrize(("target", "is_quantized"), every_second(NAMED, {"float": False, "int8": True}))
def test_views_are_read_as_their_values(target: pb.DeploymentSettings, is_quantized: bool) -> None:
    model = linear(target, is_quantized)
    for name, view in VIEWS.items():
        x = view(torch.rand(8, 64))
        expected = model(torch.empty(x.shape).copy_(x.detach()))
        for _ in range(3):
            found = difference(expected, model(x), ROUNDED)
            assert found.equal, (name, found.text)


@pytest.mark.parametrize(
    ("target", "is_traced_so"), every_second(NAMED, {"traced contiguous": False, "traced channels last": True})
)
def test_channels_last_is_read_as_its_values(target: pb.DeploymentSettings, is_traced_so: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU())
    forms = (torch.contiguous_format, torch.channels_last)
    made = compiled(target, model, 3, 8, 8, memory_format=forms[is_traced_so])
    for form in forms * 2:
        x = torch.randn(5, 3, 8, 8).to(memory_format=form)
        found = difference(model(x).detach(), made(x), ROUNDED)
        assert found.equal, (form, found.text)


class Sizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return x.shape[0] * 2, y, x.shape[1], None, {"sum": y.sum(1), "rows": x.shape[0]}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_sizes_before_tensors_shift_nothing_and_tracing_inputs_may_be_transposed(
    target: pb.DeploymentSettings, tmp_path: Any
) -> None:
    try:
        target_for(target).check_available()
    except MissingPackageError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    model = Sizes()
    samples = [torch.randn(4, rows).t() for rows in (6, 7)]
    made = pb.compile_model(model, tracing_inputs=samples, deployment_settings=target)
    for one in (made, saved(made, tmp_path)):
        for x in (samples[1], torch.randn(3, 4)):
            found = difference(model(x), one(x), ROUNDED)
            assert found.equal, found.text


def saved(model: pb.CompiledModel, folder: Any) -> Any:
    model.save(folder / "model")
    return pb.load_compiled(folder / "model", allow_code=True)


class Viewed(nn.Module):
    """Attention whose result is viewed in the layout that PyTorch's kernel gives it, as AFMoE does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (4, 8)).transpose(1, 2)
        found = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return found.transpose(1, 2).view(x.shape)


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ORT", "OpenVINO"])
def test_a_view_of_what_is_decomposed(target: pb.DeploymentSettings) -> None:
    samples = [torch.randn(2, 5, 32), torch.randn(3, 7, 32)]
    compiled = pb.compile_model(Viewed(), tracing_inputs=samples, deployment_settings=target)
    x = torch.randn(4, 9, 32)
    torch.testing.assert_close(compiled(x), Viewed()(x), rtol=1e-4, atol=1e-5)
