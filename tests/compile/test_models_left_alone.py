"""Every public function leaves the user's model as it was: tensors, flags, hooks, attributes, objects, globals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import MissingPackageError, TargetError
from prepbench.objects.restore import restored
from prepbench.targets.registry import TARGETS, Target
from tests.fingerprint import left_as_it_was
from tests.turns import every_second
from tests.zoo.state import Counts, Global, Logs, Meter, OnTheClass, counting_hook

SAMPLES = [torch.randn(2, 4), torch.randn(3, 4)]


INT8: dict[str, Any] = {"calibration_inputs": SAMPLES, "quantization_settings": pb.QuantizationSettings()}


class Slotted(nn.Module):
    """What it notes stands in a slot, and not among its attributes."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "seen", [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return x


class Keeps(nn.Module):
    """Layers with weights, batch statistics, two names for one weight, a hook, and values in every kind of place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.drop = nn.Dropout(0.5)
        self.logs, self.glob, self.on_class = Logs(), Global(), OnTheClass()
        self.meter, self.counts, self.slotted, self.calls = Meter(), Counts(), Slotted(), 0
        self.first.register_forward_hook(counting_hook())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.meter.update(x.mean().item())
        self.counts.update(x)
        x = self.slotted(self.on_class(self.glob(self.logs(x))))
        return torch.relu(self.drop(self.norm(self.second(self.first(x)))))


def keeps(training: bool = False) -> Keeps:
    torch.manual_seed(0)
    model = Keeps().train(training)
    model.norm.eval()
    with restored(model):
        model.first(SAMPLES[0]).sum().backward()
    return model


def compiled(model: nn.Module, **more: Any) -> Any:
    return pb.compile_model(model, tracing_inputs=copy.deepcopy(SAMPLES), fullgraph=False, **more)


def bench_actions(model: nn.Module) -> None:
    bench = pb.Bench(model, tracing_inputs=SAMPLES, calibration_inputs=SAMPLES)
    bench.set_target("inductor")
    bench.set_precision("first", bench.precisions["first"])
    bench.set_leaf_wrap(True)
    bench.summary()
    bench.code()
    bench.undo()


FUNCTIONS: dict[str, Callable[[nn.Module], Any]] = {
    "recursive_trace": pb.recursive_trace,
    "recursive_trace with inputs": lambda model: pb.recursive_trace(model, inputs=SAMPLES).document(),
    "RobustTracer": lambda model: pb.RobustTracer().trace(model),
    "capture": lambda model: pb.capture(model, SAMPLES, fullgraph=False),
    "verify": lambda model: pb.capture(model, SAMPLES, fullgraph=False).verify(),
    "findings": lambda model: pb.capture(model, SAMPLES, fullgraph=False).document(),
    "check_traceability": lambda model: pb.check_traceability(model, SAMPLES, target=pb.InductorDeployment()),
    "fix": lambda model: pb.fix(model, SAMPLES),
    "prepare_model": pb.prepare_model,
    "prepare_model with inputs": lambda model: pb.prepare_model(model, inputs=SAMPLES),
    "validate_model": lambda model: pb.validate_model(model, inputs=SAMPLES),
    "DynamicAxes": lambda model: pb.DynamicAxes.infer(SAMPLES, model),
    "explain_settings": lambda model: pb.explain_settings(model, pb.QuantizationSettings()),
    "diagram": lambda model: pb.recursive_trace(model, inputs=SAMPLES).diagram(),
    "dry run": lambda model: compiled(model, is_dry_run=True, deployment_settings=pb.InductorDeployment(), **INT8),
    "bench": bench_actions,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_leave_the_model_as_it_was(name: str, training: bool) -> None:
    model = keeps(training)
    with left_as_it_was(model):
        FUNCTIONS[name](model)


@pytest.mark.parametrize(
    ("target", "more"), every_second({target.name: target for target in TARGETS}, {"float": {}, "int8": INT8})
)
def test_compiling_leaves_the_model_as_it_was(target: Target, more: dict[str, Any]) -> None:
    try:
        target.check_available()
    except MissingPackageError:
        pytest.skip(f"{target.name} is not installed here")
    model = keeps()
    with left_as_it_was(model):
        try:
            compiled(model, deployment_settings=target.settings_type(), **more)(SAMPLES[0])
        except TargetError:  # a target that makes a file only
            assert target.name == "tensorrt"


def test_comparing_leaves_the_model_as_it_was() -> None:
    model = keeps()
    data = [(x, torch.zeros(len(x), 4)) for x in SAMPLES]
    with left_as_it_was(model):
        pb.compare({"float32": model}, data, metric=pb.metrics.sqnr, rounds=0)
