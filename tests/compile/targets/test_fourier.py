"""Fourier transforms of a fixed length as products of real numbers, on targets without complex numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets.complex_numbers import is_complex, with_real_numbers

LENGTHS = (1, 2, 3, 8, 13, 20)


class Turned(nn.Module):
    """A transform of real numbers, a product, and the transform back."""

    def __init__(self, there: str, back: str, counts: int | list[int] | None, norm: str | None, dims: int = 1) -> None:
        super().__init__()
        self.there, self.back = getattr(torch.fft, there), getattr(torch.fft, back)
        self.counts, self.norm, self.dims = counts, norm, dims

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        size = {"n": self.counts} if self.dims == 1 else {"s": self.counts}
        values = self.there(x, **size, norm=self.norm)
        back = self.back(values * 1.5, **({} if self.counts is None else size), norm=self.norm)
        return torch.view_as_real(values), back.real if back.is_complex() else back


def exported(model: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, inputs)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("names", [("rfft", "irfft"), ("fft", "ifft")])
@pytest.mark.parametrize("length", LENGTHS)
def test_of_one_dim(names: tuple[str, str], norm: str | None, length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(2, 3, length)
    for count in (None, *(each for each in LENGTHS if each > 1)):
        if names[1] == "irfft" and (count or length) in (1, 3, 13) and count is None:
            continue  # an odd length is only found again where it is given
        model = Turned(*names, count, norm)
        program = with_real_numbers(exported(model, x))
        assert not any(map(is_complex, program.graph.nodes))
        torch.testing.assert_close(program.module()(x), model(x), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("names", [("rfft2", "irfft2"), ("rfftn", "irfftn"), ("fft2", "ifft2"), ("fftn", "ifftn")])
def test_of_several_dims(names: tuple[str, str]) -> None:
    x = torch.randn(2, 6, 8)
    model = Turned(*names, [5, 9], "ortho", dims=2)
    program = with_real_numbers(exported(model, x))
    assert not any(map(is_complex, program.graph.nodes))
    torch.testing.assert_close(program.module()(x), model(x), atol=2e-5, rtol=1e-5)


def test_a_long_one_is_left_to_the_target() -> None:
    program = exported(Turned("rfft", "irfft", None, None), torch.randn(1, 4096))
    assert with_real_numbers(program) is program


class Enhancer(nn.Module):
    """A mask over the spectrum of a sound."""

    def __init__(self, window: int, normalized: bool) -> None:
        super().__init__()
        self.normalized = normalized
        self.register_buffer("window", torch.hann_window(window))
        self.mask = nn.Conv1d(17, 17, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how = {"window": self.window, "win_length": len(self.window), "normalized": self.normalized}
        values = torch.stft(x, 32, 8, return_complex=True, **how)
        mask = torch.sigmoid(self.mask(values.abs().clamp_min(1e-4).log()))
        return torch.istft(values * mask, 32, 8, length=x.shape[-1], **how)


class Spectral(nn.Module):
    """Weights for the lowest frequencies of an image, as in neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 2, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = torch.fft.rfft2(x)
        kept = torch.einsum("bixy,ioxy->boxy", values[:, :, :2, :4], torch.view_as_complex(self.weight))
        padded = torch.zeros(x.shape[0], 3, x.shape[2], x.shape[3] // 2 + 1, dtype=kept.dtype)
        padded[:, :, :2, :4] = kept
        return torch.fft.irfft2(padded, s=x.shape[-2:])


class Mixed(nn.Module):
    """Tokens mixed by a transform over both dims."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real / math.sqrt(x.shape[-1])


MODELS = {
    "enhancer": (Enhancer(32, False), [(2, 100), (3, 164)], [(1, 77), (4, 250)]),
    "enhancer with a short window": (Enhancer(20, True), [(2, 100), (3, 164)], [(1, 77), (4, 250)]),
    "spectral": (Spectral(), [(2, 3, 8, 10), (3, 3, 8, 10)], [(5, 3, 8, 10)]),
    "mixed": (Mixed(), [(2, 6, 8), (3, 6, 8)], [(5, 6, 8)]),
}


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
@pytest.mark.parametrize("name", MODELS)
def test_on_targets(name: str, target: pb.DeploymentSettings) -> None:
    model, shapes, others = MODELS[name]
    samples = [torch.randn(shape) for shape in shapes]
    compiled = pb.compile_model(model.eval(), tracing_inputs=samples, deployment_settings=target)
    for x in (*samples, *(torch.randn(shape) for shape in others)):
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)


class Phase(nn.Module):
    """Angles, of which those of the first and the middle value are 0 or pi by the sign of a zero."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        frames = torch.stft(x, 16, 4, 16, window=torch.ones(16), center=False, return_complex=True)
        values = torch.fft.rfft(x)
        return values.angle(), torch.fft.fft(x).angle(), torch.atan2(values.imag, values.real), frames.angle()


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_angles_have_the_sign_of_zeros(target: pb.DeploymentSettings) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(rows, 32, generator=generator) for rows in (2, 3)]
    compiled = pb.compile_model(Phase(), tracing_inputs=samples, deployment_settings=target)
    x = torch.cat([*samples, torch.rand(1, 32, generator=generator), -torch.rand(1, 32, generator=generator)])
    for found, expected in zip(compiled(x), Phase()(x), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_angles_of_a_conjugate_have_the_sign_of_zeros() -> None:
    class Conjugate(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.fft.rfft(x).conj().angle(), torch.fft.ifft(x).angle()

    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(rows, 32, generator=generator) for rows in (2, 3)]
    compiled = pb.compile_model(Conjugate(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    for found, expected in zip(compiled(samples[1]), Conjugate()(samples[1]), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
