"""Operators: their kinds, arguments and names, and what ONNX lacks."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from prepbench._torch_compat import operators
from prepbench.errors import TorchVersionError
from prepbench.running.tracing import tracing

aten = torch.ops.aten


def test_kinds_of_operators() -> None:
    assert isinstance(aten.relu.default, operators.OpOverload)
    assert isinstance(aten.relu, operators.OpOverloadPacket)
    assert isinstance(torch.ops.higher_order.cond, operators.HigherOrderOperator)
    assert not isinstance(torch.relu, operators.OpOverload)


def test_functions_of_layers_in_cpp() -> None:
    assert callable(operators.NN_FUNCTIONS.gelu)
    assert callable(operators.RNN_FUNCTIONS.lstm)


def test_arguments() -> None:
    assert operators.argument_names(aten.conv1d.padding)[:4] == ["input", "weight", "bias", "stride"]
    assert operators.schema_of(aten.relu_.default).arguments[0].is_write
    assert operators.schema_of(torch.relu) is None
    with pytest.raises(TorchVersionError, match="the arguments of operators"):
        operators.argument_names(torch.relu)


def test_registered_names() -> None:
    assert "aten::relu" in operators.registered_operators()
    assert operators.is_registered("aten::relu")
    assert not operators.is_registered("aten::no_such_operator")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("_dispatch_get_all_op_names", operators.registered_operators),
        ("_dispatch_has_kernel", lambda: operators.is_registered("aten::relu")),
    ],
)
def test_a_torch_without_the_list_of_operators(monkeypatch: pytest.MonkeyPatch, name: str, call: object) -> None:
    monkeypatch.delattr(torch._C, name)
    with pytest.raises(TorchVersionError, match=f"names of operators that are not taken.*{name}"):
        call()  # type: ignore[operator]


def test_quantized_operators_are_known_afterwards() -> None:
    operators.register_quantized_operators()
    assert operators.is_registered("quantized_decomposed::quantize_per_tensor")


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cummax(torch.relu(x), 0).values


def test_operators_without_onnx_translation_are_found() -> None:
    program = torch.export.export(Largest(), (torch.randn(2),))
    assert [str(node.target) for node in operators.without_onnx_translation(program)] == ["aten.cummax.default"]


def test_a_torch_with_another_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.onnx._internal.exporter as exporter

    monkeypatch.setitem(sys.modules, "torch.onnx._internal.exporter._registration", None)
    monkeypatch.delattr(exporter, "_registration")
    program = torch.export.export(Largest(), (torch.randn(2),))
    with pytest.raises(TorchVersionError, match="finding operators that ONNX lacks"):
        operators.without_onnx_translation(program)


def test_operators_are_looked_up_once_while_this_thread_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export import utils

    calls, look_up = [], utils._materialize_cpp_cia_ops
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: calls.append(look_up()))
    with tracing():
        inside = [set(torch.export.default_decompositions().keys()) for _ in range(2)]
    assert len(calls) == 1
    outside = set(torch.export.default_decompositions().keys())
    assert len(calls) > 2
    assert inside == [outside, outside]
