"""Where time goes, by layer: each runtime's own profiler, assigned to the layers of the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, InputError, SettingsError, TargetError, UnknownNameError
from prepbench.targets import inductor
from prepbench.targets.base import Runtime
from prepbench.targets.executorch.layers import NO_LAYERS, read_layers
from prepbench.targets.executorch.profiling import aligned
from prepbench.targets.kernel_times import (
    BETWEEN,
    CONVERSIONS,
    OTHERS,
    KernelTime,
    KernelTimes,
    layer_of,
    layers_from_text,
    layers_to_text,
    typical,
)
from prepbench.targets.onnxruntime import _own_times


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.narrow(torch.relu(self.bn(self.wide(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean((2, 3)))).softmax(-1)


LAYERS = {"stem", "head", "norm", *(f"blocks.{i}.{name}" for i in (0, 1) for name in ("wide", "narrow"))}


SKIPPED = pb.LayerQuantizationSettings(skip_quantization=True)


def samples(*rows: int) -> list[torch.Tensor]:
    return [torch.randn(count, 3, 24, 24, generator=torch.Generator().manual_seed(count)) for count in rows]


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def quantized(deployment: Any, layers: Any = None) -> pb.CompiledModel:
    return pb.compile_model(
        net(),
        calibration_inputs=samples(4, 5),
        deployment_settings=deployment,
        quantization_settings=None if layers == {"*": SKIPPED} else pb.QuantizationSettings(),
        layer_quantization_settings=None if layers == {"*": SKIPPED} else layers,
    )


def check(profile: pb.Profile) -> set[str]:
    """What holds for every profile; returns the names of its layers."""
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert sum(row.ms for row in profile.rows) == pytest.approx(profile.total_ms)
    assert all(first.ms >= second.ms for first, second in itertools.pairwise(profile.rows))
    modules = dict(net().named_modules())
    assert all(row.name in modules for row in profile.rows if row.is_layer)
    return {row.name for row in profile.rows if row.is_layer}


DEPLOYMENTS = [
    pb.OnnxRuntimeDeployment(),
    pb.OpenVinoDeployment(),
    pb.EagerDeployment(),
    pb.ExecuTorchDeployment(),
]


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_time_lies_on_layers_also_of_a_loaded_model(deployment: Any, tmp_path: Any) -> None:
    compiled = quantized(deployment)
    compiled.save(tmp_path / "saved")
    for model in (compiled, pb.load_compiled(tmp_path / "saved", allow_code=True)):
        # OpenVINO counts in microseconds, and does not tell of kernels that took none
        profile = pb.profile(model, samples(96), rounds=8)
        assert check(profile) >= LAYERS
        rest = {row.name for row in profile.rows if not row.is_layer}
        assert CONVERSIONS in rest
        assert "kernels of no layer" not in rest
        assert profile["head"].type == "Linear"
        # a bias in float, and for each channel a scale and a zero point, which the report of a loaded model lacks
        zero_point = 8 if isinstance(deployment, pb.EagerDeployment) else 1  # PyTorch keeps them in int64
        assert profile["head"].weights_bytes == 160 + 40 + (10 * (4 + zero_point) if model is compiled else 0)


@pytest.mark.parametrize("deployment", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()])
def test_activations_of_the_model_fused_into_layers_in_float_hide_none(deployment: Any) -> None:
    compiled = pb.compile_model(net(), tracing_inputs=samples(4, 5), deployment_settings=deployment)
    # OpenVINO counts in microseconds, and does not tell of kernels that took none
    profile = pb.profile(compiled, samples(96), rounds=8)
    assert check(profile) >= LAYERS
    assert profile["head"].type == "Linear"
    assert profile["head"].weights_bytes == 680
    assert profile.placed > 0.8 * (1 - sum(row.share for row in profile.rows if row.name == "between kernels"))


# a compile takes Inductor longer than all else: one model has layers in float and in int8
@pytest.mark.stress
@pytest.mark.parametrize(
    "in_float",
    [
        ["blocks.0.wide", "blocks.0.narrow", "head"],
        pytest.param([], marks=pytest.mark.stress),
        pytest.param(["*"], marks=pytest.mark.stress),
    ],
    ids=["some in float", "int8", "float"],
)
def test_kernels_of_inductor_lie_on_layers_too(in_float: list[str], tmp_path: Any) -> None:
    compiled = quantized(pb.InductorDeployment(), dict.fromkeys(in_float, SKIPPED))
    profile = pb.profile(compiled, samples(6), rounds=4)
    assert check(profile) >= LAYERS - {"norm"}  # fused with what is around it
    products = {row.name for row in profile.rows if any(op.startswith("aoti_torch_cpu") for op in row.operators)}
    assert products >= (LAYERS - {"norm"} if in_float == ["*"] else set(in_float))
    assert not {"", "blocks.0", "blocks.1"} & products
    compiled.save(tmp_path / "saved")
    with pytest.raises(TargetError, match=r"Profile what compile_model returned"):
        pb.profile(pb.load_compiled(tmp_path / "saved", allow_code=True), samples(6))


def test_operators_of_our_own_lie_on_layers_in_inductor_too() -> None:
    """Their events have the operator's name, and the notes another one."""
    program = torch.export.export(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (torch.ones(1, 2),))
    sources = {"aoti_torch_cpu_recurrent_layer": [["linear"], ["linear_1"]]}
    events = [("aten::permute", 0.5), ("prepbench::recurrent_layer", 1.0), ("prepbench::recurrent_layer", 2.0)]
    found = inductor._call(events, 4.0, sources, inductor._Places(program.graph))
    assert [(kernel.place, kernel.is_layer) for kernel in found.kernels] == [(OTHERS, False), ("0", True), ("1", True)]


