"""Pages and a live JupyterLab in Firefox, where it is installed; everything else is seen in Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from torch import nn, ones

import prepbench as pb
from tests.system.browser import firefox
from tests.system.browser.lab import READY, is_local
from tests.system.browser.places import DISPLAYS, OUTPUTS, PLACES, SAW, SETUP, executed_once, told

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(firefox.program() is None, reason="not installed: Firefox"),
]
# without those whose template stops at a script that is not there without a network, such as slides
FILES = ["`nbconvert --to html`", "`--template classic`", "`--sanitize-html`", "Sphinx with myst-nb"]
SEEN = f"() => ({SAW})([...document.querySelectorAll({OUTPUTS!r})])"
OPEN = """async (path) => {
  const opened = await window.jupyterapp.commands.execute('docmanager:open', {path});
  opened.node.dispatchEvent(new FocusEvent('focus'));  // a page without a window has none, and no current document
}"""
RUN = """async (cell) => {
  window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell;
  await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
READABLE = """(selector) => {
  const names = [...document.querySelectorAll(selector)].map(name => name.getBoundingClientRect());
  return names.length && names.every(box => box.height >= 9);
}"""
CLICK = "(selector) => document.querySelector(selector).click()"
TEXT = "(selector, text) => document.querySelector(selector)?.innerText.includes(text)"


@pytest.fixture(scope="module")
def browser_of_mozilla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[firefox.Firefox]:
    with firefox.running(tmp_path_factory.mktemp("firefox")) as running:
        yield running


@pytest.fixture
def tab(browser_of_mozilla: firefox.Firefox) -> firefox.Firefox:
    browser_of_mozilla.errors.clear()
    browser_of_mozilla.requests.clear()
    return browser_of_mozilla


@pytest.fixture
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a test leaves what it saw, for people to look at."""
    folder = Path(os.environ.get("PREPBENCH_TEST_PICTURES", tmp_path))
    return folder / f"{request.node.name.partition('[')[0]}.png"


@pytest.mark.stress
def test_files_show_what_they_show_in_chromium(tab: firefox.Firefox, tmp_path: Path, picture: Path) -> None:
    executed = executed_once(tmp_path)
    for number, place in enumerate(FILES):
        (tmp_path / str(number)).mkdir()
        tab.open(f"file://{PLACES[place](executed, tmp_path / str(number))}")
        tab.wait_for("() => [...document.images].every(image => image.complete)")
        assert dict(zip(DISPLAYS, tab.evaluate(SEEN), strict=True)) == told()[place], place
    # templates of nbconvert ask for scripts of their own, which are not needed
    assert not [error for error in tab.errors if "cdnjs" not in error and "unpkg" not in error], tab.errors
    tab.screenshot(picture)


def test_pages_of_a_diagram_and_of_a_bench(tab: firefox.Firefox, tmp_path: Path, picture: Path) -> None:
    net, samples = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), [ones(2, 4), ones(3, 4)]
    pages = [
        pb.recursive_trace(net, inputs=samples).to_html(tmp_path / "diagram.html"),
        pb.Bench(net, calibration_inputs=samples).report(tmp_path / "bench.html"),
    ]
    for page in pages:
        tab.open(f"file://{page}")
        tab.wait_for(READABLE, ".pbd g.node text")
        tab.evaluate(
            "() => document.querySelector('.pbd g.node').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
    assert not tab.errors
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data", "blob"}
    tab.screenshot(picture)


def test_a_live_jupyterlab(tab: firefox.Firefox, lab: Any, picture: Path) -> None:
    cells = [nbformat.v4.new_code_cell(code) for code in (SETUP, *DISPLAYS.values())]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / "live.ipynb")
    tab.open(f"{lab.url}/lab", 1500, 1000)
    tab.wait_for("() => window.jupyterapp?.restored.then(() => true)")
    tab.evaluate(OPEN, "live.ipynb")
    tab.wait_for(READY)
    for number in range(len(cells)):
        tab.evaluate(RUN, number)
    tab.wait_for("() => document.querySelectorAll('.pbb-box').length === 1")
    tab.wait_for(READABLE, ".jp-Cell:nth-child(3) .pbd g.node text")
    outputs = ".jp-OutputArea-executeResult"
    kinds = dict(
        zip(DISPLAYS, tab.evaluate(f"() => ({SAW})([...document.querySelectorAll({outputs!r})])"), strict=True)
    )
    assert kinds == told()["JupyterLab without the kernel"]  # live views, and the graph as its document
    tab.evaluate(CLICK, ".pbb-box [data-step='precision']")
    tab.evaluate(CLICK, ".pbb-box tr[data-at='1']")
    tab.evaluate(
        "() => [...document.querySelectorAll('.pbb-box [role=radio]')].find(e => e.innerText === 'float').click()"
    )
    tab.wait_for(TEXT, ".pbb-sentence", "1 float")
    tab.evaluate("() => document.querySelector('.pbb-box').scrollIntoView()")
    tab.wait_for(READABLE, ".pbb-box .pbd g.node text")
    tab.screenshot(picture)
    assert not tab.errors
    assert not [url for url in tab.requests if not is_local(url, lab.url)]
