"""What one notebook measures is shown in the bench of another one, and what a cell makes old is old at once."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.system.browser.lab import Lab
from tests.system.browser.measures import turn_to
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(300)

MODEL = """
import torch, prepbench as pb
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
batches = [torch.randn(2, 4), torch.randn(3, 4)]
"""
SEARCH = """
pb.search(net, batches, budget=pb.Budget(min_metric=5), targets=[pb.EagerDeployment()], tries=0, rounds=1,
          candidates={"int8": pb.QuantizationSettings()}, results="shared.sqlite").reached
"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"
SAVE = "bench.set_target('PyTorch eager')\nbench.save('shared.bench.json')"


def test_results_of_another_notebook_are_shown_in_the_bench(page: Page, lab: Lab) -> None:
    open_notebook(page, lab, "searching", [MODEL, SEARCH])
    run_cell(page, 0)
    [reached] = [output for output in run_cell(page, 1) if output["output_type"] == "execute_result"]
    assert reached["data"] == {"text/plain": "True"}

    open_notebook(page, lab, "looking", [MODEL, BENCH, "with torch.no_grad(): net[0].weight.add_(0.1)"])
    for cell in (0, 1):
        run_cell(page, cell)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench).to_be_visible(timeout=60_000)
    turn_to(bench, "results")
    file = bench.get_by_role("textbox", name="Results file")
    file.fill("shared.sqlite")
    file.press("Enter")
    rows = bench.locator("tr[data-run]")
    expect(rows).to_have_count(2, timeout=30_000)
    for row in (rows.first, rows.last):
        expect(row).to_contain_text("searching.ipynb · file")
        expect(row).not_to_contain_text("other weights")
    expect(rows.filter(has_text="int8")).to_contain_text("dB")
    run_cell(page, 2)
    file.fill("shared.sqlite")
    file.press("Enter")
    expect(rows.first).to_contain_text("other weights")
    page.close()


@pytest.mark.stress
def test_what_others_write_to_the_journal_of_a_bench_shows_while_it_is_seen(page: Page, lab: Lab) -> None:
    compiled = "other = pb.Bench.load('shared.bench.json', model=net, calibration_inputs=batches)\nother.compile()"
    open_notebook(page, lab, "first", [MODEL, BENCH, SAVE])
    for cell in (0, 1, 2):
        run_cell(page, cell)
    second = page.context.new_page()
    open_notebook(second, lab, "second", [MODEL, compiled])
    for cell in (0, 1):
        run_cell(second, cell)
    bench = page.locator(".jp-Notebook .pbb-box")
    page.bring_to_front()
    turn_to(bench, "results")
    expect(bench.locator("tr[data-run]")).to_contain_text("second.ipynb", timeout=60_000)
    second.close()
    page.close()


@pytest.mark.stress
def test_a_cell_that_trains_makes_what_layers_cost_old(page: Page, lab: Lab) -> None:
    training = "for weight in net.parameters(): weight.data += 0.1"
    open_notebook(page, lab, "training", [MODEL, BENCH, "_ = bench.measure_layers()", training])
    for cell in (0, 1, 2):
        run_cell(page, cell)
    bench = page.locator(".jp-Notebook .pbb-box")
    turn_to(bench, "precision")
    head = bench.get_by_role("columnheader", name="Model SQNR (dB)")
    expect(head).to_be_visible(timeout=60_000)
    old = bench.locator(".pbb-old-number")
    expect(old).to_have_count(0)
    run_cell(page, 3)
    expect(old.first).to_be_visible(timeout=30_000)
    page.close()
