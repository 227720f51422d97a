"""Small models for the stress tests, and everything about a model that must be as it was afterwards."""

from __future__ import annotations

import builtins
import math
from typing import Any

import torch
from torch import fx, nn

import prepbench as pb


class Small(nn.Module):
    """A model that decides by size, keeps state, and differs from its siblings."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.first = nn.Linear(4, 6 + number)
        self.norm = nn.BatchNorm1d(6 + number)
        self.rest = nn.Sequential(*(nn.Linear(6 + number, 6 + number) for _ in range(1 + number % 3)))
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x))
        if x.shape[0] > 1000:
            y = y * 2
        return torch.nn.functional.elu(self.rest(y), 0.5) + max(len(x), 1)


def samples() -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 4 * size).reshape(size, 4) for size in (2, 5)]


def trace(model: nn.Module) -> Any:
    return [str(graph) for graph in pb.recursive_trace(model, inputs=samples()).graphs.values()]


def capture(model: nn.Module) -> Any:
    captured = pb.capture(model, samples())
    return [str(node) for node in captured.program.graph.nodes], captured.program.module()(samples()[1])


def prepare(model: nn.Module) -> Any:
    prepared = pb.prepare_model(model, inputs=samples())
    return repr(prepared), prepared(samples()[1])


def compile_float(model: nn.Module) -> Any:
    return pb.compile_model(model, tracing_inputs=samples())(samples()[1])


def compile_int8(model: nn.Module) -> Any:
    compiled = pb.compile_model(
        model,
        tracing_inputs=samples(),
        calibration_inputs=samples(),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    )
    return repr(compiled.report.layers), compiled(samples()[1])


STEPS = (trace, capture, prepare, compile_float, compile_int8)


def same(one: Any, other: Any) -> bool:
    """Whether two results of a step are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def fingerprint(model: nn.Module) -> list[Any]:
    """Values of tensors, and which objects a model consists of."""
    parts: list[Any] = []
    for name, module in model.named_modules():
        tensors = [tensor for table in (module._parameters, module._buffers) for tensor in table.values()]
        parts += [name, module.training, sorted(vars(module)), [id(value) for value in vars(module).values()]]
        parts += [(id(t), t.requires_grad, t.device, t.detach().clone()) for t in tensors if t is not None]
        parts += [list(value) for value in vars(module).values() if isinstance(value, dict | list)]
    return parts


def replaceable() -> dict[str, Any]:
    """What tracing replaces in Python and torch for a time, by name."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    owners = (builtins, math, nn.Module, fx._symbolic_trace._Patcher, fx.Interpreter, FakeTensorMode, torch.compiler)
    flags = (torch.compiler.is_compiling, torch.compiler.is_exporting, fx._symbolic_trace.is_fx_tracing)
    found: dict[str, Any] = {
        f"{owner.__name__}.{name}": id(value)
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value)
    }
    return {**found, **{flag.__name__: (flag(), flag.__code__) for flag in flags}}
