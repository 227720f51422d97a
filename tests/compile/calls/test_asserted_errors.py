"""Calls for which PyTorch raises are refused on targets whose kernels would answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ConditionError, PrepbenchError

TARGETS = {
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "inductor": pb.InductorDeployment,
}
POSITIONS: dict[str, Callable[..., torch.Tensor]] = {
    "a row": lambda x, n: x[n.item()],
    "a column": lambda x, n: x.select(1, int(n) - 3),
    "part of an index": lambda x, n: x[:, n],
    "narrow": lambda x, n: x.narrow(0, n.item(), 2),
}
DIVISIONS: dict[str, Callable[..., torch.Tensor]] = {
    "floor": lambda a, b: a // b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "of a number": lambda a, b: a.sum() + 7 % b,
    "fmod": lambda a, b: torch.fmod(a, b),
}


class _Calls(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self._function(*args)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", POSITIONS.values(), ids=POSITIONS)
def test_a_number_beyond_the_end_is_refused(target: str, function: Callable[..., torch.Tensor]) -> None:
    model, x = _Calls(function), torch.randn(5, 5)
    compiled = pb.compile_model(
        model, tracing_inputs=[(x, torch.tensor(2))], deployment_settings=TARGETS[target](), dynamic=False
    )
    for number in range(-9, 9):
        n = torch.tensor(number)
        try:
            expected = model(x, n)
        except (IndexError, RuntimeError):
            with pytest.raises(PrepbenchError):
                compiled(x, n)
        else:
            torch.testing.assert_close(compiled(x, n), expected)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("function", DIVISIONS.values(), ids=DIVISIONS)
def test_integers_divided_by_zero_are_refused(target: str, function: Callable[..., torch.Tensor]) -> None:
    model, a, b = _Calls(function), torch.tensor([7, -5, 9]), torch.tensor([2, 3, -4])
    compiled = pb.compile_model(model, tracing_inputs=[(a, b)], deployment_settings=TARGETS[target]())
    assert torch.equal(compiled(a, b), model(a, b))
    with pytest.raises(PrepbenchError):
        compiled(a, torch.tensor([2, 0, 1]))
    with pytest.raises(PrepbenchError):
        compiled(a[:1], torch.tensor([0]))


INVERSIONS: dict[str, Callable[..., torch.Tensor]] = {
    "inverse": lambda a, b: torch.linalg.inv(a) @ b,
    "solution": torch.linalg.solve,
}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("function", INVERSIONS.values(), ids=INVERSIONS)
def test_singular_matrices_are_refused(target: str, function: Callable[..., torch.Tensor]) -> None:
    model, a, b = _Calls(function), torch.randn(2, 3, 3), torch.randn(2, 3, 2)
    compiled = pb.compile_model(model, tracing_inputs=[(a, b)], deployment_settings=TARGETS[target]())
    torch.testing.assert_close(compiled(a, b), model(a, b), atol=1e-4, rtol=1e-4)
    with pytest.raises(ConditionError, match="singular"):
        compiled(torch.stack([a[0], torch.ones(3, 3)]), b)
    assert compiled(a * float("nan"), b).isnan().all()
