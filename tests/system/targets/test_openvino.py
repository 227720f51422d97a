"""OpenVINO: which kernels run in int8, how near it comes to the converted graph, all number types, threads, IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.errors import ConditionError, InputError, MissingPackageError, SettingsError, TargetError
from prepbench.targets.openvino.quantizers import use_signed_integers
from tests.compile.targets.test_onnxruntime import CONV1D, CONV_STACK, DEPTHWISE, MLP, POOLED, RESIDUAL, TOKENS, noise

pytest.importorskip("openvino")

MATRICES = ("Convolution", "FullyConnected", "MatMul")


def compiled(
    net: nn.Module, shape: tuple[int, ...], precision: str | None = "f32", rules: Any = None, **settings: Any
) -> pb.CompiledModel:
    return pb.compile_model(
        net.eval(),
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(16, *shape), noise(8, *shape)],
        deployment_settings=pb.OpenVinoDeployment(inference_precision=precision),
        quantization_settings=pb.QuantizationSettings(**settings),
        layer_quantization_settings=rules,
    )


def in_float(net: Any, *samples: Any, **settings: Any) -> pb.CompiledModel:
    return pb.compile_model(net, tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment(**settings))


def kernels(model: pb.CompiledModel) -> Counter[tuple[str, str]]:
    """Kinds of the nodes after OpenVINO's own optimisation, and the number types that they compute in."""
    nodes = [node.get_rt_info() for node in model._runtime._compiled.get_runtime_model().get_ops()]
    return Counter((node["layerType"].astype(str), node["runtimePrecision"].astype(str)) for node in nodes)


def converted(model: pb.CompiledModel, *inputs: torch.Tensor) -> Any:
    """What PyTorch computes from the graph that was lowered."""
    with torch.no_grad():
        return model._origin.lowering.program.module(check_guards=False)(*inputs)[0]


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).pow(2).sum() / expected.pow(2).sum())


@pytest.mark.parametrize(("bits", "precision", "together"), [(4, None, 32), (4, "f32", 0), (8, None, 0)])
def test_inputs_are_rounded_in_each_call_only_beside_weights_of_4_bits(
    bits: int, precision: str | None, together: int
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    blocks: Any = {"prefer_weights_only_quantization": True, "weights_only_quantization_block_size": 32}
    model = compiled(net, (64,), precision, weights_num_bits=bits, **blocks)
    assert model._runtime._compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == together
    x = noise(40, 64)
    assert error(model(x), converted(model, x)) < (1e-3 if together else 1e-8)


@pytest.mark.parametrize(
    "net, shape",
    [CONV_STACK, DEPTHWISE, RESIDUAL, MLP, TOKENS, POOLED, CONV1D],
    ids=["conv-bn-relu", "depthwise", "residual", "mlp", "tokens", "pooled", "conv1d"],
)
def test_layers_run_in_int8_and_compute_what_the_converted_graph_computes(net: nn.Module, shape: Any) -> None:
    model = compiled(net, shape)
    matrices = {key: count for key, count in kernels(model).items() if key[0] in MATRICES}
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)]
    assert sum(matrices.values()) == len(layers)
    assert {precision for _, precision in matrices} <= {"u8", "i8"}
    for batch in (1, 7):
        x = noise(batch, *shape)
        # a value between two integers may be rounded either way, which the next layer sees as one step
        assert error(model(x), converted(model, x)) < 10**-3.5
    assert model(noise(0, *shape)).shape == net(noise(0, *shape)).shape