def test_a_module_is_measured_without_those_inside_and_left_as_it_was() -> None:
    model = net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    profile = pb.profile(model, samples(6), rounds=4)
    assert check(profile) >= {*LAYERS, "", "blocks.0", "blocks.0.bn"}
    assert profile["blocks.0"].ms < profile["blocks.0.wide"].ms + profile["blocks.0.narrow"].ms
    assert profile["stem"].result_bytes == 6 * 16 * 22 * 22 * 4
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_two_profiles_side_by_side() -> None:
    model = net()
    first, second = (
        pb.profile(model, samples(6), rounds=2),
        pb.profile(quantized(pb.EagerDeployment()), samples(6), rounds=2),
    )
    difference = first.against(second)
    table = difference.table()
    memory = ["weights MB, first", "weights MB, second"]
    assert list(table.columns) == ["layer", "PyTorch ms", "PyTorch eager ms", "saved ms", *memory]
    of_head = table.set_index("layer").loc["head", memory]
    stored = 160 + 10 * (4 + 8) + 10 * 4  # integers, a scale and a zero point for each row, and the bias in float
    assert of_head.tolist() == [680 / 1e6, stored / 1e6]
    assert set(table["layer"]) == {row.name for row in (*first.rows, *second.rows)}
    assert sum(difference.saved_ms.values()) == pytest.approx(first.total_ms - second.total_ms)
    assert table["PyTorch eager ms"].isna()[list(table["layer"]).index("blocks.0.bn")]
    for result in (first, difference):
        shown = result._repr_mimebundle_()
        assert result.caption in shown["text/plain"]
        assert len(shown["application/vnd.plotly.v1+json"]["data"]) == (1 if result is first else 2)
    assert set(first.against(first).saved_ms.values()) == {0.0}
    assert first.against(first).table().columns[1:3].tolist() == ["PyTorch ms, first", "PyTorch ms, second"]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layers(x)[0])


