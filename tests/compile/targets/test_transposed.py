"""Transposed convolutions: their weights are integers where a target computes them in float, and results stay near."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr

TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}
# forms of one rank are side by side in one model, because a compile takes longer than all else
FORMS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "1d": (lambda: [nn.ConvTranspose1d(6, 8, 4, stride=2)], (2, 6, 9)),
    "2d": (
        lambda: [
            nn.ConvTranspose2d(6, 8, 3, 2, padding=1, output_padding=1),
            nn.ConvTranspose2d(6, 8, 3, dilation=2, bias=False),
            nn.ConvTranspose2d(6, 8, 3, 2, groups=2),
            nn.ConvTranspose2d(6, 6, 3, 2, groups=6),
        ],
        (2, 6, 9, 7),
    ),
    "3d": (lambda: [nn.ConvTranspose3d(6, 8, 2, stride=2, bias=False)], (2, 6, 3, 4, 5)),
}


class Beside(nn.Module):
    """Layers that all read the input, each with its norm."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        norms = {nn.ConvTranspose1d: nn.BatchNorm1d, nn.ConvTranspose2d: nn.BatchNorm2d}
        self.layers = nn.ModuleList(
            nn.Sequential(layer, norms.get(type(layer), nn.BatchNorm3d)(layer.out_channels), nn.ReLU())
            for layer in layers
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]


class Decoder(nn.Module):
    """A small U-Net: two steps down, and up again with what the way down left."""

    def __init__(self, up: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.third = block(3, 16), block(16, 32), block(32, 64)
        self.up, self.last_up = up(64, 32), up(32, 16)
        self.join, self.last_join, self.head = block(64, 32), block(32, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x)
        two = self.second(nn.functional.max_pool2d(one, 2))
        x = self.up(self.third(nn.functional.max_pool2d(two, 2)))
        x = self.last_up(self.join(torch.cat([x, two], 1)))
        return self.head(self.last_join(torch.cat([x, one], 1)))


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def transposed(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 2, 2), nn.BatchNorm2d(outputs), nn.ReLU())


def resized(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Upsample(scale_factor=2), block(inputs, outputs))


def trained(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model with batch norms that have seen images."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(10):
            model.train()(torch.randn(shape, generator=generator))
    return model.eval()


def int8(model: nn.Module, shape: tuple[int, ...], target: str, bits: int = 8) -> pb.CompiledModel:
    torch.manual_seed(2)
    calibration = [(torch.randn(shape),) for _ in range(4)]
    return pb.compile_model(
        model,
        tracing_inputs=[*calibration[:1], (torch.randn((5, *shape[1:])),)],
        calibration_inputs=calibration,
        quantization_settings=pb.QuantizationSettings(weights_num_bits=bits),
        deployment_settings=TARGETS[target](),
    )


def decibels(model: nn.Module, compiled: pb.CompiledModel, shape: tuple[int, ...]) -> float:
    """On inputs that were not there before, of another batch size."""
    x = torch.randn((3, *shape[1:]), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return sqnr(model(x), compiled(x))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_the_weights_of_a_transposed_convolution_are_integers(form: str, target: str) -> None:
    make, shape = FORMS[form]
    torch.manual_seed(0)
    model = trained(Beside(make()), shape)
    compiled = int8(model, shape, target)
    assert len(compiled.report.layers) == len(model.layers)
    for layer in compiled.report.layers:
        assert (layer.weights_bits, layer.activations_bits) == (8, 32)
        assert layer.reason == "weights only: this target computes transposed convolutions in float"
    x = torch.randn((3, *shape[1:]), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert all(sqnr(one, other) > 35 for one, other in zip(model(x), compiled(x), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_a_decoder_is_as_exact_as_one_of_ordinary_convolutions(target: str) -> None:
    shape = (2, 3, 16, 24)
    found = []
    for up in (transposed, resized):
        torch.manual_seed(0)
        model = trained(Decoder(up), shape)
        compiled = int8(model, shape, target)
        assert all(layer.quantized for layer in compiled.report.layers)
        found.append(decibels(model, compiled, shape))
    assert found[0] > found[1] - 1
    assert found[0] > 20


@pytest.mark.parametrize("target", TARGETS)
def test_a_saved_model_stores_the_weights_in_8_or_4_bits(target: str) -> None:
    shape = (2, 64, 4, 4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(64, 64, 4, 2), nn.ReLU()).eval()
    size = 4 * model[0].weight.numel()
    for bits, floor in ((8, 35), (4, 12)):
        compiled = int8(model, shape, target, bits)
        assert decibels(model, compiled, shape) > floor
        assert compiled.report.size_bytes < size * bits / 32 + 30_000


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.InductorDeployment()])
def test_the_layer_stays_in_float_where_its_integers_would_be_stored_as_floats(target: pb.DeploymentSettings) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 3)).eval(), torch.randn(2, 3, 8, 8)
    report = pb.compile_model(
        model,
        tracing_inputs=[(x,)],
        calibration_inputs=[(x,)],
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=target,
        is_dry_run=True,
    )
    assert report.layers[1].summary == "float: no int8 form of transposed convolutions for this target"


class Restored(nn.Module):
    """Gives back the size that came in, whatever its remainder, as the decoders of U-nets do."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, 3, (1, 0))
        self.up = nn.ConvTranspose2d(4, 2, 3, (3, 3), (1, 0), groups=2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.up(self.down(x), output_size=(x.shape[-2], x.shape[-1]))


@pytest.mark.parametrize("target", TARGETS)
def test_the_size_of_the_result_may_be_asked_for(target: str) -> None:
    torch.manual_seed(0)
    model = Restored().eval()
    samples = [torch.randn(1, 2, 10, 12), torch.randn(2, 2, 14, 17)]
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=TARGETS[target](), discard_input_model=False
    )
    for shape in ((1, 2, 8, 9), (1, 2, 9, 11), (3, 2, 13, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-4)
