"""A small notebook written for a test, run cell by cell, and looked at in both themes and two widths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import nbformat
from playwright.sync_api import Page

from tests.system.browser.lab import READY, Lab

LOOKS = [("JupyterLab Light", 1440), ("JupyterLab Dark", 1100)]
"""Each theme and each width once."""
ALL_LOOKS = [*LOOKS, ("JupyterLab Light", 1100), ("JupyterLab Dark", 1440)]
"""What pictures are taken in."""

_RUN = """async (cell) => {
  const panel = window.jupyterapp.shell.currentWidget;
  panel.content.activeCellIndex = cell;
  await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
_OUTPUT = """(cell) => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.outputs.toJSON()"""


def open_notebook(page: Page, lab: Lab, name: str, cells: Sequence[str]) -> None:
    """Write a notebook with these cells and open it; nothing is run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / f"{name}.ipynb")
    page.goto(f"{lab.url}/lab/tree/{name}.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)


def run_cell(page: Page, cell: int) -> list[dict[str, object]]:
    """Run one cell of the notebook in front to its end, and give its outputs."""
    page.evaluate(_RUN, cell)
    return outputs_of(page, cell)


def outputs_of(page: Page, cell: int) -> list[dict[str, object]]:
    """What a cell has put out so far."""
    outputs: list[dict[str, object]] = page.evaluate(_OUTPUT, cell)
    return outputs


def set_source(page: Page, cell: int, source: str) -> None:
    """What pasting over the whole cell does."""
    page.evaluate(
        "([cell, source]) => { window.jupyterapp.shell.currentWidget.content.widgets[cell].model.sharedModel"
        ".setSource(source); }",
        [cell, source],
    )


def looks(page: Page) -> Iterator[tuple[str, int]]:
    """Each theme and width in turn; where pictures are asked for, each theme at each width."""
    for theme, width in ALL_LOOKS if os.environ.get("SCREENSHOTS") else LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        light = str(theme.endswith("Light")).lower()
        page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'", timeout=20_000)
        page.wait_for_timeout(400)
        yield theme, width
