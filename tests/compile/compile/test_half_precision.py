"""Models in half precision: computed in float32 where kernels are missing, with results in the model's type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.computed_in_float32 import computed_in_float32, is_rounding
from prepbench.objects.compare import sqnr
from tests.turns import every_second

HALF = (torch.bfloat16, torch.float16)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x))


class AsksForItsType(nn.Module):
    """Masks, constants and casts of the type of the weights; one result is in float32 and one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.linear.weight

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        y = self.tied(self.linear(x).float().to(self.linear.weight.dtype))
        weights = (y @ y.transpose(1, 2) + mask).softmax(-1)
        return {"y": weights @ y, "sums": y.float().sum(-1), "best": y.argmax(-1), "input": x}


MODELS = {"convolutional": (Convolutional, (3, 12, 12)), "transformer": (Transformer, (6, 16))}
TARGETS = {
    "OnnxRuntime": pb.OnnxRuntimeDeployment(),
    "OpenVino": pb.OpenVinoDeployment(),
    "TensorRt": pb.TensorRtDeployment(),
}


def noise(batch: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch)).to(dtype)


@pytest.mark.parametrize(("name", "target"), every_second({name: name for name in MODELS}, TARGETS))
def test_bfloat16_is_computed_where_the_runtime_lacks_kernels(name: str, target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    kind, shape = MODELS[name]
    model = kind().eval().bfloat16()
    compiled = pb.compile_model(
        model, tracing_inputs=[noise(k, shape, torch.bfloat16) for k in (2, 3)], deployment_settings=target
    )
    x = noise(5, shape, torch.bfloat16)
    result = compiled(x)
    assert result.dtype == torch.bfloat16
    assert sqnr(model(x).float(), result.float()) > 35
    # rounded once, at the end: nearer to the exact result than bfloat16 itself
    assert sqnr(kind.forward(model.float(), x.float()), result.float()) > 45


@pytest.mark.parametrize(("dtype", "target"), every_second({str(dtype): dtype for dtype in HALF}, TARGETS))
def test_a_model_in_half_precision_is_quantized(dtype: torch.dtype, target: pb.DeploymentSettings) -> None:
    torch.manual_seed(0)
    model = Convolutional().eval().to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    samples = [noise(k, (3, 12, 12), dtype) for k in (2, 3)]
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(),
    )
    assert {row.fqn for row in compiled.report.layers if row.quantized} == {"conv", "head"}
    result = compiled(samples[1])
    assert result.dtype == dtype
    assert sqnr(model(samples[1]).float(), result.float()) > 20
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_a_model_makes_in_its_own_type_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    model = AsksForItsType().eval().bfloat16()
    compiled = pb.compile_model(model, tracing_inputs=[noise(k, (6, 16), torch.bfloat16) for k in (2, 3)])
    x = noise(4, (6, 16), torch.bfloat16)
    expected, actual = model(x), compiled(x)
    assert [value.dtype for value in actual.values()] == [value.dtype for value in expected.values()]
    assert sqnr(expected["y"].float(), actual["y"].float()) > 30
    assert torch.equal(actual["input"], x)


def test_a_quantized_model_in_half_precision_is_saved_and_exported(tmp_path: Path) -> None:
    model = Convolutional().eval().bfloat16()
    samples = [noise(k, (3, 12, 12), torch.bfloat16) for k in (2, 3)]
    compiled = pb.compile_model(model, tracing_inputs=samples)
    compiled.save(tmp_path / "saved")
    assert torch.equal(pb.load_compiled(tmp_path / "saved")(samples[0]), compiled(samples[0]))
    later = compiled.initialize_algorithms(samples)
    assert later(samples[0]).dtype == torch.bfloat16
    import onnx

    onnx.checker.check_model(str(later.export(tmp_path / "model.onnx")), full_check=True)


def test_a_plan_of_a_model_in_half_precision_says_what_is_quantized() -> None:
    report = pb.compile_model(
        Convolutional().eval().bfloat16(),
        calibration_inputs=[noise(k, (3, 12, 12), torch.bfloat16) for k in (2, 3)],
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        is_dry_run=True,
    )
    assert not report.problem
    assert sum(row.quantized for row in report.layers) == 2
    assert 0 < report.estimated_bytes < report.float_bytes


