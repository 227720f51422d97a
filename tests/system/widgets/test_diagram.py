"""The diagram's Python side: what it sends, its traits, overlays, pages; and the scripts that it ships."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import prepbench as pb
from prepbench.document.codec import from_json
from prepbench.document.model import DiagramDocument
from prepbench.errors import InputError, StorageError
from prepbench.views.display import combined
from prepbench.views.page import STATIC, page
from prepbench.widgets.diagram import DiagramWidget, diagram
from tests.compile.views.documents import failing, language_model, reused

ROOT = Path(__file__).parents[3]
EXTENSION = ROOT / "extension"


def asked(widget: DiagramWidget, **content: Any) -> tuple[dict[str, Any], list[bytes]]:
    """What the widget answers to a message of the page."""
    answers: list[Any] = []
    widget.send = lambda content, buffers=None: answers.append((content, buffers or []))  # type: ignore[method-assign]
    widget._handle_custom_msg(content, [])
    assert len(answers) == 1
    return answers[0]


def test_the_page_gets_the_document_packed_and_graphviz_on_request() -> None:
    widget = diagram(failing())
    read = from_json(gzip.decompress(widget.data).decode())
    assert isinstance(read, DiagramDocument)
    assert read.documents[0].model_type == "Net"
    content, buffers = asked(widget, action="layout")
    assert content == {"action": "layout"}
    assert gzip.decompress(buffers[0]).decode() == (STATIC / "layout.js").read_text()


def test_large_documents_travel_small() -> None:
    assert len(diagram(language_model(24, 80)).data) < 60_000


def test_overlays_by_calling_the_trait() -> None:
    widget = diagram(failing())
    assert widget.overlay == ""
    table = pandas.DataFrame({"layer": ["gate", "unused"], "weights_bits": [8, 4], "sqnr": [31.5, float("nan")]})
    assert widget.overlay(table, "weights_bits") is widget
    assert widget.overlay == "weights_bits"
    assert type(widget.get_state()["overlay"]) is str, "other hosts than Jupyter write no classes of ours"
    widget.overlay(table, "sqnr")
    assert widget.overlay == "sqnr"
    kinds = {each["name"]: (each["kind"], each["unit"], each["combine"]) for each in widget.overlays}
    assert kinds == {"weights_bits": ("precision", "", "sum"), "sqnr": ("number", "dB", "min")}
    assert [value["text"] for value in widget.overlays[0]["values"]] == ["int8", "int4"]
    assert len(widget.overlays[1]["values"]) == 1  # a missing value is none
    widget.overlay = "weights_bits"
    seen: list[str] = []
    widget.observe(lambda change: seen.append(change["new"]), "overlay")
    widget.overlay = ""
    assert seen == [""]
    widget.overlay({"gate": "slow", "unused": "fast"}, name="speed")
    assert widget.overlays[-1]["kind"] == "category"
    widget.overlay(pandas.Series({"gate": -0.5, "unused": 0.5}, name="delta"), unit="ms")
    assert widget.overlays[-1]["diverging"] is True
    assert widget.document.overlay == "delta"
    assert json.dumps(widget.overlays)


@pytest.mark.parametrize(
    ("table", "keywords", "words"),
    [
        ({"gat": 1.0}, {}, "Did you mean gate"),
        ({}, {}, "no values"),
        (pandas.DataFrame({"fqn": ["gate"], "a": [1], "b": [2]}), {}, "a, b"),
        (pandas.DataFrame({"fqn": ["gate"], "a": [1]}), {"column": "c"}, "no column 'c'"),
        ({"gate": 1.0}, {"combine": "median"}, "sum, mean, max, min"),
        ([1, 2], {}, "got list"),
    ],
)
def test_bad_overlays_are_refused(table: Any, keywords: dict[str, Any], words: str) -> None:
    widget = diagram(failing())
    with pytest.raises(InputError, match=words):
        widget.overlay(table, **keywords)
    assert widget.overlays == []
    with pytest.raises(InputError, match="no overlay 'bits'"):
        widget.overlay = "bits"


def test_several_levels_and_comparisons() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    collection, captured = pb.recursive_trace(model), pb.capture(model, torch.randn(3, 4))
    both = combined(collection, captured)
    assert [document.level for document in both.documents] == ["module", "aten"]
    assert collection.diagram(captured).document.documents == both.documents
    pair = combined(collection, pb.recursive_trace(torch.nn.Sequential(model[0], torch.nn.GELU())), compare=True)
    assert pair.titles == ("before", "after")
    assert {(mark.document, mark.change) for mark in pair.marks} == {(0, "changed"), (1, "changed")}
    assert "1 (ReLU) became 1 (GELU)" in {mark.note for mark in pair.marks}
    for bad in ((), (model,), (collection,)):
        with pytest.raises(InputError):
            combined(*bad, compare=True)
    with pytest.raises(InputError, match="2 graphs and 1 titles"):
        combined(collection, captured, titles=("one",))


def test_functions_that_became_modules_are_paired() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(self.fc(x)) + x

    model = Net().eval()
    prepared = pb.prepare_model(model)
    pair = combined(pb.recursive_trace(model), pb.recursive_trace(prepared), compare=True)
    changed = [mark for mark in pair.marks if mark.document == 0]
    assert {mark.id: mark.change for mark in changed} == {":relu": "changed", ":add": "changed"}


def test_a_page_stands_alone(tmp_path: Path) -> None:
    path = pb.recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2))).to_html(tmp_path / "model.html")
    text = path.read_text()
    assert "{{" not in text.partition("<body>")[0]
    assert not [line for line in text.splitlines() if "src=" in line[:200] or "<link" in line[:200]]
    assert "default-src 'none'" in text
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StorageError, match=r"none.*no such file or directory"):
        pb.recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2))).to_html(tmp_path / "none" / "model.html")
    hostile = page(failing())
    assert "<b>" not in hostile.partition("<noscript>")[2].partition("</noscript>")[0]


def test_a_page_can_be_made_from_what_the_front_end_holds() -> None:
    widget = diagram(reused())
    content, buffers = asked(widget, action="page", document=gzip.decompress(widget.data).decode())
    assert content == {"action": "page"}
    assert buffers[0].decode().startswith("<!doctype html>")
    content, buffers = asked(widget, action="page", document="{")
    assert "not valid JSON" in content["error"]
    content, buffers = asked(widget, action="explode")
    assert content == {
        "action": "explode",
        "error": "Unknown action 'explode'. The known actions are again, layout, page.",
    }


def test_text_is_there_where_the_widget_is_not() -> None:
    bundle = diagram(failing())._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "✕ gate Gate data-dependent branch" in data["text/plain"]


def test_scripts_are_small_and_self_contained() -> None:
    for name, limit in {"diagram.js": 100_000, "bench.js": 128_000, "page.js": 100_000}.items():
        script = (STATIC / name).read_text()
        assert len(script.encode()) < limit, name
        assert "http://" not in script.replace("http://www.w3.org", "")
        assert "https://" not in script
        assert "innerHTML" not in script
        assert "eval(" not in script


def test_generated_files_are_fresh() -> None:
    subprocess.run([sys.executable, EXTENSION / "generate.py", "--check"], check=True)


@pytest.mark.skipif(
    not (EXTENSION / "node_modules/.bin/esbuild").exists(), reason="front end tools are not installed (make frontend)"
)
def test_committed_scripts_are_fresh(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node
    folders = {"static": STATIC, "assets": None, "site": EXTENSION.parent / "docs" / "_static"}
    subprocess.run([node, "build.mjs", *(tmp_path / name for name in folders)], cwd=EXTENSION, check=True)
    for name, committed in folders.items():
        for file in (tmp_path / name).iterdir() if committed else ():
            assert file.read_text() == (committed / file.name).read_text(), f"{file.name} is stale: make frontend"