@pytest.mark.parametrize("deployment", [None, pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
def test_samples_of_several_sizes_count_alike(deployment: Any) -> None:
    model, several = Tagger().eval(), [torch.randn(2, 5, 8), torch.randn(3, 6, 8)]
    if deployment is not None:
        model = pb.compile_model(model, tracing_inputs=several, deployment_settings=deployment)
    profile = pb.profile(model, several, rounds=4)
    assert profile.calls == 8
    assert {row.name for row in profile.rows if row.is_layer} <= {"layers", "head", ""}
    kernels = 1 if deployment is None else len(profile["head"].operators)  # each has a result of this size
    assert profile["head"].result_bytes == kernels * (2 * 5 + 3 * 6) // 2 * 2 * 4
    assert sum(row.ms for row in profile.rows) == pytest.approx(profile.total_ms)


def test_a_target_without_a_profiler_is_named() -> None:
    class Unprofiled(Runtime):
        def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
            return leaves

        def save(self, folder: Any) -> None:
            pass

    with pytest.raises(TargetError, match=r"It has no profiler here.*OnnxRuntimeDeployment\(\)"):
        Unprofiled().kernel_times([], 1)


def test_operators_without_kernels_and_kernels_without_operators_are_left_out() -> None:
    operators = (
        ("quantize_per_tensor", ""),
        ("convolution", "stem"),
        ("relu", ""),
        ("convolution", "wide"),
        ("add", "block"),
        ("relu", "block"),
        ("linear", "head"),
    )
    kernels = ["Convert (NC) #1", "Transpose (ND, X8) #1", "Convolution (NHWC, QC8) IGEMM #1"]
    kernels += ["Fully Connected (NC, QS8, QC8W) GEMM #1", "Add (ND) #1", "Clamp (NC) #1", "Transpose (ND, X8) #2"]
    kernels += ["Fully Connected (NC, QS8, QC8W) GEMM #2", "Convert (NC) #2"]
    assert aligned(kernels, operators) == [None, None, "stem", "wide", "block", "block", None, "head", None]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[[1,2]],[]]", "[" * 20_000, '[[],[[3,[["add"]]]]]'])
def test_damaged_layers_of_instructions_are_none(text: str) -> None:
    assert read_layers(text) == NO_LAYERS


def test_an_overlay_and_a_missing_layer() -> None:
    model = net()
    profile = pb.profile(model, samples(6), rounds=1)
    diagram = pb.recursive_trace(model, inputs=samples(2)).diagram()
    diagram.overlay(profile.table(), "ms")
    assert diagram.overlay == "ms"
    with pytest.raises(UnknownNameError, match=r"'stm' took no time of its own here. Nearest are 'stem'"):
        profile["stm"]


def test_times_away_from_the_own_hardware_are_marked() -> None:
    remark = "timed in ONNX Runtime, not on its own hardware, so its times say nothing about that"
    there, here = pb.Profile((), 1.0, "TensorRT", 8, remark), pb.Profile((), 2.0, "PyTorch", 8)
    assert there.caption.endswith(f"0% of it in layers; {remark}.")
    assert here.caption.endswith("0% of it in layers.")
    assert here.against(there).caption.endswith(f"1 ms a call. TensorRT: {remark}.")
    assert "own hardware" not in here.against(here).caption


def test_a_profile_has_the_remark_of_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.measure.profile.doubtful_times", lambda target: f"not {target}'s")
    assert pb.profile(quantized(pb.EagerDeployment()), samples(4), rounds=1).remark == "not eager's"


def test_names_of_layers_are_untrusted() -> None:
    name = "<img src=x onerror=alert(1)>"
    row = pb.profile(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2), rounds=1).rows[0]
    profile = pb.Profile((type(row)(name, True, name, 1.0, 1.0, None, None, (name,)),), 1.0, name, 1)
    shown = profile._repr_mimebundle_()
    assert "<img" not in shown["text/html"]
    assert "<img" not in str(shown["application/vnd.plotly.v1+json"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 3}, SettingsError, "model must be"),
        ({"rounds": 0}, SettingsError, "at least 1"),
        ({"inputs": []}, InputError, "inputs is empty"),
        ({"inputs": torch.ones(1, 4)}, CaptureError, "shapes cannot be multiplied"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pb.profile(**{"model": nn.Linear(2, 2), "inputs": torch.ones(1, 2), **arguments})


def test_names_that_runtimes_change_are_known() -> None:
    layers = {"conv": "stem", "conv_1": "head", "quantize": None}
    assert layer_of("conv_1_token_4", layers) == (True, "head")
    assert layer_of("conv_10", layers) == (True, "stem")
    assert layer_of("conv/WithoutBiases", layers) == (True, "stem")
    assert layer_of("quantize_1", layers) == (True, None)
    assert layer_of("convolution", layers) == (False, None)
    assert layers_from_text(layers_to_text(layers)) == layers


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '[["a"]]', '[["a", 3]]', "[" * 20_000, '[[3, ["a"]]]'])
def test_damaged_names_are_no_names(text: str | None) -> None:
    assert layers_from_text(text) == {}


def test_a_loop_does_not_count_what_runs_inside() -> None:
    events = [{"ts": 0, "dur": 10}, {"ts": 12, "dur": 5}, {"ts": 2, "dur": 3}, {"ts": 6, "dur": 3}]
    assert [seconds for seconds, _ in _own_times(events)] == pytest.approx([4e-6, 5e-6, 3e-6, 3e-6])


def test_interrupted_calls_do_not_count() -> None:
    calls = [KernelTimes((KernelTime("a", "Conv", "stem", 1.0),), 2.0 + 10 * index) for index in range(8)]
    assert typical(calls).seconds == pytest.approx(1.0 + (1.0 + 11.0) / 2)
    assert BETWEEN not in {kernel.place for kernel in typical(calls).kernels}
