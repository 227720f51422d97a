"""TensorRT's files: what they hold, what is refused, and that they compute what the converted graph computes. The
engine itself needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.errors import MissingPackageError, SettingsError, TargetError
from prepbench.targets.tensorrt import check_explicit
from tests.compile.targets.test_onnxruntime import CONV1D, CONV_STACK, DEPTHWISE, MLP, POOLED, RESIDUAL, TOKENS, noise

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def compiled(net: nn.Module, shape: tuple[int, ...], **settings: Any) -> pb.CompiledModel:
    return pb.compile_model(
        net.eval(),
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(16, *shape), noise(8, *shape)],
        deployment_settings=pb.TensorRtDeployment(),
        quantization_settings=pb.QuantizationSettings(**settings),
    )


def graph_of(model: pb.CompiledModel, folder: Path) -> Any:
    model._runtime.save(folder)
    return onnx.load(folder / "model.onnx").graph


def constants(graph: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).detach().pow(2).sum() / expected.detach().pow(2).sum())


@pytest.mark.parametrize(
    "net, shape",
    [CONV_STACK, DEPTHWISE, RESIDUAL, MLP, TOKENS, POOLED, CONV1D],
    ids=["conv-bn-relu", "depthwise", "residual", "mlp", "tokens", "pooled", "conv1d"],
)
def test_quantization_is_explicit_and_symmetric(net: nn.Module, shape: Any, tmp_path: Path) -> None:
    model = compiled(net, shape)
    graph = graph_of(model, tmp_path)
    values, makers = constants(graph), {name: node for node in graph.node for name in node.output}

    def quantized(name: str) -> bool:
        maker = makers.get(name)
        while maker is not None and maker.op_type in ("Transpose", "Reshape"):
            maker = makers.get(maker.input[0])
        return maker is not None and maker.op_type == "DequantizeLinear"

    for node in graph.node:
        if node.op_type in QUANTIZERS:
            assert values[node.input[2]].dtype == np.int8
            assert not values[node.input[2]].any()
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            assert quantized(node.input[0])
            assert quantized(node.input[1])
            assert all(values[name].dtype == np.float32 for name in node.input[2:])  # the bias
        # one kernel computes a convolution and the sum after it; the other operand is quantized
        if node.op_type == "Add" and net is RESIDUAL[0]:
            assert sorted(quantized(name) for name in node.input) == [False, True]
    assert not any(makers[output.name].op_type in QUANTIZERS for output in graph.output)
    for batch in (1, 7):
        x = noise(batch, *shape)
        with torch.no_grad():
            expected = model._origin.lowering.program.module(check_guards=False)(x)[0]
        assert error(model(x), expected) < 10**-3.5


def test_an_exported_file_is_explicit_too_and_keeps_biases_in_float(tmp_path: Path) -> None:
    model = compiled(*CONV_STACK)
    graph = onnx.load(model.export(tmp_path / "net.onnx", input_names=["image"])).graph
    values = constants(graph)
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert [value.name for value in graph.input] == ["image"]
    assert convolutions
    assert all(values[name].dtype == np.float32 for node in convolutions for name in node.input[2:])


@pytest.mark.parametrize("bits, kind", [(8, TensorProto.INT8), (4, TensorProto.INT4)])
def test_weights_alone_are_stored_in_their_bits(bits: int, kind: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model = compiled(net, (64,), weights_num_bits=bits, prefer_weights_only_quantization=True)
    graph = graph_of(model, tmp_path)
    assert sum(tensor.data_type == kind and len(tensor.dims) == 2 for tensor in graph.initializer) == 2
    assert not any(node.op_type == "QuantizeLinear" for node in graph.node)


def test_4_bits_need_activations_in_float() -> None:
    with pytest.raises(
        SettingsError, match="TensorRtDeployment does not support 4-bit weights with quantized activations"
    ):
        compiled(*MLP, weights_num_bits=4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_attention_keeps_its_numbers_at_lengths_never_shown() -> None:
    torch.manual_seed(0)
    net = Attention().eval()
    samples = [noise(2, 5, 16), noise(3, 6, 16)]
    model = pb.compile_model(net, tracing_inputs=samples, deployment_settings=pb.TensorRtDeployment())
    torch.testing.assert_close(model(noise(4, 9, 16)), net(noise(4, 9, 16)))


def test_a_fresh_process_computes_the_same(in_fresh_process: Callable[..., torch.Tensor]) -> None:
    net, shape = POOLED
    model = compiled(net, shape)
    x = noise(5, *shape)
    torch.testing.assert_close(in_fresh_process(model, x), model(x))
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(result, model(x)) for result in pool.map(model, [x] * 50))


def quantizer(**changes: Any) -> Any:
    """A model of one QuantizeLinear, symmetric but for the changes."""
    given: dict[str, Any] = {"zero_point": np.zeros((), np.int8), "scale": np.float32(0.1), **changes}
    tensors = {
        name: numpy_helper.from_array(np.asarray(value), name) for name, value in given.items() if value is not None
    }
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    if given["scale"] is None:
        inputs.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    names = ["x", "scale"] + (["zero_point"] if given["zero_point"] is not None else [])
    node = helper.make_node("QuantizeLinear", names, ["y"], name="first")
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT8, [2])]
    return helper.make_model(helper.make_graph([node], "graph", inputs, outputs, list(tensors.values())))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"zero_point": np.int8(3)}, "zero point"),
        ({"zero_point": np.uint8(0)}, "integers without sign"),
        ({"zero_point": None}, "names no type"),
        ({"scale": None}, "scale is computed"),
    ],
)
def test_other_quantizers_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    check_explicit(quantizer())
    with pytest.raises(TargetError, match=f"QuantizeLinear 'first'.*{message}"):
        check_explicit(quantizer(**changes))


def test_asymmetric_weights_are_refused() -> None:
    with pytest.raises((TargetError, SettingsError), match=r"zero point|symmetric"):
        compiled(*MLP, weights_symmetric=False)


def test_complex_inputs_are_refused_by_name() -> None:
    x = torch.complex(noise(2, 3), noise(2, 3))
    with pytest.raises(TargetError, match="input x is complex"):
        pb.compile_model(lambda x: x.abs(), tracing_inputs=[x], deployment_settings=pb.TensorRtDeployment())


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(MissingPackageError, match="TensorRtDeployment needs onnxruntime: pip install onnxruntime"):
        pb.compile_model(nn.Linear(4, 4), tracing_inputs=[noise(2, 4)], deployment_settings=pb.TensorRtDeployment())
