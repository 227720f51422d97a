"""Every way to write a call keeps all its arguments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.prepare import prepare_model
from tests.compile.prepare.models import assert_prepared, x

FORMS: dict[str, Any] = {
    "F.elu(x, 0.5)": lambda x: F.elu(x, 0.5),
    "F.softmax(x, dim=-1, dtype)": lambda x: F.softmax(x, dim=-1, dtype=torch.float32),
    "x.softmax(-1)": lambda x: x.softmax(-1),
    "torch.softmax(x, 1)": lambda x: torch.softmax(x, 1),
    "F.softplus(x, 2., 20.)": lambda x: F.softplus(x, 2.0, 20.0),
    "F.gelu(approximate)": lambda x: F.gelu(x, approximate="tanh"),
    "F.leaky_relu(x, .3, True)": lambda x: F.leaky_relu(x * 1, 0.3, True),
    "F.hardtanh": lambda x: F.hardtanh(x, -2, 2),
    "F.glu(x, 1)": lambda x: F.glu(x, 1),
    "F.threshold": lambda x: F.threshold(x, 0.1, 20),
    "relu_": lambda x: (x * 1).relu_(),
    "1 - x": lambda x: 1 - x,
    "2 ** x": lambda x: 2**x,
    "7.1 - x": lambda x: 7.1 - x,
    "x // 2": lambda x: x // 2,
    "x % 3": lambda x: x % 3,
    "rsub": lambda x: torch.rsub(x, 3),
    "add alpha": lambda x: torch.add(x, x, alpha=3),
    "x.add alpha": lambda x: x.add(x, alpha=3),
    "add out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "tensor + x": lambda x: torch.tensor(5.0) + x,
    "4 * x": lambda x: 4 * x,
    "torch.mul(2, x)": lambda x: torch.mul(2, x),
    "comparison": lambda x: (x > 0) * x,
    "cat keyword": lambda x: torch.cat(tensors=[x, x], dim=1),
    "cat tuple": lambda x: torch.cat((x, x, x), -1),
    "cat default": lambda x: torch.cat([x, x * 2]),
    "cat one": lambda x: torch.cat([x]),
    "concat": lambda x: torch.concat([x, x], dim=0),
    "stack": lambda x: torch.stack([x, x], dim=2),
    "cat of parts": lambda x: torch.cat(x.split(1, 1), 1),
    "mean dims": lambda x: x.mean((1, 2), keepdim=True),
    "mean keyword": lambda x: torch.mean(x, dim=1),
    "sum": lambda x: x.sum(-1),
    "sum dtype": lambda x: x.sum(dtype=torch.float64),
    "python sum": lambda x: sum([x, x * 2]),
    "max": lambda x: torch.max(x, 1),
    "max part": lambda x: x.max(dim=1)[0],
    "norm": lambda x: x.norm(p=1, dim=1),
    "cumsum": lambda x: torch.cumsum(x, 1, dtype=torch.float64),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "topk": lambda x: x.topk(2, dim=1),
    "index": lambda x: x[:, 1:, None, ..., 0],
    "index tensor": lambda x: x[:, torch.tensor([1, 0])],
    "gather": lambda x: torch.gather(x, 1, (x > 0).long()),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "clamp": lambda x: x.clamp(min=-0.5, max=0.5),
    "sdpa": lambda x: F.scaled_dot_product_attention(x, x, value=x, attn_mask=torch.eye(4)),
    "sdpa causal": lambda x: F.scaled_dot_product_attention(query=x, key=x, value=x, is_causal=True),
    "max_pool": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "max_pool stride": lambda x: F.max_pool2d(x, kernel_size=2, stride=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 1)),
    "pad": lambda x: F.pad(x, (1, 2), mode="constant", value=3.0),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="linear", align_corners=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "normalize": lambda x: F.normalize(x, p=1.0, dim=1),
    "chunk": lambda x: x.chunk(2, dim=1)[1],
    "item assignment": lambda x: assigned(x),
    "mT": lambda x: x.mT * 2,
    "masked_fill": lambda x: x.masked_fill(x > 0, -math.inf),
    "divmod": lambda x: x.div(3, rounding_mode="floor"),
}


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 1.0
    return y


class Form(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", FORMS)
def test_arguments_survive(name: str) -> None:
    symbolic = name not in ("layer_norm", "cat of parts", "add out")
    assert_prepared(Form(FORMS[name]), x(2, 4, 4), x(3, 4, 4), without=symbolic)


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(x(10, 3, 1, 1)), nn.Parameter(x(10))
        self.register_buffer("w2", x(10, 1, 1, 1))
        self.slope, self.table = nn.Parameter(torch.tensor([0.2])), nn.Parameter(x(5, 3))

    def forward(self, x):
        y = F.conv2d(x, self.w1, self.b1) + F.conv2d(input=x, weight=self.w1, bias=None, stride=1)
        y = F.conv2d(y, self.w2, groups=10, padding=(0, 0))
        y = F.prelu(y, self.slope)
        z = F.conv2d(x[:1], x[1:2, :, :1, :1])
        return y, z, F.linear(x, x[0, 0]), F.embedding((x[:, 0] > 0).long(), self.table)


def test_weights_may_be_parameters_buffers_or_activations() -> None:
    model = Weights()
    prepared = assert_prepared(model, x(2, 3, 4, 4))
    assert prepared.w1 is model.w1
    assert dict(prepared.named_parameters()).keys() == dict(model.named_parameters()).keys()


def test_functions_with_weights_are_layers_to_quantize() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.l = nn.Parameter(x(8, 3, 3, 3)), nn.Parameter(x(4, 8))

        def forward(self, x):
            return F.linear(F.relu(F.conv2d(x, self.w)).mean((2, 3)), self.l)

    samples = [x(2, 3, 8, 8), x(3, 3, 8, 8)]
    compiled = pb.compile_model(
        prepare_model(Net().eval(), inputs=samples),
        tracing_inputs=samples,
        calibration_inputs=samples,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
        layer_quantization_settings={"module_linear": pb.LayerQuantizationSettings(skip_quantization=True)},
    )
    assert {row.fqn: row.quantized for row in compiled.report.layers} == {"module_conv2d": True, "module_linear": False}
