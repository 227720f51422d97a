"""A comparison in a saved notebook: its chart keeps its height when the page is laid out anew."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page

from prepbench.measure.comparison import CandidateResult, Comparison
from tests.system.browser.lab import READY

SIZE = "() => document.querySelector('.js-plotly-plot .main-svg').getBoundingClientRect().toJSON()"


def test_a_chart_keeps_its_height_and_takes_the_width(page: Page, lab: Any) -> None:
    rows = tuple(
        CandidateResult(name, 0.9, 0.0, p50, p50 * 1.2, None, 10**6, "saved artifact", "eager", "own process")
        for name, p50 in (("float32", 30.0), ("int8", 10.0))
    )
    bundle = Comparison(rows, "accuracy", "", True, 64, 8, 10, 2)._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", bundle, execution_count=1)
    cell = nbformat.v4.new_code_cell("comparison", outputs=[output], execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.folder / "chart.ipynb")
    page.goto(f"{lab.url}/lab/tree/chart.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)
    page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=60_000)
    page.wait_for_timeout(1500)
    before = page.evaluate(SIZE)
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.wait_for_function(f"width => ({SIZE})().width > width + 50", arg=before["width"], timeout=20_000)
    page.wait_for_timeout(1500)
    assert page.evaluate(SIZE)["height"] == pytest.approx(before["height"], abs=2)
    assert before["height"] > 400
