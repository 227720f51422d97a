"""Functions as models: the layers that they name belong to them."""

import torch
from torch import nn

import prepbench as pb

FIRST, SECOND = nn.Linear(8, 16), nn.Linear(16, 4)


def run(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = SECOND(FIRST(x).relu())
    return result


def test_a_function_of_global_layers_is_quantized() -> None:
    samples = [torch.randn(size, 8) for size in (4, 5, 6)]
    compiled = pb.compile_model(
        run,
        calibration_inputs=samples,
        quantization_settings=pb.QuantizationSettings(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
    )
    assert {(row.fqn, row.summary) for row in compiled.report.layers} == {("FIRST", "int8"), ("SECOND", "int8")}
    torch.testing.assert_close(compiled(samples[0]), run(samples[0]).detach(), atol=0.05, rtol=0.05)
    assert globals()["FIRST"] is FIRST
