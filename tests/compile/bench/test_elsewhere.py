"""Runs of other machines and notebooks, and results of a file: told apart, hollow in the chart, switched off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, UnknownNameError
from prepbench.results.journal import Journal
from prepbench.views.charts import runs_bundle
from prepbench.widgets.bench import BenchControls


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def bench(folder: Path) -> pb.Bench:
    """A saved bench, beside whose run the journal has one of another machine and one of another notebook."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JPY_SESSION_NAME", "/home/somebody/here.ipynb")
        torch.manual_seed(0)
        samples = [torch.randn(2, 4), torch.randn(3, 4)]
        made = pb.Bench(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval(), calibration_inputs=samples)
        made.set_target("PyTorch eager")
        made.compile()
    made.save(folder / "net.bench.json")
    assert made.journal_path is not None
    (first,) = Journal(made.journal_path).runs()
    first = replace(first, p50_ms=2.0)
    far = replace(
        first,
        id="far",
        name="far",
        machine="arm64 Darwin, laptop",
        notebook="train.ipynb",
        p50_ms=1.0,
        made=first.made + 0.5,
    )
    near = replace(first, id="near", name="near", notebook="other.ipynb", made=first.made + 1)
    Journal(made.journal_path).write(far, near)
    made.update_runs()
    Journal(folder / "search.sqlite").record(replace(far, settings_name="").result, "s1")
    Journal(folder / "search.sqlite").record(replace(far, model="ff-00", score=1.0).result, "s2")
    return made


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch, bench: pb.Bench) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/somebody/here.ipynb")
    bench.show_elsewhere(True)
    bench.show_results(None)


def _listed(bench: pb.Bench) -> dict[str, tuple[str, bool]]:
    return {run.name: (run.where, run.is_far) for run in bench.summary().runs}


def test_runs_from_elsewhere_are_told_apart(bench: pb.Bench) -> None:
    assert _listed(bench) == {
        "int8 PyTorch eager": ("", False),
        "far": ("laptop · train.ipynb", True),
        "near": ("other.ipynb", False),
    }
    assert bench.summary().elsewhere.count == 2
    assert bench.runs[0].notebook == "here.ipynb"


def test_they_are_switched_off(bench: pb.Bench) -> None:
    bench.show_elsewhere(False)
    assert list(_listed(bench)) == ["int8 PyTorch eager"]
    assert bench.summary().elsewhere.count == 2
    assert len(bench.runs) == 3, "the history has them all the same"


def test_results_of_a_file_can_be_looked_at(bench: pb.Bench, folder: Path) -> None:
    assert bench.show_results(folder / "search.sqlite") == 1, "those of another model are left out"
    summary = bench.summary()
    (other,) = [run for run in summary.runs if not run.is_own]
    assert (other.name, other.where, other.is_far) == ("int8 PyTorch eager (2)", "laptop · train.ipynb", True)
    assert other.model == "Sequential"
    assert summary.elsewhere.path.endswith("search.sqlite")
    assert summary.staleness[summary.stale_of[summary.runs.index(other)]].texts == ()
    with pytest.raises(UnknownNameError):
        bench.restore_run(other.id)
    results = bench.all_results()
    assert results is not None
    assert other.name in [row.name for row in results.rows]
    with pytest.raises(InputError, match="no journal"):
        bench.show_results(folder / "none.sqlite")
    assert bench.run_history.results_path is not None, "a path that is wrong changes nothing"


def test_results_of_other_weights_say_so(bench: pb.Bench, folder: Path) -> None:
    def said() -> str:
        bench.show_results(folder / "search.sqlite")
        (other,) = [run for run in bench.summary().runs if not run.is_own]
        return other.name

    before = said()
    assert "other weights" not in before
    kept = bench.model.state_dict()["0.bias"].clone()
    with torch.no_grad():
        bench.model[0].bias.add_(1)  # type: ignore[index, union-attr, operator]
        assert said() == "int8 PyTorch eager, other weights"
        bench.model[0].bias.copy_(kept)  # type: ignore[index, union-attr, operator]
    assert said() == before


def test_other_machines_are_hollow_and_on_no_front(bench: pb.Bench) -> None:
    results = bench.all_results()
    assert results is not None
    ids = {run.name: run.id for run in bench.runs}
    traces = runs_bundle(results, ids, {"far"})["application/vnd.plotly.v1+json"]["data"]
    symbols = {trace["name"]: trace["marker"]["symbol"] for trace in traces if trace.get("name")}
    assert symbols["far"] == "circle-open"
    assert symbols["near"] != "circle-open"
    lines = [trace for trace in traces if trace.get("mode") == "lines"]
    assert all(1.0 not in list(line["x"]) for line in lines)
    plain = runs_bundle(results, ids)["application/vnd.plotly.v1+json"]["data"]
    assert "circle-open" not in [trace["marker"]["symbol"] for trace in plain if trace.get("name")]


def test_what_the_page_asks_for(bench: pb.Bench, folder: Path) -> None:
    controls = BenchControls(bench)
    ask = lambda **content: controls._handle_custom_msg(content, [])  # noqa: E731
    ask(action="show_results", path=str(folder / "search.sqlite"))
    assert len(controls.runs) == 4
    ask(action="show_elsewhere", shown=False)
    assert len(controls.runs) == 1
    ask(action="show_results", path=str(folder / "none.sqlite"))
    assert controls.message["kind"] == "error"
    ask(action="show_results", path=" ")
    assert controls.elsewhere["path"] == ""
    controls.close()


def test_a_journal_of_an_older_version_names_no_notebook(bench: pb.Bench) -> None:
    data = json.loads(json.dumps(bench.runs[0].to_json()))
    del data["notebook"]
    assert type(bench.runs[0]).from_json(data).notebook == ""
