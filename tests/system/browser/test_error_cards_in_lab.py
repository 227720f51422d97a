"""Cards of errors in a real JupyterLab: fifteen lines in both looks, and a button that puts a bench below."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import READY, Lab, watch
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(180)
CELLS = [
    "import torch\nimport prepbench as pb\nclass Branch(torch.nn.Module):\n    def forward(self, x):\n"
    "        return x if x.sum() > 0 else -x",
    "pb.capture(Branch(), torch.ones(2))",
    "pb.load_compiled('nowhere')",
]


def test_a_card_leads_to_the_bench_and_stays_in_the_file(page: Page, lab: Lab) -> None:
    problems, outside = watch(page, lab.url)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), lab.folder / "cards.ipynb")
    page.goto(f"{lab.url}/lab/tree/cards.ipynb?reset")
    page.wait_for_function(READY, timeout=60_000)
    run_cell(page, 0)
    run_cell(page, 1)
    run_cell(page, 2)  # no bench can be made of what fails later
    card = page.locator(".prepbench-error").first
    expect(card).to_be_visible(timeout=60_000)
    expect(card).to_contain_text("FullGraphError: Branch cannot be captured as one graph")
    expect(card.locator("summary", has_text="Traceback")).to_be_visible()
    assert card.evaluate("e => e.scrollWidth <= e.clientWidth"), "nothing is cut off"
    line = card.evaluate("e => parseFloat(getComputedStyle(e).lineHeight)")
    assert card.evaluate("e => e.offsetHeight") < 18 * line, "15 lines, their margins and the button"
    expect(page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").first).to_have_text(
        "FullGraphError: see above. %tb shows the whole traceback."
    )
    card.locator("summary", has_text="Documentation: FullGraphError").click()
    expect(card).to_contain_text("This can be captured:")
    # the button writes a cell below and runs it: it opens a bench on that call
    card.get_by_role("button", name="Repair it in the bench").click()
    written = page.locator(".jp-CodeCell").nth(2)
    expect(written).to_contain_text("pb.Bench.of_error(2)  # on the call that failed in cell [2]")
    expect(page.locator(".pbb-capture").get_by_text("1 module cannot be captured.")).to_be_visible(timeout=60_000)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    saved = nbformat.read(lab.folder / "cards.ipynb", 4).cells[1].outputs
    assert [output.output_type for output in saved[-2:]] == ["display_data", "error"]
    assert saved[-1].evalue.startswith("Branch cannot be captured")
    # opened again: nothing runs, and in a notebook that nobody trusts the card is there, too
    page.goto(f"{lab.url}/lab/tree/cards.ipynb?reset")
    expect(page.locator(".prepbench-error").first).to_contain_text("Branch cannot be captured", timeout=60_000)
    assert problems == outside == []


LACKS = """
import torch, prepbench as pb

class Inverse(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)

samples = [torch.eye(3) + 1, torch.eye(4) + 1]
pb.compile_model(Inverse(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
"""


def test_what_a_target_lacks_is_repaired_by_one_click_in_its_bench(page: Page, lab: Lab) -> None:
    problems, _ = watch(page, lab.url)
    page.set_viewport_size({"width": 1100, "height": 900})
    open_notebook(page, lab, "lacks", [LACKS])
    run_cell(page, 0)
    page.locator(".prepbench-error").get_by_role("button", name="Repair it in the bench").click()
    expect(page.locator(".jp-CodeCell").nth(1)).to_contain_text("pb.Bench.of_error(1)")
    failure = page.locator(".pbb-run").get_by_role("alert")
    expect(failure).to_contain_text("ONNX has nothing for aten.linalg_inv", timeout=60_000)
    expect(page.get_by_text("Where will it run")).to_be_hidden()
    expect(failure.get_by_role("button", name="Use OpenVINO")).to_have_count(0)  # it lacks the same
    failure.get_by_role("button", name="Use Inductor").click()
    expect(page.locator(".pbb-run .pbb-info")).to_contain_text("Inductor is ready", timeout=120_000)
    assert not problems
