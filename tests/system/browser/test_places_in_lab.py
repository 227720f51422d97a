"""Where live views stand in JupyterLab: boxes of ipywidgets, pages with a policy, notebooks that are not trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.lab import READY, Lab, running, watch
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(600)

SETUP = """
import torch, ipywidgets as w, prepbench as pb
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
samples = [torch.ones(2, 4), torch.ones(3, 4)]
graph = pb.recursive_trace(net, inputs=samples)
"""
DISPLAYS = ["graph.diagram()", "pb.Bench(net, calibration_inputs=samples)"]
BOXES = {
    "w.HBox([graph.diagram(), graph.diagram()])": 2,
    "w.HBox([w.Label('beside it'), graph.diagram()])": 1,
    "w.GridBox([graph.diagram()] * 2, layout=w.Layout(grid_template_columns='50% 50%'))": 2,
    "w.HBox([pb.Bench(net, calibration_inputs=samples).widget()])": 1,
    "hidden = w.VBox([graph.diagram()], layout=w.Layout(display='none')); hidden": 1,
    "w.Accordion([graph.diagram()], selected_index=None)": 1,
    "w.Tab([w.Label('first'), graph.diagram()])": 1,
}
POLICY = "script-src 'self' 'unsafe-inline' 'unsafe-eval'; worker-src 'self'"


def cell(page: Page, number: int) -> Locator:
    return page.locator(".jp-Cell").nth(number)


def is_drawn(diagram: Locator) -> bool:
    """Whether a diagram has boxes that a person can read."""
    expect(diagram.locator("g.node").first).to_be_visible()
    box, name = diagram.bounding_box(), diagram.locator("g.node text").first.bounding_box()
    return bool(box and name and box["width"] >= 300 and name["height"] >= 9)


def test_live_views_have_room_in_boxes(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "boxes", [SETUP, *BOXES, "hidden.layout.display = 'flex'"])
    for number in range(len(BOXES) + 2):
        run_cell(page, number)
    cell(page, 6).locator(".jupyter-widget-Collapse-header, .lm-AccordionPanel-title").first.click()
    cell(page, 7).locator(".lm-TabBar-tab").nth(1).click()
    for number, (code, count) in enumerate(BOXES.items(), 1):
        diagrams = cell(page, number).locator(".pbd")
        expect(diagrams).to_have_count(count)
        assert all(is_drawn(diagram) for diagram in diagrams.all()), code
    assert not problems, problems
    page.close()


@pytest.fixture
def lab_with_policy(tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab whose pages run scripts of their server only, as administrators configure it."""
    settings = {"ServerApp": {"tornado_settings": {"headers": {"Content-Security-Policy": POLICY}}}}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "jupyter_server_config.json").write_text(json.dumps(settings))
    yield from running(tmp_path, JUPYTER_CONFIG_DIR=str(tmp_path / "config"))


@pytest.mark.stress
def test_a_page_that_forbids_scripts_from_texts_shows_what_was_saved(page: Page, lab_with_policy: Lab) -> None:
    open_notebook(page, lab_with_policy, "policy", [SETUP, *DISPLAYS])
    for number in range(3):
        run_cell(page, number)
    for number, kind in ((1, "diagram is shown"), (2, "bench")):
        note = cell(page, number).get_by_text("This page forbids scripts from blob: addresses")
        expect(note).to_be_visible()
        expect(note).to_contain_text(kind)
        assert is_drawn(cell(page, number).locator(".pbd"))
    expect(page.get_by_text("Click to show javascript error").filter(visible=True)).to_have_count(0)
    page.close()


def test_a_notebook_that_is_not_trusted_shows_what_was_saved_beside_a_living_kernel(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "trusted", [SETUP, *DISPLAYS])
    for number in range(3):
        run_cell(page, number)
    expect(cell(page, 2).locator(".pbb")).to_be_visible()
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(1500)
    saved = nbformat.read(lab.folder / "trusted.ipynb", 4)
    saved.cells[0].source += "\n# changed elsewhere"
    saved.cells[1].outputs[0]["data"]["text/plain"] += " changed elsewhere"
    nbformat.write(saved, lab.folder / "copied.ipynb")
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:open', {path: 'copied.ipynb'})")
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.context.path === 'copied.ipynb'")
    page.wait_for_function(READY, timeout=90_000)
    for kind in ("the diagram is shown as it was saved", "run the cell again to use the bench's controls"):
        expect(page.get_by_text("This notebook is not trusted").filter(has_text=kind)).to_be_visible()
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    expect(page.get_by_text("This notebook is not trusted")).to_have_count(0)
    expect(page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .pbb")).to_be_visible()
    assert not problems, problems
    page.close()


def test_a_diagram_says_that_its_kernel_is_gone(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "gone", [SETUP, *DISPLAYS])
    for number in range(3):
        run_cell(page, number)
    assert is_drawn(cell(page, 1).locator(".pbd"))
    note = cell(page, 1).get_by_text("The kernel of this diagram was restarted or has ended")
    expect(note).to_have_count(0)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(note).to_be_visible(timeout=60_000)
    expect(cell(page, 2).get_by_text("The kernel of this bench")).to_be_visible()
    expect(cell(page, 2).get_by_text("The kernel of this diagram")).to_be_hidden()
    for number in range(2):
        run_cell(page, number)
    expect(note).to_have_count(0)
    page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    expect(note).to_be_visible()
    cell(page, 1).locator(".pbd g.node").first.click()  # it goes on without Python
    assert not problems, problems
    page.close()


NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.first(x).relu()
"""


def test_newer_code_is_told_and_captured_again(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    first = f"import torch, prepbench as pb\n{NET}\nnet, samples = Net().eval(), [torch.ones(2, 4), torch.ones(3, 4)]"
    displays = ["pb.recursive_trace(net, inputs=samples).diagram()", DISPLAYS[1]]
    changes = [NET.replace("def forward", "# the same\n    def forward"), NET.replace("relu", "sigmoid")]
    open_notebook(page, lab, "newer", [first, *displays, *changes])
    for number in range(4):
        run_cell(page, number)
    diagram, bench = cell(page, 1), cell(page, 2)
    expect(diagram.locator(".pbd g.node", has_text="relu")).to_be_visible()
    told = page.get_by_text("The code of Net has changed since this capture.").filter(visible=True)
    expect(told).to_have_count(0)
    run_cell(page, 4)
    expect(told).to_have_count(2)
    diagram.get_by_role("button", name="Capture again").click()
    expect(diagram.locator(".pbd g.node", has_text="sigmoid")).to_be_visible()
    expect(told).to_have_count(1)
    bench.locator(".pbb-newer").get_by_role("button", name="Capture again").click()
    expect(bench.locator(".pbd g.node", has_text="sigmoid")).to_be_visible()
    expect(told).to_have_count(0)
    assert not problems, problems
    page.close()
