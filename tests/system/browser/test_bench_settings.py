"""What somebody's settings of JupyterLab change about benches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import Lab, running, watch
from tests.system.browser.measures import turn_to
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(300)

MODEL = """
import torch, prepbench as pb
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
batches = [torch.randn(2, 4), torch.randn(3, 4)]
"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"
BENCH_TYPE = "application/vnd.prepbench.bench+json"
NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find(w => w.context?.path.endsWith('.ipynb'))"
KEPT_MS = 3000  # that a bench must be quiet before its output would be written again, and more


@pytest.fixture
def lab(tmp_path: Any) -> Iterator[Lab]:
    yield from running(tmp_path, {"keepBenches": False, "openBeside": True})


@pytest.mark.stress
def test_benches_open_beside_and_are_not_kept(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    open_notebook(page, lab, "asked", [MODEL, BENCH])
    run_cell(page, 0)
    run_cell(page, 1)
    beside = page.locator(".pbl-beside .pbb-box")
    expect(beside).to_be_visible(timeout=60_000)
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.context?.path") == "asked.ipynb", (
        "work goes on there"
    )

    page.evaluate(f"() => {NOTEBOOK}.context.save()")
    page.wait_for_function(f"() => !{NOTEBOOK}.context.model.dirty")
    before = _kept(lab)
    turn_to(beside, "precision")
    beside.locator("tr[data-at='0']").click()
    beside.get_by_role("radio", name="float32").click()
    expect(beside.locator(".pbb-sentence")).to_contain_text("1 float")
    page.wait_for_timeout(KEPT_MS)
    assert not page.evaluate(f"() => {NOTEBOOK}.context.model.dirty")
    page.evaluate(f"() => {NOTEBOOK}.context.save()")
    page.wait_for_timeout(500)
    assert _kept(lab) == before
    assert not problems, problems


def _kept(lab: Lab) -> str:
    cells = json.loads((lab.folder / "asked.ipynb").read_text())["cells"]
    outputs = [output for output in cells[1]["outputs"] if BENCH_TYPE in output.get("data", {})]
    return str(outputs[0]["data"][BENCH_TYPE]["shown"]["sentence"])
