"""A bench whose compile fails or is cancelled late: what it kept is whole, and what was made before stays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile import stages
from prepbench.errors import TargetError
from prepbench.targets import target_for

SEVERAL = (pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment(), pb.EagerDeployment())
# what the temporary folders of compiled models are for
FOLDERS = {"onnxruntime": "onnx", "openvino": "openvino"}
LATE = ("progress", "LoweredCheck", "measured_size")


def target_name(settings: pb.DeploymentSettings) -> str:
    return target_for(settings).name


def samples() -> list[torch.Tensor]:
    return [torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows)) for rows in (4, 5)]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The temporary folders that are there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda: sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("prepbench-"))


def bench_of(net: nn.Module, *targets: pb.DeploymentSettings) -> pb.Bench:
    bench = pb.Bench(net, tracing_inputs=samples(), calibration_inputs=samples())
    bench.set_targets(targets)
    return bench


def fails_once(monkeypatch: pytest.MonkeyPatch, place: str, number: int) -> Callable[[pb.Progress], None]:
    """Makes the given target's compile fail at the end of lowering; returns what listens to the progress."""
    counts = dict.fromkeys(LATE, 0)

    def reached(name: str) -> bool:
        counts[name] += 1
        return name == place and counts[name] == number + 1

    def listen(step: pb.Progress) -> None:
        if step.stage == "lower" and step.done == step.total and reached("progress"):
            raise pb.Cancelled("Stopped.")

    def failing(name: str) -> Callable[..., Any]:
        real = getattr(stages, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            made = real(*args, **kwargs)
            if reached(name):
                raise TargetError("The disk of the target is on fire.")
            return made

        return called

    for name in LATE[1:]:
        monkeypatch.setattr(stages, name, failing(name))
    return listen


def fresh(net: nn.Module, target: pb.DeploymentSettings, **keywords: Any) -> pb.CompiledModel:
    return pb.compile_model(net, tracing_inputs=samples(), deployment_settings=target, **keywords)


@pytest.mark.parametrize(("number", "place"), [*enumerate(("LoweredCheck", "progress", "measured_size"))])
def test_a_run_over_several_targets_that_failed_late_runs_again(
    net: nn.Module, folders: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    bench = bench_of(net, *SEVERAL)
    listen = fails_once(monkeypatch, place, number)
    with pytest.raises((pb.Cancelled, TargetError)) as kept_by_a_notebook:
        bench.compile(listen)
    ended = SEVERAL[:number] if place == "progress" else (*SEVERAL[:number], *SEVERAL[number + 1 :])
    before = dict(bench.results)
    assert len(before) == len(ended)
    assert sorted(name.split("-")[1] for name in folders()) == [
        FOLDERS[target] for target in map(target_name, ended) if target in FOLDERS
    ]
    x = torch.randn(7, 6)
    for name, model in before.items():  # neither their folders nor what they hold is touched
        model(x)
        model.save(Path(tempfile.gettempdir()) / name)
    bench.compile()
    assert all("capture" in run.reused for run in bench.runs if not run.error and run.name not in before)
    int8 = {"calibration_inputs": samples(), "quantization_settings": pb.QuantizationSettings()}
    for name, target in zip(bench.results, SEVERAL, strict=True):
        torch.testing.assert_close(bench.results[name](x), fresh(net, target, **int8)(x), rtol=0, atol=0, msg=name)
        bench.results[name].save(Path(tempfile.gettempdir()) / f"again {name}")
    del kept_by_a_notebook


@pytest.mark.stress
def test_inductor_compiles_again_after_a_late_cancel(
    net: nn.Module, folders: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, target, x = pb.KeptStages(), pb.InductorDeployment(), torch.randn(7, 6)
    listen = fails_once(monkeypatch, "progress", 0)
    with pytest.raises(pb.Cancelled):
        fresh(net, target, reuse=kept, progress=listen)
    assert folders() == []
    again = fresh(net, target, reuse=kept)
    assert again.report.reused == ("capture",)
    torch.testing.assert_close(again(x), net(x))
    again.save(Path(tempfile.gettempdir()) / "model")
