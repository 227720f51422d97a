"""A sweep measures each combination once, shows failures as rows, and goes on where it was interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, SettingsError, UnknownNameError
from prepbench.jobs import Progress
from prepbench.results.journal import Journal
from prepbench.search import sweep as sweeping

SETTINGS = {"float": None, "int8": pb.QuantizationSettings()}
TARGETS = [pb.OnnxRuntimeDeployment()]


def small(width: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3)).eval()


def samples() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(size, 8) for size in (4, 6)]


class Fails(nn.Module):
    """No graph can hold it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_every_combination_is_a_row_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    path, steps = tmp_path / "results.sqlite", list[Progress]()
    axes = {"model": {"a": small(), "b": small(6)}, "target": [*TARGETS, pb.EagerDeployment()], "settings": SETTINGS}
    first = pb.sweep(axes, samples(), rounds=0, results=path, progress=steps.append)
    assert [(row.model_name, row.target, row.settings_name) for row in first][:5] == [
        ("a", "eager", "float32"),
        ("a", "onnxruntime", "float"),
        ("a", "onnxruntime", "int8"),
        ("a", "eager", "float"),
        ("a", "eager", "int8"),
    ]
    assert (len(first), first.measured, len(first.failed)) == (10, 10, 0)
    assert {step.message for step in steps if step.stage == "sweep"} == {
        "a on ONNX Runtime", "a on PyTorch eager", "b on ONNX Runtime", "b on PyTorch eager",
    }  # fmt: skip
    int8 = first.find("a", "onnxruntime", "int8")
    assert int8.score is not None
    assert int8.unit == "dB"
    assert 15 < int8.score < 90
    assert {layer.weights_bits for layer in int8.report} == {8}
    again = pb.sweep({**axes, "model": {"c": small(), "b": small(6)}}, samples(), rounds=0, results=path)
    assert again.measured == 0, "names are not what results are found by"
    assert {row.model_name for row in again} == {"c", "b"}
    wider = {**axes, "model": {"a": small()}, "settings": {**SETTINGS, "4 bits": pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True)}}  # fmt: skip
    assert pb.sweep(wider, samples(), rounds=0, results=path).measured == 2
    assert len(pb.load_results(path)) == 12
    with pytest.raises(UnknownNameError, match="a, onnxruntime, int8"):
        first.find("a", "onnxruntime", "int4")


def test_what_differs_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    axes = {"model": {"a": small()}, "settings": {"float": None}}
    assert pb.sweep(axes, samples(), rounds=0, results=path).measured == 2
    assert pb.sweep(axes, samples(), rounds=0, results=path).measured == 0
    other = small()
    with torch.no_grad():
        other[0].weight[0, 0] += 1  # type: ignore[index, operator]
    assert pb.sweep({**axes, "model": {"a": other}}, samples(), rounds=0, results=path).measured == 2
    activation = small()
    activation[1] = nn.ReLU6()  # type: ignore[operator]
    assert pb.sweep({**axes, "model": {"a": activation}}, samples(), rounds=0, results=path).measured == 2
    assert pb.sweep(axes, [2 * one for one in samples()], rounds=0, results=path).measured == 2
    data = [(samples()[0], torch.zeros(4).long())]
    assert pb.sweep(axes, samples(), data, metric=pb.metrics.accuracy, rounds=0, results=path).measured == 2
    for row in Journal(path).results():  # those of another machine
        Journal(path).record(replace(row, machine="another", made=0.0, model="x"), row.key[:8] + str(row.made))
    assert pb.sweep(axes, samples(), rounds=0, results=path).measured == 0


RESUMED = """
import json, sys
from pathlib import Path
import prepbench as pb
from tests.system.search.test_sweep import SETTINGS, samples, small
swept = pb.sweep({"model": {"a": small()}, "settings": SETTINGS}, samples(), rounds=0, results=sys.argv[1])
print(json.dumps([swept.measured, [row.score for row in swept]]))
"""


@pytest.mark.stress
def test_another_notebook_goes_on_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.sqlite"
    kept = sweeping._Sweep._keep
    stored: list[Any] = []

    def crashing(self: Any, row: Any) -> Any:
        if stored:
            raise KeyboardInterrupt
        stored.append(kept(self, row))
        return stored[-1]

    monkeypatch.setattr(sweeping._Sweep, "_keep", crashing)
    with pytest.raises(KeyboardInterrupt):
        pb.sweep({"model": {"a": small()}, "settings": SETTINGS}, samples(), rounds=0, results=path)
    monkeypatch.undo()
    whole = pb.sweep({"model": {"a": small()}, "settings": SETTINGS}, samples(), rounds=0)
    done = subprocess.run([sys.executable, "-c", RESUMED, str(path)], capture_output=True, text=True, timeout=300)
    measured, scores = json.loads(done.stdout.splitlines()[-1])
    assert measured == 2
    assert scores == pytest.approx([row.score for row in whole], abs=1e-3)


