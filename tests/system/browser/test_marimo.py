"""Live views in a marimo notebook, which has no Jupyter kernel and no boxes of ipywidgets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser import lab
from tests.system.browser.places import SETUP

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of an app of marimo with one display in each cell."""
    setup = SETUP.replace("\n", "\n    ") + "\n    return graph, net, pb, samples"
    cells = {"": setup, "graph": "graph.diagram()", "net, pb, samples": "pb.Bench(net, calibration_inputs=samples)"}
    defined = (f"@app.cell\ndef _({names}):\n    {cell}\n" for names, cell in cells.items())
    file = folder / "app.py"
    file.write_text("import marimo\n\napp = marimo.App()\n\n" + "\n".join(defined))
    command = [sys.executable, "-m", "marimo", "run", file.name, "--headless", "--no-token", "--port={port}"]
    with lab.served(command, "/health", folder / "log", cwd=folder) as url:
        yield url


def test_a_bench_and_a_diagram_are_live(page: Page, tmp_path: Path) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with served(tmp_path) as url:
        page.goto(url)
        bench = page.locator(".pbb")
        bench.locator("tr[data-at='1']").click(timeout=120_000)
        bench.get_by_role("radio", name="float").click()
        expect(bench.locator(".pbb-sentence")).to_contain_text("1 float")  # the kernel has answered
        expect(page.locator(".pbd svg g.node", has_text="head")).to_have_count(2)
        expect(bench.get_by_role("button", name="Diagram")).to_have_count(0)
        page.locator(".pbd").last.locator("g.node", has_text="head").click()
        expect(bench.locator("tr.pbb-selected, tr[aria-selected='true']")).to_contain_text("head")
        bench.locator("[data-step='run']").click()
        bench.get_by_role("button", name="Compile", exact=True).first.click()
        bench.get_by_role("button", name="See results").click(timeout=120_000)
        chart = bench.locator(".pbb-own-chart svg")
        expect(chart).to_be_visible()
        expect(chart.locator("[data-point]")).to_have_count(2)  # PyTorch eager, and the run
        page.close()
    assert not errors, errors
