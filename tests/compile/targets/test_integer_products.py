"""Linear layers on integers are products of integers in ONNX Runtime, whatever sizes are fixed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr


class Layers(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(32, 64, bias), nn.Linear(64, 32, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def quantized(model: nn.Module, samples: list[torch.Tensor]) -> pb.CompiledModel:
    """The model in int8, which gives nearly what it gives in float."""
    compiled = pb.compile_model(
        model.eval(),
        calibration_inputs=samples,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        discard_input_model=False,
    )
    assert all(row.summary == "int8" for row in compiled.report.layers)
    with torch.no_grad():
        expected = model(samples[0])
        assert compiled(samples[0]).shape == expected.shape
        assert sqnr(expected, compiled(samples[0])) > 25
    return compiled


def operators(compiled: pb.CompiledModel, folder: Path) -> list[str]:
    """What ONNX Runtime runs after its own changes of the graph."""
    import onnx
    import onnxruntime

    compiled.save(folder / "saved")
    (file,) = (folder / "saved").rglob("*.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize(
    "shapes",
    [[(2, 7, 32), (2, 7, 32)], [(2, 7, 32), (3, 9, 32)], [(2, 3, 7, 32), (2, 3, 7, 32)], [(4, 32), (4, 32)]],
    ids=["fixed", "dynamic", "four dims", "two dims"],
)
def test_no_product_is_computed_in_float(shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    compiled = quantized(Layers(), [torch.randn(shape) for shape in shapes])
    found = operators(compiled, tmp_path)
    assert not {"Gemm", "MatMul"} & set(found), found
    assert len([name for name in found if name in ("MatMulIntegerToFloat", "QGemm", "QLinearMatMul")]) == 2


def test_a_bias_that_two_layers_read_stays_for_both() -> None:
    class Shared(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(32, 64)
            self.other.bias = self.up.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).relu() + self.other(x)) + self.up.bias.sum()

    quantized(Shared(), [torch.randn(2, 7, 32)])


def test_a_product_with_a_vector_keeps_its_dims() -> None:
    class Scores(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.vector, self.shift = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ self.vector + self.shift

    quantized(Scores(), [torch.randn(2, 7, 32)])
