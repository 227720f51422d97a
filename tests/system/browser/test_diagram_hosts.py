"""The diagram elsewhere: in pages that stand alone, as a widget, and with files that cannot be shown."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from prepbench.document.codec import to_json
from prepbench.document.model import Graph, GraphCollectionDocument, Module, Node
from prepbench.views.display import combined
from prepbench.views.page import write_page
from tests.compile.views.documents import failing, reused
from tests.system.browser.diagrams import View, opened
from tests.system.browser.lab import READY, watch

pytestmark = pytest.mark.timeout(600)

_IN_MODEL, _IN_ITSELF = '"id": "block", "parent": ""', '"id": "block", "parent": "block"'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("newer", to_json(reused()).replace('"version": "1.2"', '"version": "2.0"'), "newer prepbench"),
        ("cut", to_json(reused())[:700], "cut off"),
        ("circle", to_json(reused()).replace(_IN_MODEL, _IN_ITSELF), "hold each other"),
        ("other", '{"cells": [], "version": "1.2"}', "lacks the field"),
    ],
)  # fmt: skip
def test_bad_files_give_a_message(page: Page, lab: Any, name: str, text: str, words: str) -> None:
    problems, _ = watch(page, lab.url)
    view = opened(page, lab, f"{name}.graph.json", text)
    expect(view.root.get_by_role("alert")).to_contain_text(words, timeout=30_000)
    expect(view.root.get_by_role("alert")).to_contain_text("This diagram cannot be shown")
    assert not problems


def test_pages_without_network_with_names_that_are_markup(browser: Browser, tmp_path: Path) -> None:
    evil = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'
    document = failing()
    modules = tuple(replace(m, type=evil) if m.fqn == "gate" else m for m in document.modules)
    nodes = tuple(
        replace(node, target=evil if node.op == "call_method" else node.target, shapes=(evil,))
        for node in document.graphs[0].nodes
    )
    graphs = (Graph("graph:", "", nodes),)
    hostile = GraphCollectionDocument(evil, "module", graphs, modules, document.failures)
    path = write_page(combined(hostile), tmp_path / "evil.html")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(f"file://{path}")
    view = View(page)
    expect(view.root.locator("g.node").first).to_be_visible(timeout=30_000)
    for box in view.root.locator("g.node").all():
        box.click(force=True)
    view.root.get_by_role("searchbox").fill("img")
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hurt") is None
    assert page.locator(".pbd img, .pbd script").count() == 0
    assert evil[:10] in view.root.inner_text()
    context.close()


def test_a_layout_that_takes_too_long_is_stopped(browser: Browser, tmp_path: Path) -> None:
    """Layers with random edges between them have no good layout; the page stays usable and offers something smaller."""
    chance = random.Random(0)
    nodes = [Node(f":n0_{i}", "placeholder", f"n{i}", f"n{i}", shapes=("B",)) for i in range(60)]
    for layer in range(1, 40):
        for i in range(60):
            inputs = tuple({f":n{layer - 1}_{chance.randrange(60)}" for _ in range(8)})
            nodes.append(Node(f":n{layer}_{i}", "call_function", f"n{i}", "n", shapes=("B",), inputs=inputs))
    modules = (Module("", "Dense", "traced"),)
    dense = GraphCollectionDocument("Dense", "module", (Graph("graph:", "", tuple(nodes)),), modules)
    path = write_page(combined(dense), tmp_path / "dense.html")
    page = browser.new_page()
    page.goto(f"file://{path}")
    view = View(page)
    expect(view.box("operations 1 … 40")).to_be_visible(timeout=30_000)
    parts = ["#inputs.1", *(f"#1.{i + 1}" for i in range(59))]
    page.evaluate("() => prepbenchDiagram.setOptions({limit: 5000})")
    start = time.monotonic()
    page.evaluate("(parts) => { prepbenchDiagram.show({open: parts}); }", parts)
    expect(view.root.get_by_role("button", name="Cancel")).to_be_visible(timeout=3_000)
    expect(view.root.locator(".pbd-message")).to_contain_text("longer than 2 s and was stopped", timeout=12_000)
    assert time.monotonic() - start < 9  # one attempt, as there are so many, and starting Graphviz
    view.root.get_by_role("button", name="Keep what is shown").click()
    view.drawn(lambda: view.box("operations 1 … 40").dblclick())
    page.evaluate("() => prepbenchDiagram.setOptions({limit: 300})")
    page.evaluate("(parts) => prepbenchDiagram.show({open: parts})", parts)
    expect(view.root.locator(".pbd-message")).to_contain_text("boxes; more than 300")
    page.close()


def test_the_widget_and_python_know_the_same(page: Page, lab: Any) -> None:
    check_widget(page, lab)


@pytest.mark.stress
def test_the_widget_needs_no_extension(page: Page, lab_without_extension: Any) -> None:
    check_widget(page, lab_without_extension)
    assert page.evaluate("() => window[Symbol.for('prepbench')].assets === undefined")


def check_widget(page: Page, lab: Any) -> None:
    """Selection, overlay and view travel both ways between the page and the kernel."""
    problems, outside = watch(page, lab.url)
    cells = [
        "import torch, prepbench as pb\n"
        "inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), inner).eval()\n"
        "diagram = pb.recursive_trace(model, inputs=torch.randn(3, 4)).diagram()\n"
        "diagram.overlay({'0': 8, '1.1': 4}, name='bits')",
        "print('selected', diagram.selected, diagram.overlay, sorted(diagram.view['open'] or ['auto']))",
        "diagram.selected = ['1.1']; diagram.overlay = ''",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / "widget.ipynb")
    page.goto(f"{lab.url}/lab/tree/widget.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)
    run(page, 0)
    view = View(page)
    expect(view.box("0, Linear")).to_have_class(re.compile("pb-precision-int8"), timeout=60_000)
    view.box("0, Linear").click()
    expect(view.side.locator("h4")).to_have_text("0")
    run(page, 1)
    expect(page.locator(".jp-OutputArea-output", has_text="selected ['0'] bits")).to_be_visible(timeout=30_000)
    run(page, 2)
    expect(view.side.locator("h4")).to_have_text("1.1", timeout=30_000)
    expect(view.legend).not_to_contain_text("int8")
    assert not problems
    assert not outside


def run(page: Page, cell: int) -> None:
    """Run one cell of the notebook in front."""
    page.evaluate(
        """async (cell) => {
          const panel = window.jupyterapp.shell.currentWidget;
          panel.content.activeCellIndex = cell;
          await window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        cell,
    )
