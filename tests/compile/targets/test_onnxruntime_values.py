"""Tensors go into ONNX Runtime and come out with and without the calls of it that share memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError
from prepbench.targets import onnxruntime


class Mixed(nn.Module):
    """Results of several types, one of them a number and one with nothing in it."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, mask.logical_not(), x.argmax(-1), x.sum(), x[:, :0]


@pytest.fixture(params=[True, False], ids=["shared", "copied"])
def shares(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(onnxruntime, "shares_memory", lambda: False)
    return bool(request.param)


def test_every_type_comes_back(shares: bool) -> None:
    samples: list[Any] = [(torch.randn(n, 4), torch.rand(n, 4) > 0.5) for n in (2, 3)]
    compiled = pb.compile_model(Mixed(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    for x, mask in samples:
        for expected, got in zip(Mixed()(x, mask), compiled(x, mask), strict=True):
            assert expected.dtype == got.dtype
            torch.testing.assert_close(got, expected)
    assert pb.profile(compiled, samples[:1]).table() is not None


def test_bfloat16(shares: bool) -> None:
    x = [torch.randn(2, 4).bfloat16(), torch.randn(3, 4).bfloat16()]
    model = nn.ReLU()
    if shares:
        compiled = pb.compile_model(model, tracing_inputs=x, deployment_settings=pb.OnnxRuntimeDeployment())
        assert torch.equal(compiled(x[1]), model(x[1]))
    else:
        with pytest.raises(TargetError, match=r"hands out no results of type tensor\(bfloat16\)"):
            pb.compile_model(model, tracing_inputs=x, deployment_settings=pb.OnnxRuntimeDeployment())
