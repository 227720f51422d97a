"""Results of all kinds: what comes back is what the model returns, also from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError

X = [torch.randn(2, 4), torch.randn(3, 4)]
RESULTS: dict[str, Any] = {
    "NaN": lambda y, x: y / 0 * 0,
    "integers": lambda y, x: y.argmax(-1),
    "truth values": lambda y, x: y > 0,
    "with None": lambda y, x: (y, None, (None, y + 1)),
    "an input": lambda y, x: (x, y),
    "a view of an input": lambda y, x: (x[:1], y),
    "twice the same": lambda y, x: [y, y],
    "a dict with numbers as keys": lambda y, x: {"a": y, 3: x + 1},
    "numbers": lambda y, x: (y, 3, 2.5, True, x.shape[0]),
    "the shape": lambda y, x: (y, x.shape),
    "shapes in a dict": lambda y, x: {"y": y, "sizes": [y.shape, x[:1].shape]},
    "no sizes": lambda y, x: y.sum(),
}
NOTHING: dict[str, Any] = {"None": None, "nothing": (), "text": "text"}


class Model(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.layer, self.result = nn.Linear(4, 4), result

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        return self.result(y, x) if callable(self.result) else self.result


@pytest.mark.parametrize("target", [pb.EagerDeployment(), pb.OnnxRuntimeDeployment()], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("name", RESULTS)
def test_results_come_back_as_they_are(name: str, target: pb.DeploymentSettings, tmp_path: Path) -> None:
    model = Model(RESULTS[name]).eval()
    made = pb.compile_model(model, tracing_inputs=X, deployment_settings=target)
    made.save(tmp_path / "model")
    for compiled in (made, pb.load_compiled(tmp_path / "model")):
        for x in (*X, torch.randn(5, 4)):
            with torch.no_grad():
                torch.testing.assert_close(got := compiled(x.clone()), want := model(x), equal_nan=True)
            assert _kinds(got) == _kinds(want)


def _kinds(value: Any) -> Any:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return type(value), [_kinds(part) for part in parts]


class TakesSizes(nn.Module):
    def forward(self, x: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
        return x * sizes[1]


def test_sizes_may_be_arguments() -> None:
    samples = [(x, torch.Size([2, 3])) for x in X]
    compiled = pb.compile_model(TakesSizes(), tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    assert torch.equal(compiled(*samples[0]), X[0] * 3)


@pytest.mark.parametrize("name", NOTHING)
def test_a_model_that_returns_no_tensor_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"Model returns no tensor.*Let forward return"):
        pb.compile_model(Model(NOTHING[name]), tracing_inputs=X, deployment_settings=pb.OnnxRuntimeDeployment())
