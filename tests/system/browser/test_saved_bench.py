"""A saved bench in JupyterLab: a tab of its file, and the output of a notebook whose kernel is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from prepbench.document.bench import BENCH_MIME_TYPE, BenchDocument, Table, bench_to_json
from prepbench.views.bench_page import NO_KERNEL, bench_bundle
from tests.compile.views.benches import GRAPH, HOSTILE, shown
from tests.system.browser.axe import violations
from tests.system.browser.lab import READY, is_local

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
RESTORED = "() => window.jupyterapp?.restored.then(() => true)"
LIVE = """
import torch
import prepbench as pb
bench = pb.Bench(torch.nn.Sequential(torch.nn.Linear(4, 2)).eval(), calibration_inputs=[torch.ones(2, 4)])
bench
"""


@pytest.fixture
def troubles(page: Page, lab: Any) -> Iterator[list[str]]:
    """Errors in the page, requests that leave the Lab, and dialogs; afterwards the page lets go of the server."""
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("request", lambda request: None if is_local(request.url, lab.url) else seen.append(f"out: {request.url}"))
    page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))
    yield seen
    page.close()


def open_file(page: Page, lab: Any, name: str) -> None:
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.wait_for_function(RESTORED, timeout=60_000)


def saved(text: str = "", rows: int = 3) -> str:
    document = BenchDocument("Net", (), ({},), 0, (), shown(text, rows), GRAPH, 1_700_000_000.0, "0.1.0")
    return bench_to_json(document)


def notebook(bundle: dict[str, Any]) -> str:
    output = {"output_type": "execute_result", "execution_count": 1, "data": bundle, "metadata": {}}
    cell = {
        "id": "bench",
        "cell_type": "code",
        "source": "bench",
        "metadata": {},
        "execution_count": 1,
        "outputs": [output],
    }
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})


def test_a_bench_file_opens_as_it_was_saved(page: Page, lab: Any, troubles: list[str]) -> None:
    path = Path(lab.folder) / "net.bench.json"
    path.write_text(saved(rows=900))
    open_file(page, lab, "net.bench.json")
    bench = page.locator(".pbl-bench-file .pbl-bench")
    expect(bench.locator(".pbd svg g.node").first).to_be_visible(timeout=60_000)
    expect(bench.locator("h1")).to_have_text("Net")
    expect(bench.get_by_role("img", name="SQNR against latency")).to_be_visible()
    expect(bench.locator(".pbl-bench-chart g.run")).to_have_count(2)
    table = bench.get_by_role("region", name="Layers")
    expect(table.locator("tbody tr")).to_have_count(200)
    table.get_by_role("button", name="Show 700 more rows").click()
    expect(table.locator("tbody tr")).to_have_count(900)

    path.write_text(saved(" again"))
    expect(bench.locator("h1")).to_have_text("Net again", timeout=20_000)
    expect(bench.locator(".pbd svg g.node").first).to_be_visible(timeout=60_000)

    bench.get_by_role("button", name="Open in a notebook").click()
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget?.context?.path?.endsWith('.ipynb')")
    code = page.locator(".jp-Notebook .cm-content").first
    expect(code).to_contain_text('pb.Bench.load("net.bench.json", model=model', timeout=30_000)
    assert not troubles, troubles


def test_hostile_texts_and_damaged_files_are_shown_as_text(page: Page, lab: Any, troubles: list[str]) -> None:
    (lab.folder / "bad.bench.json").write_text(saved(HOSTILE))
    open_file(page, lab, "bad.bench.json")
    bench = page.locator(".pbl-bench-file .pbl-bench")
    expect(bench.locator("h1")).to_have_text(f"Net{HOSTILE}", timeout=60_000)
    assert bench.locator("img, script").count() == 0
    (lab.folder / "bad.bench.json").write_text(saved()[:-40])
    expect(bench.get_by_role("alert")).to_contain_text("cut off", timeout=20_000)
    assert not troubles, troubles


def test_an_output_without_its_kernel_shows_the_bench(page: Page, lab: Any, troubles: list[str]) -> None:
    view = {"version_major": 2, "version_minor": 0, "model_id": "0" * 32}
    bundle = {WIDGET_VIEW: view, **bench_bundle(shown(), GRAPH), "text/plain": "Bench(Net)"}
    assert BENCH_MIME_TYPE in bundle
    (lab.folder / "reopened.ipynb").write_text(notebook(bundle))
    open_file(page, lab, "reopened.ipynb")
    dialog = page.locator(".jp-Dialog .jp-mod-reject")
    dialog.click()
    bench = page.locator(".pbl-bench-output .pbl-bench")
    expect(bench.locator(".pbd svg g.node").first).to_be_visible(timeout=60_000)
    expect(bench).to_contain_text("batch dynamic")
    expect(bench).to_contain_text("This notebook is not trusted")
    assert "need a kernel" in NO_KERNEL
    assert not violations(page, ".pbl-bench-output")
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.model.cells.get(0).trusted = true; }")
    expect(bench.locator("h1")).to_have_text("Net")
    expect(page.get_by_text("Error displaying widget")).to_be_hidden()
    assert not troubles, troubles


def test_in_a_narrow_window_only_tables_scroll(page: Page, lab: Any, troubles: list[str]) -> None:
    wide = Table("Runs", tuple(f"column {at}" for at in range(20)), (tuple("12.3456789 ms" for _ in range(20)),), (0,))
    bundle = bench_bundle(replace(shown(), tables=(wide,)), GRAPH)
    (lab.folder / "narrow.ipynb").write_text(notebook({**bundle, "text/plain": "Bench(Net)"}))
    page.set_viewport_size({"width": 800, "height": 900})
    open_file(page, lab, "narrow.ipynb")
    page.locator(".jp-Dialog .jp-mod-reject").click()
    bench = page.locator(".pbl-bench-output .pbl-bench")
    expect(bench.locator(".pbd svg g.node").first).to_be_visible(timeout=60_000)
    ends = "each => each.getBoundingClientRect().right"
    room = page.locator(".jp-OutputArea-child").first.evaluate(ends)
    for part in ("header", ".pbl-bench-diagram", ".pbl-bench-table"):
        assert bench.locator(part).first.evaluate(ends) <= room + 1, part
    table = bench.get_by_role("region", name="Runs")
    assert table.evaluate("each => each.scrollWidth > each.clientWidth")
    assert not troubles, troubles


@pytest.mark.stress
def test_with_its_kernel_the_live_bench_is_shown(page: Page, lab: Any, troubles: list[str]) -> None:
    cell = {"id": "b", "cell_type": "code", "source": LIVE, "metadata": {}, "execution_count": None, "outputs": []}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    text = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]})
    (lab.folder / "live.ipynb").write_text(text)
    open_file(page, lab, "live.ipynb")
    page.wait_for_function(READY, timeout=60_000)
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Control+Enter")
    live = page.locator(".pbl-bench-output .jupyter-widgets").first
    expect(live).to_be_visible(timeout=120_000)
    expect(page.locator(".pbl-bench-output .pbl-bench")).to_have_count(0)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(1000)
    open_file(page, lab, "live.ipynb")
    expect(page.locator(".pbl-bench-output")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Error displaying widget")).to_be_hidden()
    assert not troubles, troubles
