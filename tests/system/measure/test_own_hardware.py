"""What does not run on its own hardware here is scored and not timed: in the table, the chart and the text alike."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.measure import process
from prepbench.targets import tensorrt
from prepbench.targets.registry import target_named

WHY = "not timed: it ran on a desktop, not on its own hardware"


@pytest.mark.parametrize(
    ("system", "machine", "place"),
    [
        ("Linux", "x86_64", "on a desktop"),
        ("Windows", "AMD64", "on a desktop"),
        ("Darwin", "arm64", "on a desktop"),
        ("Linux", "aarch64", ""),
        ("Linux", "armv7l", ""),
        ("Android", "aarch64", ""),
    ],
)
def test_executorch_is_for_phones(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, place: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert target_named("executorch").runs_elsewhere() == place


@pytest.mark.parametrize("has_gpu", [True, False])
def test_tensorrt_is_for_gpus(monkeypatch: pytest.MonkeyPatch, has_gpu: bool) -> None:
    monkeypatch.setattr(tensorrt, "has_tensorrt", lambda: has_gpu)
    assert target_named("tensorrt").runs_elsewhere() == ("" if has_gpu else "in ONNX Runtime")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "inductor", "eager"])
def test_those_for_cpus_are_at_home(name: str) -> None:
    assert target_named(name).runs_elsewhere() == ""


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(process, "_busy_seconds", lambda: 0.0)


@pytest.mark.usefixtures("desktop")
@pytest.mark.parametrize("order", [("float", "phone"), ("phone", "float")])
def test_it_has_no_time_and_no_speed_up(exported: type[Any], order: tuple[str, str]) -> None:
    given = torch.ones(2, 4)
    models = {name: exported(nn.Linear(4, 3), given) for name in order}
    models["phone"].target = "executorch"
    found = pb.compare(models, [given], rounds=2)
    phone = found["phone"]
    assert (phone.p50_ms, phone.p90_ms, phone.interval_ms, phone.timed_in) == (None, None, None, "not timed")
    assert phone.note == WHY
    assert found["float"].p50_ms is not None
    assert found.speed_ups == (None, None)
    assert f"phone: {WHY}" in repr(found)
    line = next(line for line in repr(found).splitlines() if line.startswith("phone"))
    assert "×" not in line
    assert [trace.name for trace in found.figure().data] == ["float"]
    assert "better than phone" not in found.figure().layout.title.text
    assert WHY in found._repr_mimebundle_()["text/html"]
    assert found.table()["p50 ms"].isna().sum() == 1


@pytest.mark.usefixtures("desktop")
def test_without_rounds_nothing_is_said_about_times(exported: type[Any]) -> None:
    given = torch.ones(2, 4)
    model = exported(nn.Linear(4, 3), given)
    model.target = "executorch"
    assert pb.compare({"phone": model}, [given], rounds=0)["phone"].note == ""
    assert pb.compare({"phone": model}, [given], rounds=1).caption.endswith("0 calls in 1 interleaved round.")
