"""Mixtures of experts, whose rows are sorted by expert, on every target."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.targets.decompose import grouped_product

pytest.importorskip("transformers.integrations.moe")
TARGETS = {
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "executorch": pb.ExecuTorchDeployment,
    "eager": pb.EagerDeployment,
}


class Experts(nn.Module):
    def __init__(self, operator, dtype):
        super().__init__()
        self.operator = operator
        self.weight = nn.Parameter(torch.randn(4, 8, 16, dtype=dtype) * 0.5)

    def forward(self, x, ends):
        return self.operator(x, self.weight, offs=ends)


def sample(dtype: torch.dtype, *counts: int) -> tuple[torch.Tensor, torch.Tensor]:
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    return torch.randn(int(ends[-1]), 8, dtype=dtype), ends


def expected(model: Experts, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([rows @ weight for rows, weight in zip(x.split(counts), model.weight, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", TARGETS)
def test_experts_compile_with_any_number_of_rows_for_each(target: str, dtype: torch.dtype) -> None:
    # torch's own operator takes bfloat16 alone while it is traced
    is_own = dtype == torch.bfloat16
    operator = nn.functional.grouped_mm if is_own else torch.ops.transformers.grouped_mm_fallback
    model = Experts(operator, dtype).eval()
    samples = [sample(dtype, 1, 0, 2, 3), sample(dtype, 2, 2, 0, 1)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=TARGETS[target]())
    assert compiled.report.leaves == ()
    assert not compiled.report.fallbacks
    for counts in ((0, 0, 0, 1), (3, 1, 4, 1), (0, 7, 0, 0)):
        x, ends = sample(dtype, *counts)
        found = compiled(x, ends)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected(model, x, ends), rtol=2e-2 if is_own else 1e-4, atol=1e-2)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_experts_are_quantized_one_by_one(target: str, bits: int) -> None:
    """Each row of each expert has a scale of its own, so that a small expert beside large ones keeps its numbers."""
    torch.manual_seed(0)
    model = Experts(torch.ops.transformers.grouped_mm_fallback, torch.float32).eval()
    model.weight.data[2] /= 1000
    samples = [sample(torch.float32, 1, 0, 2, 3), sample(torch.float32, 2, 2, 1, 3)]
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=TARGETS[target](),
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=True, weights_num_bits=bits),
        compile_options=pb.CompileOptions(layer_sqnr_floor=0.0, model_sqnr_floor=0.0),
    )
    (row,) = compiled.report.layers
    assert (row.weights_bits, row.stored_bits) == (bits, bits)
    assert [one.outcome for one in compiled.report.tensors] == ["quantized"]
    x, ends = sample(torch.float32, 2, 2, 5, 1)
    right, found = expected(model, x, ends), compiled(x, ends)
    for rows in (slice(0, 4), slice(4, 9), slice(9, 10)):
        noise = (right[rows] - found[rows]).square().mean() / right[rows].square().mean()
        assert -10 * noise.log10() > (15 if bits == 4 else 35)


def test_empty_groups_and_rows_after_the_last() -> None:
    rows, weight = torch.randn(5, 3), torch.randn(3, 3, 2)
    weight[1] = float("nan")  # nobody's
    found = grouped_product(rows, weight, torch.tensor([2, 2, 4], dtype=torch.int32))
    expected = torch.cat([rows[:2] @ weight[0], rows[2:4] @ weight[2], torch.zeros(1, 2)])
    torch.testing.assert_close(found, expected)


def test_other_forms_stay() -> None:
    assert grouped_product(torch.ones(2, 3, 4), torch.ones(2, 4, 5)) is NotImplemented
