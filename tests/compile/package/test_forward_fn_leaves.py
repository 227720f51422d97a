"""``forward_fn`` and methods other than ``forward``, with lines that stay in Python: compiled, saved, and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ArtifactError, SettingsError

SAMPLES = [torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]
CALLS = [*SAMPLES, *(-sample for sample in SAMPLES)]


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self(x)
        if y.sum() > 0:
            y = y - 1
        return y.sin()


def generates(model: Any, args: Any, kwargs: Any) -> Any:
    return model.generate(*args, **kwargs)


def decides(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args, **kwargs)
    if y.sum() > 0:
        return y.cos()
    return -y


@pytest.fixture(scope="module")
def model() -> Encodes:
    torch.manual_seed(0)
    return Encodes().eval()


def compiled(called: Any, **more: Any) -> pb.CompiledModel:
    result: pb.CompiledModel = pb.compile_model(
        called, tracing_inputs=SAMPLES, fullgraph=False, deployment_settings=pb.EagerDeployment(), **more
    )
    return result


def check(got: Callable[..., Any], expected: Callable[..., Any]) -> None:
    for x in CALLS:
        torch.testing.assert_close(got(x), expected(x))


@pytest.mark.parametrize("forward_fn", [generates, decides])
def test_lines_that_only_forward_fn_leads_to_stay_in_python(model: Encodes, forward_fn: Any, tmp_path: Path) -> None:
    made = compiled(model, forward_fn=forward_fn)
    assert made.needs_model
    check(made, lambda x: forward_fn(model, (x,), {}))
    made.save(tmp_path / "model")
    with pytest.raises(ArtifactError, match="hand it in, too, with forward_fn="):
        pb.load_compiled(tmp_path / "model", model=model)
    loaded = pb.load_compiled(tmp_path / "model", model=model, forward_fn=forward_fn)
    check(loaded, lambda x: forward_fn(model, (x,), {}))


def test_a_method_is_compiled_and_loaded(model: Encodes, tmp_path: Path) -> None:
    made = compiled(model.generate)
    check(made, model.generate)
    made.save(tmp_path / "model")
    check(pb.load_compiled(tmp_path / "model", model=model.generate), model.generate)
    with pytest.raises(ArtifactError):
        pb.load_compiled(tmp_path / "model", model=model)
    with pytest.raises(SettingsError, match="forward_fn= is for a model that was compiled with one"):
        pb.load_compiled(tmp_path / "model", model=model.generate, forward_fn=generates)


def test_a_method_is_captured_with_leaves(model: Encodes) -> None:
    captured = pb.capture(model.generate, SAMPLES, fullgraph=False)
    assert captured.leaves
    check(captured.program.module(), model.generate)
