"""Two runs of a bench sample by sample: which ones they differ on most, and what the page and a saved bench show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.document.bench import bench_from_json
from prepbench.errors import SettingsError
from prepbench.widgets.bench import bench_widget

BATCHES = [torch.rand(4, 3, 8, 8) * scale for scale in (0.2, 1.0, 0.4)]


@pytest.fixture(scope="module")
def bench() -> pb.Bench:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)).eval()
    bench = pb.Bench(net, tracing_inputs=BATCHES[:1], calibration_inputs=BATCHES, data=BATCHES)
    bench.set_target("PyTorch eager")
    bench.compile()
    bench.set_precision("2", "int4 weights")
    bench.compile()
    return bench


def test_the_farthest_samples_are_shown_with_both_outputs_as_images(bench: pb.Bench) -> None:
    one, other = bench.runs
    job = bench.start_comparing(one.id, other.id)
    assert bench.run_history.difference.samples.caption.startswith("Looking for")
    assert job is not None
    job.result(60)
    first, second = bench.results[one.name], bench.results[other.name]
    apart = []
    for batch, rows in enumerate(BATCHES):
        for row, (x, y) in enumerate(zip(first(rows), second(rows), strict=True)):
            decibels = float(10 * torch.log10(x.double().square().mean() / (x - y).double().square().mean()))
            apart.append((decibels, f"batch {batch}, row {row}"))
    shown = bench.summary().difference.samples
    assert (shown.first, shown.second) == (one.name, other.name)
    assert [sample.place for sample in shown.samples] == [place for _, place in sorted(apart)[:3]]
    assert float(shown.samples[0].distance.split()[0]) == pytest.approx(min(apart)[0], rel=0.02)
    for sample in shown.samples:
        parts = (*sample.inputs, *sample.first, *sample.second)
        assert [part.modality for part in parts] == ["image"] * 3
        assert len({part.picture for part in parts}) == 3
        assert sample.inputs[0].name == "input", "as forward names it"


def test_layers_are_coloured_by_what_the_second_run_loses(bench: pb.Bench) -> None:
    one, other = bench.runs
    colours = bench.compare_runs(one.id, other.id).colours
    lost = dict(zip(colours.fqns, colours.values, strict=True))
    assert lost["2"] > 5, "the layer of 4 bits is worse"
    assert lost["2"] > lost["0"]
    assert colours.title == f"SQNR lost from {one.name} to {other.name}; below 0 is gained"
    assert colours.unit == "dB"
    turned = bench.compare_runs(other.id, one.id).colours
    assert turned.values == tuple(-value for value in colours.values)
    (picture,) = bench_widget(bench).children[1].children
    assert picture.overlay == turned.title
    bench.restore_run(one.id)  # other precisions than before
    assert picture.overlay == turned.title, "the words beside it say that the diagram has these colours"
    bench.run_history.end_comparison()
    assert picture.overlay == "precision"
    bench.undo()


def test_a_saved_bench_keeps_the_samples_and_says_why_there_are_no_others(bench: pb.Bench, tmp_path: Path) -> None:
    one, other = bench.runs
    job = bench.start_comparing(one.id, other.id)
    assert job is not None
    job.result(60)
    bench.save(tmp_path / "net.bench.json")
    document = bench_from_json((tmp_path / "net.bench.json").read_text(encoding="utf-8"))
    assert document.shown.samples == bench.summary().difference.samples
    loaded = pb.Bench.load(tmp_path / "net.bench.json", model=bench.model, calibration_inputs=BATCHES)
    assert loaded.start_comparing(one.id, other.id) is None
    said = loaded.summary().difference.samples
    assert "compiled in another session" in said.caption
    assert not said.samples
    with pytest.raises(SettingsError, match="compiled in another session"):
        loaded.worst_samples(one.id, other.id)


def test_samples_that_come_too_late_are_not_shown(bench: pb.Bench) -> None:
    one, other = bench.runs
    jobs = [bench.start_comparing(one.id, other.id), bench.start_comparing(other.id, one.id)]
    for job in jobs:
        assert job is not None
        job.result(60)
    assert bench.summary().difference.samples.first == other.name
    job = bench.start_comparing(one.id, other.id)
    bench.run_history.end_comparison()
    assert job is not None
    job.result(60)
    assert not bench.summary().difference.samples.samples


def test_two_different_runs_are_needed(bench: pb.Bench) -> None:
    one, _ = bench.runs
    with pytest.raises(SettingsError, match="Give two runs"):
        bench.worst_samples(one.id, one.id)
