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
from prepbench.views.display import LIMIT, collection_bundle, failures_table
from prepbench.views.dot import document_to_graphviz, render, to_dot
from prepbench.views.page import to_text
from prepbench.views.scene import BOXES, Box, Cluster, View, all_boxes, scene
from tests.compile.views import golden
from tests.compile.views.documents import failing, language_model, reused, skips, troubled

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


def boxes(cluster: Cluster) -> list[Box]:
    return list(all_boxes(cluster))


def shown(document: GraphCollectionDocument, **keywords: Any) -> dict[str, Box]:
    return {box.id: box for box in boxes(scene(document, **keywords).root)}


def test_every_status_is_shown_with_word_and_shape() -> None:
    view = scene(failing())
    assert view.counts == (("failed", 1), ("leaf", 1), ("unvisited", 1))
    dot = to_dot(view)
    for word in (
        "✕ failed",
        "▣ kept in PyTorch",
        "∅ not reached",
        "octagon",
        "component",
        "dashed",
        "data-dependent branch",
    ):
        assert word in dot
    text = to_text(failing())
    assert "✕ gate Gate data-dependent branch" in text
    assert "∅ unused Dropout never called" in text


def test_a_module_that_is_never_called_is_drawn_once_however_often_the_one_around_it_is() -> None:
    document = reused()
    document = replace(document, modules=(*document.modules, Module("block.spare", "Dropout", "unvisited")))
    opened = frozenset(group.id for group in document.groups)
    found = [box.fqn for box in boxes(scene(document, expanded=opened).root) if box.status == "unvisited"]
    assert found == ["block.spare"]


def test_sizes_are_not_drawn_and_draw_no_edges() -> None:
    view = scene(failing())
    assert ":size" not in {box.id for box in boxes(view.root)}
    assert view.edges == ((":x", ":gate"), (":gate", ":odd"), (":odd", ":output"))


@needs_dot
def test_names_from_models_are_text_never_markup() -> None:
    svg = render(scene(failing()))
    assert svg is not None
    root = ElementTree.fromstring(svg)
    (page,) = (shape for shape in root.iter("{http://www.w3.org/2000/svg}rect") if shape.get("class") == "page")
    assert page.get("fill") == "#ffffff"  # for programs that know no variables of CSS
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
    view = scene(model, view=View(open=frozenset({"layers"}), unfolded=frozenset({"layers"})))
    uses = [(source, target) for source, target in view.edges if source == ":mask"]
    assert uses == [(":mask", "module:layers.0")]
    chips = [box for box in boxes(view.root) if box.kind == "reference"]
    assert len(chips) == 11  # the first block is next to it
    assert {box.title for box in chips} == {"◄ mask"}


def test_a_connection_over_many_ranks_becomes_a_reference() -> None:
    view = scene(skips(12))
    chips = [box.id for box in boxes(view.root) if box.kind == "reference"]
    assert "ref::down0>:up11" in chips
    assert (":down11", ":up0") in view.edges
    assert len(chips) == 6  # the inner ones are short


@needs_dot
def test_a_large_document_is_drawn_quickly_and_saved_small() -> None:
    model = language_model()
    assert len(model.graphs[0].nodes) > 1900
    start = time.perf_counter()
    bundle = collection_bundle(_collection(model))
    assert time.perf_counter() - start < 3  # some ten times what it takes
    assert len(json.dumps(bundle).encode()) <= LIMIT
    assert 'src="data:image/svg+xml' in bundle["text/html"]


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


def test_scenes_are_those_of_the_golden_files() -> None:
    for name, text in golden.files().items():
        assert (golden.FOLDER / name).read_text() == text, f"{name}: python -m tests.compile.views.golden --write"


def test_blocks_that_are_alike_are_folded_until_one_differs() -> None:
    titles = {box.id: box.title for box in shown(language_model(6), expanded={"layers"}).values() if box.kind == "fold"}
    assert titles == {"fold:layers.0": "0 … 5"}
    folds = [box.title for box in shown(troubled(8), expanded={"layers"}).values() if box.kind == "fold"]
    assert folds == ["0 … 1", "5 … 7"]  # 2 holds a failure, 4 a leaf
    assert shown(troubled(), expanded={"layers"})["module:layers.2"].inside == (("failed", 1),)


def test_calls_of_one_module_are_told_apart() -> None:
    found = shown(reused(), expanded={"block@3"})
    assert found["fold:block"].detail.startswith("↻ 2,")
    assert found[":block_linear_2"].calls == "3/5"
    assert [group.id for group in reused().groups] == ["", "block", "block@2", "block@3", "block@4", "block@5"]


def test_a_container_between_whose_members_others_run_is_no_frame() -> None:
    nodes = []
    for i in range(3):
        for part in ("a", "b"):
            nodes.append(Node(f":{part}{i}", "call_module", part, f"list.{i}.{part}", f"list.{i}.{part}", "Linear"))
        nodes.append(Node(f":add{i}", "call_function", "add", "add"))
    modules = (Module("", "Net", "traced", calls=1), Module("list", "ModuleList", "traced"))
    modules += tuple(Module(f"list.{i}", "Block", "traced", calls=1) for i in range(3))
    document = GraphCollectionDocument("Net", "module", (Graph("graph:", "", tuple(nodes)),), modules)
    found = shown(document, expanded=set())
    assert [(box.id, box.title) for box in found.values() if box.kind == "module"] == [
        (f"module:list.{i}", f"list.{i}") for i in range(3)
    ]


def test_one_module_can_fill_the_diagram_with_its_surroundings_as_references() -> None:
    view = scene(language_model(3, 8), view=View(open=frozenset(), root="layers.1"))
    kinds = {box.id: box.kind for box in boxes(view.root)}
    assert kinds == {
        "module:layers.1.attention": "module",
        "module:layers.1.mlp": "module",
        "from::n0_7": "reference",
        "from::mask": "reference",
        "to:module:layers.1.mlp": "reference",
    }
