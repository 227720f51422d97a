"""What a diagram shows: hierarchy, failures, references, and escaping on the way to DOT and SVG."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from prepbench.document.model import Graph, GraphCollectionDocument, Module, Node
from prepbench.views.details import details, next_level, toggled
from prepbench.views.display import LIMIT, collection_bundle
from prepbench.views.dot import document_to_graphviz, to_dot
from prepbench.views.scene import BOXES, Box, Cluster, scene
from prepbench.views.svg import render
from prepbench.views.tables import failures_table
from prepbench.views.text import to_text
from tests.views.documents import failing, language_model

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def boxes(cluster: Cluster) -> list[Box]:
    return [*cluster.boxes, *(box for child in cluster.clusters for box in boxes(child))]


def shown(document: GraphCollectionDocument, **keywords: Any) -> dict[str, Box]:
    return {box.id: box for box in boxes(scene(document, **keywords).root)}


def test_every_status_is_shown_with_word_and_shape() -> None:
    view = scene(failing())
    assert view.counts == (("failed", 1), ("leaf", 1), ("unvisited", 1))
    dot = to_dot(view)
    for word in (
        "✕ failed",
        "▣ leaf-wrapped",
        "∅ unvisited",
        "octagon",
        "component",
        "dashed",
        "data-dependent branch",
    ):
        assert word in dot
    text = to_text(failing())
    assert "✕ gate Gate data-dependent branch" in text
    assert "∅ unused Dropout never called" in text


def test_sizes_are_not_drawn_and_draw_no_edges() -> None:
    view = scene(failing())
    assert ":size" not in {box.id for box in boxes(view.root)}
    assert view.edges == ((":x", ":gate"), (":gate", ":odd"), (":odd", ":output"))


@needs_dot
def test_names_from_models_are_text_never_markup() -> None:
    svg = render(scene(failing()))
    assert svg is not None
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert '<b>"x"\\</b>' in texts
    drawing = {"svg", "g", "path", "polygon", "polyline", "ellipse", "text", "title", "style", "rect"}
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= drawing
    page = collection_bundle(_collection(failing()))["text/html"]
    assert "<b>bool</b>" not in page
    assert "if x.sum() &gt; 0:" in page
    assert document_to_graphviz(failing()).pipe("svg")


def test_first_view_of_a_deep_model_is_small_and_failures_are_opened() -> None:
    model = language_model()
    assert len([box for box in shown(model).values() if box.kind != "reference"]) <= BOXES
    broken = tuple(replace(m, status="failed") if m.fqn == "layers.7.mlp" else m for m in model.modules)
    opened = scene(replace(model, modules=broken)).expanded
    assert {"layers", "layers.7"} <= opened


def test_a_value_used_everywhere_becomes_references() -> None:
    model = language_model(12)
    view = scene(model, expanded={"layers"})
    uses = [(source, target) for source, target in view.edges if source == ":mask"]
    assert not uses
    chips = [box for box in boxes(view.root) if box.kind == "reference"]
    assert len(chips) == 12
    assert {box.title for box in chips} == {"◄ mask"}


@needs_dot
def test_a_large_document_is_drawn_quickly_and_saved_small() -> None:
    model = language_model()
    assert len(model.graphs[0].nodes) > 1900
    start = time.perf_counter()
    bundle = collection_bundle(_collection(model))
    assert time.perf_counter() - start < 3  # some ten times what it takes
    assert len(json.dumps(bundle).encode()) <= LIMIT
    assert 'src="data:image/svg+xml' in bundle["text/html"]


def test_opening_and_closing_modules() -> None:
    model = language_model(3)
    first = scene(model).expanded
    opened = toggled(model, frozenset({"", "layers"}), "module:layers.1")
    assert "layers.1" in opened
    assert toggled(model, opened | {"layers.1.mlp"}, "module:layers.1") == frozenset({"", "layers"})
    assert toggled(model, opened, ":n1_0") == opened | {"layers.1.attention"}
    assert next_level(model, frozenset({""})) == frozenset({"", "layers"})
    assert first >= {""}


def test_details_tell_reason_line_and_remedy() -> None:
    found = details(failing(), ":gate", frozenset({""}))
    assert found["title"] == "gate"
    assert ["reason", "data-dependent branch"] in found["rows"]
    assert found["code"] == "net.py:7\nif x.sum() > 0:"
    assert found["remedy"] == "Use torch.where."
    assert details(failing(), "module:unused", frozenset())["rows"][1] == ["status", "unvisited"]
    assert details(failing(), "nothing", frozenset()) == {}


def test_a_failed_root_is_drawn_with_what_was_captured_inside() -> None:
    inner = Graph("graph:body", "body", (Node("body:a", "call_module", "a", "body.a", "body.a", "Linear", inputs=()),))
    modules = (Module("", "Net", "failed"), Module("body", "Body", "traced"), Module("body.a", "Linear", "traced"))
    found = shown(GraphCollectionDocument("Net", "module", (Graph("graph:", "", ()), inner), modules))
    assert found["module:"].status == "failed"
    assert "body:a" in found


def test_an_empty_document_can_be_shown() -> None:
    empty = GraphCollectionDocument("Net", "module", (Graph("graph:", "", ()),), (Module("", "Net", "traced"),))
    assert to_text(empty).startswith("Net")
    assert "Net" in collection_bundle(_collection(empty))["text/html"]


def test_without_graphviz_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    page = collection_bundle(_collection(failing()))["text/html"]
    assert "apt-get install graphviz" in page
    assert "✕ gate Gate data-dependent branch" in page


def test_failures_table() -> None:
    table = failures_table(failing().failures)
    assert list(table["module"]) == ["gate"]
    assert table.loc[0, "line"] == 7
    assert list(failures_table(()).columns) == list(table.columns)


def _collection(document: GraphCollectionDocument) -> Any:
    return SimpleNamespace(document=lambda: document, failures=document.failures)