def test_failures_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    bad = {"layer_quantization_settings": {"none": pb.LayerQuantizationSettings()},
           "quantization_settings": pb.QuantizationSettings()}  # fmt: skip
    axes = {"model": {"good": small(), "bad": Fails()}, "settings": {"float": None, "lost": bad}}
    swept = pb.sweep(axes, samples(), rounds=0, results=path)
    assert [(row.model_name, row.settings_name) for row in swept.failed] == [
        ("good", "lost"), ("bad", "float"), ("bad", "lost"),
    ]  # fmt: skip
    table = swept.table()
    assert "matches no" in table["error"][2] or "none" in table["error"][2]
    assert table["score"].notna().sum() == 2
    assert pb.sweep(axes, samples(), rounds=0, results=path).measured == 3, "what failed is tried again"


def test_the_model_in_pytorch_has_one_row() -> None:
    swept = pb.sweep({"model": {"a": small()}, "target": [pb.EagerDeployment()]}, samples(), rounds=0)
    assert [(row.target, row.settings_name) for row in swept] == [("eager", "float32")]
    assert swept.measured == 1


def test_candidates_are_timed_side_by_side() -> None:
    swept = pb.sweep({"model": {"a": small()}, "settings": {"float": None}}, samples(), rounds=2)
    reference, row = swept
    assert reference.p50_ms
    assert row.p50_ms
    assert row.reference is not None
    assert (row.reference.name, row.reference.p50_ms) == ("PyTorch eager", reference.p50_ms)
    assert reference.reference is None
    assert swept.speed_ups[0] is None
    assert swept.speed_ups[1] is not None
    assert swept.speed_ups[1].baseline == "PyTorch eager"
    assert swept.speed_ups[1].text in repr(swept)
    assert {trace.name for trace in swept.figure().data} == {"a · eager", "a · onnxruntime"}


def test_cancelling_keeps_what_was_measured(tmp_path: Path) -> None:
    path, begun = tmp_path / "results.sqlite", threading.Event()
    axes = {"model": {"a": small(), "b": small(5)}, "settings": {"float": None}}

    def progress(step: Progress) -> None:
        if step.message.startswith("b on"):
            begun.set()
            raise pb.Cancelled("stop")

    with pytest.raises(pb.Cancelled):
        pb.sweep(axes, samples(), rounds=0, results=path, progress=progress)
    assert begun.is_set()
    assert len(pb.load_results(path)) == 2
    assert pb.sweep(axes, samples(), rounds=0, results=path).measured == 2


def test_workers_measure_what_this_process_would(tmp_path: Path) -> None:
    targets = {"model": {"a": small()}, "settings": SETTINGS}
    here = pb.sweep(targets, samples(), rounds=0)
    data = [(sample, torch.zeros(len(sample)).long()) for sample in samples()]
    scored = pb.sweep(targets, samples(), data, metric=pb.metrics.accuracy, rounds=0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pb.sweep(targets, samples(), rounds=0, executor=pool, results=tmp_path / "results.sqlite")
        assert [row.score for row in there] == pytest.approx([row.score for row in here], abs=1e-3)
        assert [row.size_bytes for row in there] == pytest.approx([row.size_bytes for row in here], abs=50)
        again = pb.sweep(targets, samples(), rounds=0, executor=pool, results=tmp_path / "results.sqlite")
        assert again.measured == 0
        other = pb.sweep(targets, samples(), data, metric=pb.metrics.accuracy, rounds=0, executor=pool)
        assert [row.score for row in other] == [row.score for row in scored]


@pytest.mark.parametrize(
    ("axes", "error", "words"),
    [
        ({}, SettingsError, "lacks 'model'"),
        ({"model": {}}, SettingsError, r"axes\['model'\] is empty"),
        ({"models": small()}, SettingsError, "Did you mean 'model'"),
        ({"model": small(), "target": []}, SettingsError, r"axes\['target'\] is empty"),
        ({"model": small(), "target": ["onnxruntime"]}, SettingsError, r"pb.OnnxRuntimeDeployment\(\)"),
        ({"model": small(), "settings": {"int8": 8}}, SettingsError, r"axes\['settings'\]\['int8'\] must be None"),
        ({"model": small(), "settings": {"a": {"quantization": None}}}, SettingsError, "mean 'quantization_settings'"),
        ({"model": {"a": 3}}, InputError, r"axes\['model'\]\['a'\] must be a module"),
        ([small()], SettingsError, "axes must be a dict"),
    ],
)
def test_axes_that_are_none_are_refused(axes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pb.sweep(axes, samples())


def test_models_without_data_are_named() -> None:
    two = {"model": {"a": small(), "b": small(5)}}
    with pytest.raises(InputError, match="calibration_inputs has nothing for the model 'b'"):
        pb.sweep(two, {"a": samples()})
    with pytest.raises(InputError, match=r"has a key 'bb', which is not a model. Did you mean 'b'"):
        pb.sweep(two, {"a": samples(), "bb": samples()})
    with pytest.raises(InputError, match="data has nothing for the model 'a'"):
        pb.sweep(two, samples(), metric=pb.metrics.accuracy)
    with pytest.raises(InputError, match="must be a pair"):
        pb.sweep(two, samples(), samples(), metric=pb.metrics.accuracy)
    with pytest.raises(InputError, match="calibration_inputs of 'a' is empty"):
        pb.sweep(two, [])
    listed = pb.sweep({"model": [small(), small(5)]}, iter(samples()), rounds=0)
    assert listed.models == ("Sequential 1", "Sequential 2")