class Attention(nn.Module):
    """Two heads; ``keep`` says which keys are seen."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, keep[:, None, None, :])
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_attention_becomes_one_kernel_and_rows_that_see_nothing_are_zero() -> None:
    torch.manual_seed(0)
    net, keep = Attention().eval(), torch.tensor([[True, True, False, True, False], [False] * 5, [True] * 5])
    samples = [(noise(2, 5, 16), keep[:2]), (noise(3, 5, 16), keep)]
    model = in_float(net, *samples)
    assert kernels(model)["Subgraph", "u8"] == 1
    assert not any(kind in ("MatMul", "Softmax") for kind, _ in kernels(model))
    torch.testing.assert_close(model(*samples[1]), net(*samples[1]))
    for mask in (None, noise(5, 5).masked_fill(torch.eye(5).bool(), -torch.inf)):
        plain = in_float(lambda x, mask=mask: F.scaled_dot_product_attention(x, x, x, mask), noise(2, 2, 5, 8))
        x = noise(2, 2, 5, 8)
        torch.testing.assert_close(plain(x), F.scaled_dot_product_attention(x, x, x, mask))


@pytest.mark.parametrize("block_size", [0, 16])
def test_weights_alone_are_small_and_activations_stay_in_float(block_size: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    sizes = {}
    for bits in (8, 4):
        model = compiled(
            net,
            (64,),
            weights_num_bits=bits,
            prefer_weights_only_quantization=True,
            weights_only_quantization_block_size=block_size,
        )
        assert kernels(model)["FullyConnected", f"i{bits}"] == 2
        x = noise(5, 64)
        assert error(model(x), converted(model, x)) < 1e-10
        model.save(tmp_path / str(bits))
        sizes[bits] = (tmp_path / str(bits) / "model.bin").stat().st_size
    weights, scales = 2 * 64 * 96, 4 * (64 + 96 if not block_size else 2 * 64 * 96 // block_size)
    assert sizes[8] < weights + scales + 2048
    assert sizes[4] < weights / 2 + scales + 2048


def test_float_stays_float32() -> None:
    net = nn.Linear(256, 256)
    x = noise(4, 256)
    assert error(in_float(net, x, noise(3, 256))(x), net(x)) < 1e-11  # bfloat16 would give some 1e-5


class Kinds(nn.Module):
    """Takes and gives every kind of tensor."""

    def forward(self, kinds: dict[str, torch.Tensor], number: torch.Tensor, times: int) -> Any:
        doubled = {name: ~x if x.dtype == torch.bool else x + x for name, x in kinds.items()}
        return doubled, number * times, kinds["float32"], number * times


class Turns(nn.Module):
    """Embeds a number, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first((100 * x).sin()))


def hint(model: pb.CompiledModel) -> str:
    return str(model._runtime._compiled.get_property("INFERENCE_PRECISION_HINT").to_string())


def test_what_is_left_in_float_beside_integers_is_openvinos_choice(tmp_path: Path) -> None:
    import openvino

    own_choice = str(openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string())
    whole = compiled(*MLP, precision=None)
    assert hint(whole) == own_choice
    whole.save(tmp_path / "saved")
    assert hint(pb.load_compiled(tmp_path / "saved")) == own_choice
    assert hint(compiled(Turns(), (8,), precision=None)) == "f32", "sines amplify what rounding does"
    skip = pb.LayerQuantizationSettings(skip_quantization=True)
    assert hint(compiled(*MLP, precision=None, rules={"2": skip})) == "f32"
    assert hint(compiled(*MLP, precision=None, prefer_weights_only_quantization=True)) == "f32"
    assert hint(compiled(*MLP, precision="f32")) == "f32"
    grows = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(4, 3, 1))
    assert hint(compiled(grows, (3, 6, 6), precision=None)) == "f32", "transposed convolutions multiply in float"
    with pytest.raises(SettingsError, match="inference_precision must be None or 'f32' or 'bf16' or 'f16', got 'int8'"):
        pb.OpenVinoDeployment(inference_precision="int8")


def test_what_enters_a_linear_layer_has_no_zero_point_or_one_at_zero() -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    program = compiled(net, (16,))._origin.lowering.program
    quantizers = [node for node in program.graph.nodes if "quantize_per_tensor.default" in str(node.target)]
    zero_points = [node.args[2] for node in quantizers if str(node.target).split(".")[1].startswith("quantize")]
    assert zero_points == [128, 0, 128]


def test_every_kind_of_tensor_goes_in_and_comes_out(tmp_path: Path) -> None:
    def kinds(batch: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, int]:
        x = noise(batch, 3) * 10
        dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
        return {str(dtype).removeprefix("torch."): x.abs().to(dtype) for dtype in dtypes}, torch.tensor(2.5), 3

    net = Kinds()
    model = in_float(net, kinds(2), kinds(3))
    model.save(tmp_path / "saved")
    for one in (model, pb.load_compiled(tmp_path / "saved")):
        for batch in (1, 5, 0):
            given = kinds(batch)
            result = one(*given)
            torch.testing.assert_close(result, net(*given), rtol=1e-3, atol=1e-3)
            result[2].zero_()  # outputs are the caller's own
            torch.testing.assert_close(given[0]["float32"], kinds(batch)[0]["float32"])


def test_results_are_not_overwritten_by_the_next_call() -> None:
    model = in_float(nn.Identity(), noise(2, 3), noise(3, 3))
    first = model(noise(4, 3))
    model(torch.zeros(4, 3))
    torch.testing.assert_close(first, noise(4, 3))


