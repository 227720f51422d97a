"""Caches that count in Python: the numbers are part of a graph, so other numbers are refused wherever they come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError


class Cache:
    """A window of keys, and how many there were."""

    def __init__(self, batch: int, seen: Any) -> None:
        self.keys, self.seen = torch.ones(batch, 3), seen


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, cache: Cache) -> Any:
        cache.keys = torch.cat([cache.keys, x], -1)[:, -3:]
        cache.seen = cache.seen + x.shape[-1]
        return self.layer(cache.keys) * cache.seen, cache


def sample(batch: int, seen: Any) -> tuple[torch.Tensor, Cache]:
    return torch.randn(batch, 2), Cache(batch, seen)


def samples() -> list[Any]:
    return [sample(2, 5), sample(3, 5)]


TARGETS = {"eager": pb.EagerDeployment(), "ONNX Runtime": pb.OnnxRuntimeDeployment()}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "recursive_trace": lambda model, given: pb.recursive_trace(model, inputs=given),
    "prepare_model": lambda model, given: pb.prepare_model(model, inputs=given),
    "capture": pb.capture,
    "compile_model": lambda model, given: pb.compile_model(model, tracing_inputs=given),
    "check_traceability": pb.check_traceability,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_samples_that_differ_in_it_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"'cache.seen' differs between sample 0 and sample 1: 5 and 6.* as a tensor"):
        FUNCTIONS[name](Model(), [sample(2, 5), sample(3, 6)])


@pytest.mark.parametrize("target", TARGETS)
def test_a_compiled_model_refuses_other_numbers(target: str, tmp_path: Path) -> None:
    model = Model().eval()
    made = pb.compile_model(model, tracing_inputs=samples(), deployment_settings=TARGETS[target])
    made.save(tmp_path / "model")
    x = sample(4, 5)[0]
    expected = model(x, Cache(4, 5))[0]
    for compiled in (made, pb.load_compiled(tmp_path / "model")):
        torch.testing.assert_close(compiled(x, Cache(4, 5))[0], expected)
        for call in (lambda c=compiled: c(x, Cache(4, 6)), lambda c=compiled: c(x, cache=Cache(4, 6))):
            with pytest.raises(InputError, match=r"cache.seen was 5 when the model was compiled.* got 6"):
                call()


def test_a_prepared_model_refuses_other_numbers() -> None:
    prepared = pb.prepare_model(Model(), inputs=samples())
    prepared(*sample(4, 5))
    for call in (lambda: prepared(*sample(4, 6)), lambda: prepared(torch.ones(4, 2), cache=Cache(4, 6))):
        with pytest.raises(InputError, match=r"cache.seen is 6, .* was prepared with 5"):
            call()


def test_a_number_that_is_a_tensor_is_an_input() -> None:
    model = Model().eval()
    given = [sample(2, torch.tensor(5)), sample(3, torch.tensor(6))]
    prepared = pb.prepare_model(model, inputs=given)
    compiled = pb.compile_model(model, tracing_inputs=given, deployment_settings=TARGETS["ONNX Runtime"])
    x = sample(4, None)[0]
    for found in (prepared, compiled):
        torch.testing.assert_close(found(x, Cache(4, torch.tensor(40)))[0], model(x, Cache(4, torch.tensor(40)))[0])
