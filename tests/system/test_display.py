"""What an output holds: a text, one picture and the document; the live view where somebody can use it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench._display import is_static
from prepbench.document.bench import BENCH_MIME_TYPE
from prepbench.document.model import MIME_TYPE
from prepbench.errors import SettingsError
from prepbench.measure.comparison import CandidateResult, Comparison

VIEW = "application/vnd.jupyter.widget-view+json"
PICTURES = {"text/html", "image/svg+xml", "image/png"}
MODEL = """
import torch
import prepbench as pb

net = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.Flatten(), torch.nn.Linear(24, 3)).eval()
samples = [torch.ones(2, 2, 8), torch.ones(3, 2, 8)]
graph = pb.recursive_trace(net, inputs=samples)
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench._display._chosen", None)
    monkeypatch.delenv("PREPBENCH_STATIC", raising=False)


@pytest.fixture(scope="module")
def displays() -> dict[str, Any]:
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(24, 3)).eval()
    samples = [torch.ones(2, 2, 8), torch.ones(3, 2, 8)]
    graph, captured = pb.recursive_trace(net, inputs=samples), pb.capture(net, samples)
    return {
        "collection": graph,
        "captured": captured,
        "diagram": graph.diagram(),
        "two graphs": pb.diagram(graph, captured),
        "before and after": pb.diagram(graph, graph, compare=True),
        "bench": pb.Bench(net, calibration_inputs=samples),
    }


def data_of(shown: Any) -> Mapping[str, Any]:
    bundle = shown._repr_mimebundle_()
    found: Mapping[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
    return found


@pytest.mark.skipif(shutil.which("dot") is None, reason="pictures need Graphviz")
def test_each_display_holds_a_text_one_picture_and_the_document(displays: dict[str, Any]) -> None:
    live = ("diagram", "two graphs", "before and after", "bench")
    for name, display in displays.items():
        data = data_of(display)
        assert (VIEW in data) == (name in live), name
        assert data["text/plain"].split()[0] not in ("", "<prepbench"), name
        (picture,) = PICTURES & set(data)
        graphs = 2 if name in ("two graphs", "before and after") else 1
        shown = data[picture].count("<svg ") if picture == "image/svg+xml" else data[picture].count("<img ")
        assert shown == graphs, name
        assert {MIME_TYPE, BENCH_MIME_TYPE} & set(data), name


def test_static_gives_the_same_text_and_picture_and_nothing_else(displays: dict[str, Any]) -> None:
    of = ("saved artifact", "eager", "own process")
    rows = tuple(CandidateResult(name, 0.9, 0.0, 3.0, 4.0, None, 10**6, *of) for name in ("float", "int8"))
    for display in (*displays.values(), Comparison(rows, "accuracy", "", True, 64, 8, 10, 2)):
        plain = {kind: value for kind, value in data_of(display).items() if not kind.startswith("application/")}
        with pb.static():
            assert data_of(display) == plain
        assert len(plain) == 2


def test_without_graphviz_the_picture_is_the_tree(displays: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    data = data_of(displays["diagram"])
    assert "Conv1d" in data["text/html"]
    assert "Install Graphviz" in data["text/html"]


def test_a_switch_a_block_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_static()
    with pb.static():
        assert is_static()
        with pb.static(False):
            assert not is_static()
        assert is_static()
    assert not is_static()
    monkeypatch.setenv("PREPBENCH_STATIC", "1")
    assert is_static()
    assert "live views" in repr(pb.static(False))
    assert not is_static()
    with pytest.raises(SettingsError, match="on must be True or False"):
        pb.static("no")  # type: ignore[arg-type]
    assert not is_static()


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("true", True), ("0", False), ("False", False), ("off", False)]
)
def test_the_variable_is_read_as_people_write_it(text: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPBENCH_STATIC", text)
    assert is_static() is expected


def test_a_picture_that_stands_alone_is_light_on_a_light_page(displays: dict[str, Any]) -> None:
    """Its reader's system may be dark, and the page knows nothing of that."""
    with pb.static():
        bundle = displays["diagram"]._repr_mimebundle_()
    svg = (bundle[0] if isinstance(bundle, tuple) else bundle)["image/svg+xml"]
    assert "--pb-page" in svg
    assert "prefers-color-scheme" not in svg


def test_no_state_of_widgets_is_made_where_pictures_are_shown() -> None:
    graph = pb.recursive_trace(nn.Sequential(nn.Linear(4, 2)), inputs=torch.ones(2, 4))
    with pb.static():
        diagram = graph.diagram()
        diagram.selected = ["0"]
        data_of(diagram)
        assert diagram.comm is None
        assert diagram.overlay({"0": 8}, name="bits").overlay == "bits"
        assert repr(diagram) == "Diagram of Sequential (module graph)"
        assert diagram.model_id == diagram.comm.comm_id  # in a box of ipywidgets, which only a page can show


def run(*cells: str, **environment: str) -> Any:
    """The notebook after a program has run it, as nbconvert, papermill and books do."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (MODEL, *cells)])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    return notebook


def kinds(notebook: Any) -> list[set[str]]:
    return [set(output["data"]) for cell in notebook.cells for output in cell.outputs]


def test_a_program_gets_pictures_and_no_state_of_widgets() -> None:
    notebook = run(
        "graph.diagram()", "pb.Bench(net, calibration_inputs=samples)", "with pb.static(False): display(graph)"
    )
    diagram, bench, graph = kinds(notebook)
    assert VIEW not in diagram | bench | graph
    assert MIME_TYPE in diagram
    assert BENCH_MIME_TYPE in bench
    assert "widgets" not in notebook.metadata


def test_live_views_can_be_asked_for_where_a_program_runs_the_notebook() -> None:
    notebook = run("graph.diagram()", "pb.static()\ngraph.diagram()", PREPBENCH_STATIC="0")
    live, still = kinds(notebook)
    assert VIEW in live
    assert VIEW not in still
    assert (
        len(notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]) == 2
    )  # and its layout
    assert VIEW in kinds(run("graph.diagram()", SERVER_SOFTWARE="voila/0.5", PREPBENCH_PROGRESS="0"))[0]
