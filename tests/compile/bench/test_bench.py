"""The bench without a screen: choices, undo, code, compile and compare."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.state import TARGETS
from prepbench.errors import InputError, SettingsError
from prepbench.targets import TARGETS as ALL_TARGETS


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.act = nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.conv(x)).mean((2, 3)))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def samples() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 1, 8, 8), torch.randn(3, 1, 8, 8)]


@pytest.fixture
def bench(model: nn.Module, samples: list[torch.Tensor]) -> pb.Bench:
    return pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples)


def test_starts_from_what_was_inferred(bench: pb.Bench) -> None:
    assert dict(bench.precisions) == {"conv": "int8", "head": "int8"}
    assert [(a.path, a.dim) for a in bench.axes.axes if a.dynamic] == [("x", 0)]
    assert "Small" in repr(bench)
    assert "bench.compile()" in repr(bench)


def test_choices_and_undo(bench: pb.Bench) -> None:
    bench.set_precision("conv", "float32")
    bench.set_axis("x", 2, True)
    bench.set_target("Inductor")
    assert bench.state.target == "Inductor"
    bench.undo()
    bench.undo()
    assert [a.dim for a in bench.axes.axes if a.dynamic] == [0]
    bench.redo()
    assert [a.dim for a in bench.axes.axes if a.dynamic] == [0, 2]
    bench.set_precision("h*", "int8 weights")
    bench.redo()
    assert dict(bench.precisions) == {"conv": "float32", "head": "int8 weights"}
    for _ in range(9):
        bench.undo()
    assert dict(bench.precisions) == {"conv": "int8", "head": "int8"}


def test_listeners_hear_changes_until_they_stop(bench: pb.Bench) -> None:
    heard: list[str] = []
    stop = bench.on_change(lambda: heard.append(bench.state.target))
    bench.set_target("Inductor")
    bench.set_target("Inductor")  # no change
    stop()
    bench.set_target("ONNX Runtime")
    assert heard == ["Inductor"]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda b: b.set_precision("haed", "float32"), ["'haed'", "head"]),
        (lambda b: b.set_precision("act", "float32"), ["'act'"]),
        (lambda b: b.set_precision("conv", "int3"), ["'int3'", "'int8'"]),
        (lambda b: b.set_target("TPU"), ["'TPU'", "ONNX Runtime"]),
        (lambda b: b.set_target([pb.OnnxRuntimeDeployment()]), ["one name", "bench.set_targets"]),
        (lambda b: b.set_axis("y", 0, True), ["y", "x"]),
    ],
)
def test_wrong_choices_name_the_remedy_and_change_nothing(bench: pb.Bench, action: Any, words: list[str]) -> None:
    before = bench.state
    with pytest.raises(pb.PrepbenchError) as caught:
        action(bench)
    for word in words:
        assert word in str(caught.value)
    assert bench.state is before


def test_construction_errors(model: nn.Module, samples: list[torch.Tensor]) -> None:
    with pytest.raises(InputError, match="tracing_inputs"):
        pb.Bench(model)
    with pytest.raises(InputError, match="data"):
        pb.Bench(model, tracing_inputs=samples, metric=pb.metrics.accuracy)


def test_without_calibration_inputs_everything_stays_float(model: nn.Module, samples: list[torch.Tensor]) -> None:
    bench = pb.Bench(model, tracing_inputs=samples)
    assert set(bench.precisions.values()) == {"float32"}
    with pytest.raises(SettingsError, match="calibration_inputs"):
        bench.set_precision("conv", "int8")
    assert "calibration_inputs" not in bench.code().split("comparison")[0]


def test_code_does_the_same_as_the_switches(bench: pb.Bench, model: nn.Module, samples: list[torch.Tensor]) -> None:
    bench.set_precision("conv", "float32")
    compiled = bench.compile()
    scope: dict[str, Any] = {"model": model, "tracing_inputs": samples, "calibration_inputs": samples}
    exec(bench.code(scope), scope)
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(compiled(x), scope["compiled"](x))
    assert [r.name for r in scope["comparison"].rows] == [r.name for r in bench.comparison.rows]
    rows = {row.fqn: row for row in scope["compiled"].report.layers}
    assert rows["conv"].weights_bits is None or rows["conv"].weights_bits == 32


def test_code_writes_changed_axes_and_hostile_names_safely(samples: list[torch.Tensor]) -> None:
    hostile = 'a"b\\'
    model = nn.Module()
    model.add_module(hostile, nn.Conv2d(1, 2, 3))
    model.forward = lambda x: model.get_submodule(hostile)(x)  # type: ignore[method-assign]
    bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=samples)
    bench.set_axis("x", 0, False)
    code = bench.code()
    assert "axes = axes.set('x', 0, False)" in code
    bench.set_precision(hostile, "float32")
    compile(bench.code(), "bench", "exec")


def test_results_are_kept_by_name(bench: pb.Bench) -> None:
    bench.compile()
    bench.compile()
    assert list(bench.results) == ["int8 ONNX Runtime"]
    bench.set_precision("conv", "int8 weights")
    bench.compile()
    bench.set_precision("conv", "int8")
    bench.set_precision("head", "int8 weights")
    bench.compile()
    assert list(bench.results) == ["int8 ONNX Runtime", "mixed int8 ONNX Runtime", "mixed int8 ONNX Runtime (2)"]
    assert [row.name for row in bench.comparison.rows] == ["float32", "mixed int8 ONNX Runtime (2)"]
    assert [row.name for row in bench.all_results().rows] == ["float32", *bench.results]
    assert [row.name for row in bench.compare().rows] == ["float32", *bench.results]


def test_cancelled_compile_keeps_everything(bench: pb.Bench) -> None:
    def cancel(step: pb.Progress) -> None:
        if step.stage == "calibrate":
            raise pb.Cancelled("stop")

    before = {name: value.clone() for name, value in bench.model.state_dict().items()}
    with pytest.raises(pb.Cancelled):
        bench.compile(cancel)
    assert not bench.results
    assert bench.comparison is None
    assert all(torch.equal(before[name], value) for name, value in bench.model.state_dict().items())


def test_background_job_reports_its_end(bench: pb.Bench) -> None:
    ends: list[BaseException | None] = []
    stages: list[str] = []
    job = bench.start(lambda p: stages.append(p.stage), ends.append)
    assert bench.job is job
    assert job.result(timeout=300) is bench.results["int8 ONNX Runtime"]
    assert ends == [None]
    assert {"capture", "calibrate"} <= set(stages)


def test_every_target_can_be_chosen(bench: pb.Bench) -> None:
    assert set(TARGETS.values()) == {target.settings_type for target in ALL_TARGETS}
    for name, settings in TARGETS.items():
        bench.set_target(name)
        assert f"deployment_settings=pb.{settings.__name__}()" in bench.code()


def test_what_a_bench_was_given_says_how_to_replace_it() -> None:
    bench = pb.Bench(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(SettingsError, match=r"Make another bench: pb\.Bench\(model, data=\.\.\.\)"):
        bench.data = [1]
    with pytest.raises(SettingsError, match="can be read only"):
        bench.comparison = None
