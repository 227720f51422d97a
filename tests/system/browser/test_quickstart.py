"""The main job, as a person does it: open the quickstart in JupyterLab, run it, use the bench."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import READY, watch

IDLE = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"


@pytest.mark.timeout(900)
def test_quickstart_runs_and_the_bench_compiles(page: Page, lab: Any) -> None:
    problems, outside = watch(page, lab.url)
    page.goto(f"{lab.url}/lab/tree/01_quickstart.ipynb?reset")
    page.wait_for_function(READY, timeout=90_000)
    _clear_and_run_all(page)

    bench = page.locator(".pbb-box").last
    expect(bench).to_be_visible(timeout=30_000)
    bench.scroll_into_view_if_needed()

    bench.locator("[data-step='axes']").click()
    axis = bench.locator(".pbb-axis[aria-pressed='false']").first
    place = str(axis.get_attribute("aria-label")).partition(":")[0]
    axis.click()
    toggled = bench.locator(f".pbb-axis[aria-label^='{place}:']")
    expect(toggled).to_have_attribute("aria-pressed", "true")
    bench.locator(".pbb-head").get_by_role("button", name="Undo").click()  # the network takes images of one size only
    expect(toggled).to_have_attribute("aria-pressed", "false")

    bench.locator("[data-step='precision']").click()
    row = bench.locator("tr[data-at='0']")
    layer = row.get_attribute("data-fqn")
    row.click()
    bench.get_by_role("radio", name="float32").click()
    expect(row).to_have_attribute("data-planned", "float")
    page.locator(".pbb-code summary", has_text="The same in Python").click()
    expect(page.locator(".pbb-code pre")).to_contain_text(
        f"'{layer}': pb.LayerQuantizationSettings(skip_quantization=True)"
    )

    bench.locator("[data-step='run']").click()
    bench.get_by_role("button", name="Compile").click()
    expect(bench.locator(".pbb-running progress")).to_be_visible()
    expect(bench.locator(".pbb-message.pbb-info")).to_contain_text("mixed int8 ONNX Runtime", timeout=180_000)
    expect(page.locator(".pbb-message.pbb-error")).to_have_count(0)
    bench.locator("[data-step='results']").click()
    chart = page.locator(".jp-Cell", has=page.locator(".pbb")).last.locator(".js-plotly-plot")
    expect(chart).to_be_visible(timeout=30_000)
    expect(chart).to_contain_text("mixed int8 ONNX Runtime")
    assert not problems, problems
    assert not outside, outside


def _clear_and_run_all(page: Page) -> None:
    """Run from a clean slate and fail with the first error output."""
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
    page.wait_for_function(IDLE, timeout=600_000)
    outputs = page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter(c => c.model.type === 'code').map(c => c.model.outputs.toJSON())"""
    )
    errors = [json.dumps(o)[:2000] for cell in outputs for o in cell if o.get("output_type") == "error"]
    assert not errors, errors[0]
    assert any(outputs), "the notebook produced no output"
