"""The JupyterLab extension, as a person uses it: files, outputs, the side panel, the launcher."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

import prepbench as pb
from prepbench.document.codec import to_json
from tests.system.browser.lab import is_local

MODEL = """
import torch
from torch import nn


class Doubled(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return x


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), Doubled(), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)))
"""
MODULES = ["Small", "stem", "layers", "0", "1", "2", "head"]
FAILING_LINE = next(n for n, line in enumerate(MODEL.splitlines(), 1) if "if x.sum" in line)
RESTORED = "() => window.jupyterapp?.restored.then(() => true)"
PATH_IN_FRONT = "() => window.jupyterapp.shell.currentWidget?.context?.path ?? ''"

KERNEL = "() => window.jupyterapp.shell.currentWidget.sessionContext?.session?.kernel"


@pytest.fixture
def graph(lab: Any) -> str:
    """The document of a small model with one failure, as text; its source lies beside it as ``small.py``."""
    import torch

    file = lab.folder / "small.py"
    file.write_text(MODEL)
    module = _load(file)
    return to_json(pb.recursive_trace(module.Small(), inputs=[torch.rand(2, 4), torch.rand(3, 4)]).document())


@pytest.fixture
def troubles(page: Page, lab: Any) -> Iterator[list[str]]:
    """Errors in the page and requests that leave the Lab; afterwards the page lets go of the server."""
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("console", lambda message: seen.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("request", lambda request: None if is_local(request.url, lab.url) else seen.append(f"out: {request.url}"))
    yield seen
    page.close()


def test_a_graph_file_opens_as_a_diagram_with_its_modules(
    page: Page, lab: Any, graph: str, troubles: list[str]
) -> None:
    (lab.folder / "small.graph.json").write_text(graph)
    _open(page, lab, "small.graph.json")
    diagram = page.locator(".pbl-document .pbd")
    expect(diagram.locator("svg g.node").first).to_be_visible(timeout=60_000)

    panel = _show_panel(page)
    rows = panel.get_by_role("treeitem")
    expect(rows).to_have_count(len(MODULES))
    assert rows.locator(".pbl-name").all_text_contents() == MODULES
    head = rows.filter(has_text="head")
    head.click()
    expect(head).to_have_attribute("aria-selected", "true")
    panel.get_by_role("tree").press("Home")
    panel.get_by_role("tree").press("Enter")
    expect(rows.first).to_have_attribute("aria-selected", "true")
    panel.get_by_role("searchbox", name="Filter modules").fill("doubled")
    assert rows.locator(".pbl-name").all_text_contents() == ["Small", "layers", "1"]

    (lab.folder / "small.graph.json").write_text(graph.replace('"head"', '"newhead"'))
    panel.get_by_role("searchbox").fill("")
    expect(panel.get_by_role("treeitem").filter(has_text="newhead")).to_be_visible(timeout=20_000)
    assert not troubles, troubles


def test_a_failure_names_its_line_and_opens_it(page: Page, lab: Any, graph: str, troubles: list[str]) -> None:
    (lab.folder / "small.graph.json").write_text(graph)
    _open(page, lab, "small.graph.json")
    failure = _show_panel(page).locator(".pbl-failure")
    expect(failure).to_have_count(1, timeout=60_000)
    expect(failure).to_contain_text("data-dependent branch")
    expect(failure.locator(".pbl-remedy")).to_contain_text("torch.where")
    failure.get_by_role("button", name=f"Open line · small.py:{FAILING_LINE}").click()
    page.wait_for_function(f"() => ({PATH_IN_FRONT})() === 'small.py'", timeout=30_000)
    page.wait_for_function(
        "line => window.jupyterapp.shell.currentWidget.content.editor?.getCursorPosition().line === line - 1",
        arg=FAILING_LINE,
    )
    expect(failure).to_have_count(1)
    assert not troubles, troubles


def test_an_untrusted_notebook_shows_its_diagram_without_a_kernel(
    page: Page, lab: Any, graph: str, troubles: list[str]
) -> None:
    hostile = graph.replace('"head"', '"<img src=x onerror=alert(1)>"')
    bundles = [_bundle(json.loads(graph)), _bundle(json.loads(hostile))]
    cells = [_cell(f"# {number}\n{MODEL}", bundle) for number, bundle in enumerate(bundles)]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (lab.folder / "saved.ipynb").write_text(json.dumps(notebook))
    _open(page, lab, "saved.ipynb")
    page.locator(".jp-Dialog .jp-mod-reject").click()
    expect(page.locator(".pbl-output .pbd svg g.node").first).to_be_visible(timeout=60_000)

    panel = _show_panel(page)
    choice = panel.get_by_role("combobox", name="Diagram")
    expect(choice.locator("option")).to_have_count(2)
    choice.select_option(index=1)
    expect(panel.get_by_role("treeitem").filter(has_text="<img")).to_be_visible()
    assert panel.locator("img").count() == 0
    assert not troubles, troubles


def test_a_line_of_a_cell_is_found_in_its_notebook(page: Page, lab: Any, graph: str, troubles: list[str]) -> None:
    document = json.loads(graph)
    for failure in [*document["failures"], *(m["failure"] for m in document["modules"] if m["failure"])]:
        failure["source"] |= {"file": "notebook cell"}
    cells = [_cell("1 + 1", {}), _cell(MODEL, _bundle(document))]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (lab.folder / "cells.ipynb").write_text(json.dumps(notebook))
    _open(page, lab, "cells.ipynb")
    page.locator(".jp-Dialog .jp-mod-reject").click()
    _show_panel(page).get_by_role("button", name=f"Open line · notebook cell:{FAILING_LINE}").click(timeout=60_000)
    page.wait_for_function(
        """line => {
          const { activeCellIndex, activeCell } = window.jupyterapp.shell.currentWidget.content;
          return activeCellIndex === 1 && activeCell.editor?.getCursorPosition().line === line - 1;
        }""",
        arg=FAILING_LINE,
    )
    assert not troubles, troubles


def test_the_launcher_makes_a_notebook(page: Page, lab: Any, troubles: list[str]) -> None:
    (lab.folder / "mine").mkdir()
    page.goto(f"{lab.url}/lab?reset")
    page.wait_for_function(RESTORED, timeout=90_000)
    page.evaluate("() => window.jupyterapp.commands.execute('filebrowser:open-path', {path: 'mine'})")
    expect(page.locator(".jp-Launcher")).to_be_visible(timeout=30_000)
    card = page.locator(".jp-LauncherCard", has_text="New model preparation notebook")
    expect(card.locator("svg").first).to_be_visible()
    card.click()
    page.wait_for_function(f"() => ({PATH_IN_FRONT})().endsWith('.ipynb')", timeout=30_000)
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(5)
    page.wait_for_function(f"() => ({KERNEL})()?.connectionStatus === 'connected'", timeout=60_000)
    made = list((lab.folder / "mine").glob("*.ipynb"))
    assert len(made) == 1
    assert "pb.recursive_trace" in made[0].read_text()
    assert not troubles, troubles


def _open(page: Page, lab: Any, path: str) -> None:
    page.goto(f"{lab.url}/lab/tree/{path}?reset")
    page.wait_for_function(RESTORED, timeout=90_000)
    page.wait_for_function(f"path => ({PATH_IN_FRONT})() === path", arg=path, timeout=30_000)


def _show_panel(page: Page) -> Locator:
    page.evaluate("() => window.jupyterapp.commands.execute('prepbench:show-panel')")
    panel = page.locator("#prepbench-model-panel")
    expect(panel).to_be_visible()
    return panel


def _bundle(document: Any) -> dict[str, Any]:
    return {"application/vnd.prepbench.graph+json": document, "text/plain": "a model"}


def _cell(source: str, bundle: dict[str, Any]) -> dict[str, Any]:
    shown = {"output_type": "display_data", "metadata": {}, "data": bundle}
    return {
        "id": f"cell-{abs(hash((source, len(bundle)))) % 10**8}",
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "source": source,
        "outputs": [shown] if bundle else [],
    }


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepbench_lab_test_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
