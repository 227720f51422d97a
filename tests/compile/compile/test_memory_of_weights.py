"""Weights in half precision, layer by layer: never all of them in float32."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench._torch_compat.programs import flat_program
from prepbench.capture.aten.computed_in_float32 import HALF_TYPES, computed_in_float32
from prepbench.quantize import weights_to_cast
from tests.turns import in_turns

LAYERS, INNER, OUTER = 5, 64, 96
FOUR_BITS = pb.QuantizationSettings(
    weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
)


class Tied(nn.Module):
    """Layers of one shape after another, between a table and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, INNER)
        self.up = nn.ModuleList(nn.Linear(INNER, OUTER) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(OUTER, INNER) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(INNER), nn.Linear(INNER, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(up(x).relu())
        return self.head(self.norm(x))


def tied(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    return Tied().eval().bfloat16().to(dtype)


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(length))


def quantized(model: nn.Module, **keywords: Any) -> pb.CompiledModel:
    samples = [ids(2, 9), ids(3, 5)]
    compiled: pb.CompiledModel = pb.compile_model(
        model,
        tracing_inputs=samples,
        calibration_inputs=samples,
        quantization_settings=FOUR_BITS,
        deployment_settings=pb.OnnxRuntimeDeployment(),
        **keywords,
    )
    return compiled


def test_one_weight_after_the_other_is_in_float32_while_samples_run() -> None:
    model, most = tied(), 0

    def count(progress: pb.Progress) -> None:
        nonlocal most
        if progress.stage in ("calibrate", "round weights", "measure"):
            shapes = [
                one.shape
                for one in gc.get_objects()
                if type(one) in (torch.Tensor, nn.Parameter) and one.dtype == torch.float32
            ]
            most = max(most, shapes.count(torch.Size((OUTER, INNER))))

    quantized(model, progress=count)
    assert most <= 1


@pytest.mark.parametrize("skipped", in_turns([(), ("up.1", "table", "head")], 1))
def test_the_result_is_that_of_the_same_weights_in_float32(skipped: tuple[str, ...]) -> None:
    rules = {fqn: pb.LayerQuantizationSettings(skip_quantization=True) for fqn in skipped}
    half, single = (
        quantized(tied(dtype), layer_quantization_settings=rules) for dtype in (torch.bfloat16, torch.float32)
    )
    assert [row.summary for row in half.report.layers] == [row.summary for row in single.report.layers]
    assert half.report.size_bytes == pytest.approx(single.report.size_bytes, rel=0.02)
    assert torch.equal(half(ids(2, 7)), single(ids(2, 7)).bfloat16())


def test_weights_that_are_cast_where_they_are_read_share_the_memory_of_the_model() -> None:
    model = tied()
    program = flat_program(torch.export.export(model, (ids(2, 9),), strict=False), ["ids"])
    weights = weights_to_cast(program)
    assert {program.graph_signature.inputs_to_parameters[name] for name in weights} >= {"up.0.weight", "down.4.weight"}
    computed = computed_in_float32(program, HALF_TYPES, weights)
    assert computed.state_dict["up.0.weight"].data_ptr() == model.get_parameter("up.0.weight").data_ptr()
    assert computed.state_dict["up.0.bias"].dtype == torch.float32
    whole = computed_in_float32(program, HALF_TYPES)
    assert torch.equal(computed.module()(ids(2, 9))[0], whole.module()(ids(2, 9))[0])


def test_a_weight_that_is_also_read_otherwise_is_cast_as_a_whole() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.linear.weight.norm()

    program = torch.export.export(Norms().bfloat16(), (torch.ones(2, 8, dtype=torch.bfloat16),), strict=False)
    assert not weights_to_cast(program)


def test_weights_with_one_scale_for_each_channel_are_stored_in_bytes() -> None:
    samples = [torch.randn(k, 128) for k in (2, 3)]
    half, single = (
        pb.compile_model(
            nn.Sequential(nn.Linear(128, 256)).eval().to(dtype),
            calibration_inputs=[sample.to(dtype) for sample in samples],
            deployment_settings=pb.OnnxRuntimeDeployment(),
            quantization_settings=pb.QuantizationSettings(),
        ).report.size_bytes
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert half == pytest.approx(single, rel=0.05)