def test_a_leaf_in_half_precision_gets_its_own_type() -> None:
    class Leaf(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.bfloat16
            return torch.from_numpy(x.detach().float().numpy() * 2).to(x.dtype)

    model = nn.Sequential(nn.Linear(16, 16), Leaf(), nn.Linear(16, 4)).eval().bfloat16()
    samples = [noise(k, (16,), torch.bfloat16) for k in (2, 3)]
    compiled = pb.compile_model(model, tracing_inputs=samples, fullgraph=False)
    assert sqnr(model(samples[0]).float(), compiled(samples[0]).float()) > 30


class Rounding(nn.Module):
    """Splits numbers into a rounded part and the rest, which is nothing where the rounding is lost."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.dtypes = dtypes

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = x
        for dtype in self.dtypes:
            high = high.to(dtype)
        high = high.reshape(-1).float()
        return high, (x - high) * 256


@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.float16,), (torch.float16, torch.bfloat16)])
@pytest.mark.parametrize(
    "target",
    [pb.EagerDeployment(), pb.OnnxRuntimeDeployment(), pb.InductorDeployment(), pb.OpenVinoDeployment()],
    ids=["eager", "ort", "inductor", "openvino"],
)
def test_rounding_on_purpose_stays(target: pb.DeploymentSettings, dtypes: tuple[torch.dtype, ...]) -> None:
    model = Rounding(*dtypes)
    compiled = pb.compile_model(model, tracing_inputs=[torch.randn(3), torch.randn(5)], deployment_settings=target)
    # ties, powers of two and their neighbours, the largest numbers, and those of few digits in float16
    x = [255.9, 1.001, 60000.0, -3.3, 257.0, 259.0, 2049.0, 4.0, 3.9999998, 65504.0, 65519.0, 3e-5, -0.0]
    x = torch.tensor(x)
    for found, wanted in zip(compiled(x), model(x), strict=True):
        assert wanted.any()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


class Residual(nn.Module):
    """Computes in its own type, and adds in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (x.float() * 2).to(x.dtype)
        return (hidden.float() + self.line(hidden).float()).to(x.dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_a_cast_to_the_type_of_the_model_is_no_rounding_on_purpose(dtype: torch.dtype) -> None:
    model = Residual().to(dtype).eval()
    samples = [torch.randn(rows, 8).to(dtype) for rows in (2, 3)]
    casts = [node for node in pb.capture(model, samples).program.graph.nodes if is_rounding(node)]
    assert not casts, "each would be rounded"


class Steps(nn.Module):
    """Whole numbers and truth values of what the model computes, where the last bit decides."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x * 3
        return {
            "cast": (x * 100).long(),
            "form": y.reshape(-1).int(),
            "floor": (x * 7).floor(),
            "wider": (x * 13).float().mul(10).reshape(-1).long(),
            "comparison": y > 31,
            "choice": y.argmax(1),
            "divided": torch.div(x * 9, 2, rounding_mode="floor"),
        }


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_whole_numbers_come_from_values_rounded_to_the_type_of_the_model(target: pb.DeploymentSettings) -> None:
    samples = [(noise(rows, (6,), torch.float32).abs() * 10).bfloat16() for rows in (2, 5)]
    compiled = pb.compile_model(Steps(), tracing_inputs=samples, deployment_settings=target)
    x = (noise(40, (6,), torch.float32).abs() * 10).bfloat16()
    found, expected = compiled(x), Steps()(x)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_what_makes_no_steps_is_not_rounded_on_the_way() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # an input has its type already, and the second one gives its form alone
            return (x * 3).exp() * (x[:, :2].sum() > 0) + torch.ones_like(x * 2, dtype=torch.bool) + (x[0] > 1)

    program = torch.export.export(Plain(), (noise(2, (6,), torch.bfloat16),), strict=False)
    computed = computed_in_float32(program, HALF)
    casts = [node for node in computed.graph.nodes if is_rounding(node)]
    assert [node.args[0].name for node in casts] == ["sum_1"]


@pytest.mark.parametrize("target", [pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()], ids=["ort", "openvino"])
def test_sums_and_maxima_are_returned_in_the_type_of_the_model(target: pb.DeploymentSettings) -> None:
    class Reduced(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = x.sum()
            return whole, x.sum(1) * 2, x.amax(1), x.cumsum(1), x.prod(1), whole, x.sum(1, dtype=torch.float32)

    compiled = pb.compile_model(
        Reduced(), tracing_inputs=[noise(rows, (6,), torch.float16) for rows in (2, 5)], deployment_settings=target
    )
    x = noise(7, (6,), torch.float16)
    for found, expected in zip(compiled(x), Reduced()(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)  # checks types, too
