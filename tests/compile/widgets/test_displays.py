"""Widgets are closed when no page shows them any more, so that a notebook of many displays stays fast."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from ipywidgets.widgets.widget import _instances
from torch import nn

import prepbench as pb
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback
from prepbench.widgets import bench as bench_widgets
from prepbench.widgets import displays
from prepbench.widgets.bench import BenchDisplay

SAMPLES = [torch.ones(2, 4), torch.ones(3, 4)]


@pytest.fixture(autouse=True)
def nothing_shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(displays, "_shown", {})
    monkeypatch.delenv("PREPBENCH_STATIC", raising=False)
    before = set(_instances)
    yield
    for name in set(_instances) - before:
        _instances[name].close()


def made() -> pb.Bench:
    return pb.Bench(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), calibration_inputs=SAMPLES)


def click(bench: pb.Bench) -> float:
    start = time.perf_counter()
    bench.set_precision("0", "float32")
    bench.undo()
    return time.perf_counter() - start


def test_a_loop_that_clears_its_output_leaves_no_widget_a_turn() -> None:
    before = len(_instances)
    graph = pb.recursive_trace(nn.Sequential(nn.Linear(4, 2)), inputs=SAMPLES)
    for _ in range(displays.KEPT + 40):
        graph.diagram()._repr_mimebundle_()
    assert len(_instances) - before == 2 * displays.KEPT  # each with its layout


def test_what_a_page_shows_is_never_closed_and_can_be_shown_again_when_it_was() -> None:
    graph = pb.recursive_trace(nn.Sequential(nn.Linear(4, 2)), inputs=SAMPLES)
    seen, gone = graph.diagram(), graph.diagram()
    for each in (seen, gone):
        each._repr_mimebundle_()
        each._view_count = 1
    gone._view_count = 0  # its cell has run again
    for _ in range(displays.KEPT):
        graph.diagram()._repr_mimebundle_()
    assert seen.comm is not None
    assert gone.comm is None
    gone._repr_mimebundle_()
    assert gone.comm is not None


def test_many_displays_of_a_bench_slow_no_click() -> None:
    bench = made()
    bench._repr_mimebundle_()
    box = next(iter(displays._shown))
    box._view_count = 1
    click(bench)
    first = min(click(bench) for _ in range(5))
    for _ in range(displays.KEPT + 20):
        bench._repr_mimebundle_()
        newest = list(displays._shown)[-1]
        newest._view_count = 1
        newest._view_count = 0  # shown, and replaced by the next
    assert len(displays._shown) == displays.KEPT + 1
    assert min(click(bench) for _ in range(5)) < 2 * first + 0.005
    controls = list(displays._shown)[5].children[0]
    bench.set_precision("0", "float32")
    assert controls.code != bench.code()
    list(displays._shown)[5]._view_count = 1  # its tab was opened again
    assert controls.code == bench.code()


def test_a_closed_display_leaves_nothing_behind() -> None:
    bench = made()
    before = set(_instances)
    display = BenchDisplay(bench)
    assert len(set(_instances) - before) >= 9
    display.close()
    assert set(_instances) == before
    bench.set_precision("0", "float32")  # and nobody follows it


@pytest.mark.parametrize("has_name", [False, True])
def test_work_of_a_bench_ends_when_its_cell_runs_again(monkeypatch: pytest.MonkeyPatch, has_name: bool) -> None:
    first, second, begun, go_on = made(), made(), threading.Event(), threading.Event()
    displays_of = []
    for bench in (first, second):
        bench._repr_mimebundle_()
        displays_of.append(next(reversed(displays._shown)))
        displays_of[-1]._view_count = 1
    monkeypatch.setattr(bench_widgets, "user_namespace", lambda: {"bench": first if has_name else second, "_1": first})

    def works(step: ProgressCallback) -> None:
        begun.set()
        while not go_on.wait(0.01):
            step(Progress("calibrate"))

    job = Job(works)
    first.jobs._job = job
    assert begun.wait(10)
    displays_of[0]._view_count = 0
    if has_name:
        time.sleep(0.1)
        assert not job.done
        go_on.set()
    else:
        with pytest.raises(Cancelled):
            job.result(10)
