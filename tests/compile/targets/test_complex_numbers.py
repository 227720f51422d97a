"""Complex numbers between real inputs and outputs, on targets that have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets.complex_numbers import is_complex, with_real_numbers

TARGETS: dict[str, Any] = {"onnxruntime": pb.OnnxRuntimeDeployment, "openvino": pb.OpenVinoDeployment}


class Rotary(nn.Module):
    """Rotates pairs of a head by their positions, as Llama 4 and DeepSeek V2 write it."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[..., None].float() * torch.tensor([1.0, 0.1, 0.01])
        turns = torch.polar(torch.ones_like(angles), angles)
        turns = (turns * 0.5).to(torch.complex64)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[:, :, None, :]).flatten(3).type_as(x)


class Arithmetic(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two = torch.complex(x, y), torch.view_as_complex(torch.stack([y, x], -1))
        total = torch.cat([one + two, one - two.conj()], 0).transpose(0, 1)
        return (
            total.abs(),
            (y * one / 2).imag,
            (x.to(torch.complex64) * two).real,
            total.sum(0).real,
            one[None].squeeze(0).imag,
        )


class Exponent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.complex(x, x)).real


def rotary(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, length, 2, 6), torch.arange(length).expand(batch, length)


def numbers(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4), torch.randn(rows, 4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kind", "make"), [(Rotary, lambda n: rotary(n, n + 3)), (Arithmetic, numbers)])
def test_results_are_those_of_pytorch(kind: type[nn.Module], make: Any, target: str) -> None:
    compiled = pb.compile_model(kind(), tracing_inputs=[make(2), make(3)], deployment_settings=TARGETS[target]())
    given = make(5)
    expected = kind()(*given)
    torch.testing.assert_close(compiled(*given), expected, rtol=1e-4, atol=1e-5)


def test_no_complex_tensor_is_left_and_the_program_is_as_it_was() -> None:
    program = torch.export.export(Rotary(), rotary(2, 5))
    before = str(program.graph)
    changed = with_real_numbers(program)
    assert str(program.graph) == before
    assert any(map(is_complex, program.graph.nodes))
    assert not any(map(is_complex, changed.graph.nodes))
    given = rotary(2, 5)
    torch.testing.assert_close(changed.module()(*given), Rotary()(*given))


def test_programs_with_other_operators_stay_as_they_are() -> None:
    program = torch.export.export(Exponent(), (torch.ones(3),))
    assert with_real_numbers(program) is program
    real = torch.export.export(nn.ReLU(), (torch.ones(3),))
    assert with_real_numbers(real) is real