def test_integers_beyond_32_bits_are_refused_by_name() -> None:
    model = in_float(lambda ids: ids + 1, torch.arange(4), torch.arange(5))
    with pytest.raises(TargetError, match=r"ids reaches from 0 to 8589934592.*32 bits"):
        model(torch.tensor([0, 2**33]))


LOOKUPS: dict[str, Callable[..., torch.Tensor]] = {
    "rows": lambda x, at: x[at],
    "computed rows": lambda x, at: x[at + 1 - 1],
    "gathered": lambda x, at: x.gather(0, at),
    "scattered": lambda x, at: x.scatter(0, at, 1.0),
    "added": lambda x, at: x.index_add(0, at, torch.ones(at.shape[0])),
    "a table of its own": lambda x, at: torch.arange(4.0)[at.clamp(max=90) // 1] + x.sum(),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_index_beyond_its_table_is_refused(name: str) -> None:
    """OpenVINO itself answers with what lies there."""
    samples = [(noise(size), torch.tensor(places)) for size, places in ((5, [0, 1, 2]), (6, [3, 1, 0, 2]))]
    model = in_float(LOOKUPS[name], *samples)
    x, at = noise(7), torch.tensor([3, 2])
    torch.testing.assert_close(model(x, at), LOOKUPS[name](x, at))
    with pytest.raises((ConditionError, InputError), match="index out of range"):
        model(x, torch.tensor([1, 9]))


def test_float64_is_refused_instead_of_computed_in_float32() -> None:
    with pytest.raises(TargetError, match=r"input x is float64.*model\.float\(\)"):
        in_float(lambda x: x * 2, noise(2, 3).double())


def test_a_fresh_process_computes_the_same_without_onnx(
    in_fresh_process: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    net, shape = POOLED
    model = compiled(net, shape)
    x = noise(5, *shape)
    result = in_fresh_process(model, x, absent=("onnx", "onnxscript", "onnxruntime"))
    torch.testing.assert_close(result, model(x))
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"model.xml", "model.bin", "manifest.json"}


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_threads_may_call_one_model(hint: str) -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    model = in_float(net, noise(2, 16), noise(3, 16), performance_hint=hint)
    batches = [noise(1 + i % 7, 16) for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for x, result in zip(batches, pool.map(model, batches), strict=True):
            torch.testing.assert_close(result, net(x))


def test_settings_are_passed_on() -> None:
    compiled_model = in_float(nn.Linear(4, 4), noise(2, 4), inference_threads=1)._runtime._compiled
    assert compiled_model.get_property("INFERENCE_NUM_THREADS") == 1
    assert str(compiled_model.get_property("PERFORMANCE_HINT")).endswith("LATENCY")


def test_an_operator_without_an_onnx_translation_is_named() -> None:
    with pytest.raises(TargetError, match=r"linalg_matrix_exp"):
        in_float(lambda x: torch.linalg.matrix_exp(x), noise(4, 4))


def test_fourier_transforms_of_any_length_are_refused_and_run_in_pytorch_between_partitions() -> None:
    samples = [noise(2, 8), noise(3, 10)]
    with pytest.raises(TargetError, match=r"fft_rfft.*wrong axis"):
        in_float(lambda x: torch.fft.rfft(x).abs() * 2, *samples)
    model = pb.compile_model(
        lambda x: torch.fft.rfft(x * 2).abs() * 2,
        tracing_inputs=samples,
        deployment_settings=pb.OpenVinoDeployment(),
        fullgraph=False,
    )
    torch.testing.assert_close(model(noise(5, 12)), torch.fft.rfft(noise(5, 12) * 2).abs() * 2)


def test_a_zero_point_in_the_middle_becomes_signed_integers() -> None:
    import onnx_ir

    graph = onnx_ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]> agraph (float[N] x) => (float[N] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            q = QuantizeLinear(x, scale, zero)
            y = DequantizeLinear(q, scale, zero)
        }"""
    )
    use_signed_integers(graph)
    for node in graph.graph:
        zero_point = node.inputs[2].const_value.numpy()
        assert (zero_point.dtype, zero_point.item()) == (np.int8, 0)


def test_a_model_with_state_is_refused_and_the_buffer_named() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x + self.calls

    with pytest.raises(TargetError, match=r"changes its buffers.*calls"):
        in_float(Counts(), noise(2, 3))


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else find(name))
    with pytest.raises(
        MissingPackageError, match=r'OpenVinoDeployment needs openvino: pip install "prepbench\[openvino\]"'
    ):
        in_float(nn.Linear(4, 4), noise(2, 4))


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    compiled(*MLP)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
