"""What a notebook that several people have open at once has to carry, with jupyter-collaboration where it is there."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import watch
from tests.system.browser.measures import turn_to
from tests.system.browser.notebooks import open_notebook, run_cell

pytest.importorskip("jupyter_collaboration")
pytestmark = pytest.mark.timeout(600)

LAYERS = 100
MODEL = f"""
import torch, prepbench as pb
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range({LAYERS}))).eval()
samples = [torch.ones(2, 8), torch.ones(3, 8)]
"""
BENCH = "pb.Bench(net, calibration_inputs=samples)"
CHANGED = f"{LAYERS} float"  # equal layers are one row
LIMIT = 5000
"""Bytes that one setting may change of the shared document."""

COUNT = """() => {
  const model = window.jupyterapp.shell.currentWidget.content.model;
  window.bytes = [];
  model.sharedModel.ydoc.on('update', update => window.bytes.push(update.length));
  return model.collaborative;
}"""
SAVED = """() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON().cells[1].outputs)"""
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"


def test_a_setting_costs_little_of_the_document_and_saving_keeps_it(page: Page, lab: Any) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "shared", [MODEL, BENCH])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench).to_be_visible(timeout=60_000)
    turn_to(bench, "precision")
    page.wait_for_timeout(4000)  # what the display itself writes
    assert page.evaluate(COUNT), "a shared document"
    before = page.evaluate(SAVED)
    bench.locator("tr[data-at='0']").click()
    bench.get_by_role("radio", name="float").click()
    expect(bench.locator(".pbb-sentence")).to_contain_text(CHANGED)
    page.wait_for_timeout(4000)
    sizes = page.evaluate("() => window.bytes")
    assert sum(sizes) <= LIMIT, sizes
    page.evaluate(SAVE)
    page.wait_for_function(f"() => ({SAVED})().includes('{CHANGED}')", timeout=20_000)
    assert CHANGED not in before
    assert not problems, problems
    page.close()
