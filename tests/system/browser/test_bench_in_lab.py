"""The bench among the other parts of JupyterLab: beside its notebook, kept in its output, and without its kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.system.browser.lab import READY, Lab
from tests.system.browser.measures import turn_to
from tests.system.browser.models import UNTIMED
from tests.system.browser.notebooks import looks, open_notebook, run_cell

pytestmark = pytest.mark.timeout(300)

MODEL = """
import torch, prepbench as pb
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
batches = [torch.randn(2, 4), torch.randn(3, 4)]
"""
BENCH = "print('hello')\nbench = pb.Bench(net, calibration_inputs=batches)\nbench"
BENCH_TYPE = "application/vnd.prepbench.bench+json"
NOTEBOOK = "[...window.jupyterapp.shell.widgets('main')].find(w => w.context?.path.endsWith('.ipynb'))"


@pytest.fixture
def errors(page: Page) -> Iterator[list[str]]:
    """What goes wrong in the page; afterwards it lets go of the server."""
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(str(error)))
    yield seen
    page.close()


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def open_bench(page: Page, lab: Lab, name: str) -> Locator:
    """A notebook with a bench that was run; its view in the cell."""
    open_notebook(page, lab, name, [MODEL, BENCH])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench).to_be_visible(timeout=60_000)
    return bench


_WATCH = """() => {
  window.seen = [];
  const look = () => {
    window.seen.push(document.querySelectorAll('.jp-Notebook .pbb-box .pbd g.node').length);
    window.watches = requestAnimationFrame(look);
  };
  look();
}"""


def set_first_layer(bench: Locator, precision: str) -> None:
    turn_to(bench, "precision")
    bench.locator("tr[data-at='0']").click()
    bench.get_by_role("radio", name=precision).click()


def remembers(name: str) -> Callable[[Request], bool]:
    """Whether JupyterLab writes down its layout with something in it."""
    return lambda request: request.method == "PUT" and "workspaces" in request.url and name in (request.post_data or "")


def is_dirty(page: Page) -> bool:
    dirty: bool = page.evaluate(f"() => {NOTEBOOK}.context.model.dirty")
    return dirty


def saved_sentence(lab: Lab, name: str) -> str:
    cells = json.loads((lab.folder / f"{name}.ipynb").read_text())["cells"]
    outputs = [output for output in cells[1]["outputs"] if BENCH_TYPE in output.get("data", {})]
    data: Any = outputs[0]["data"][BENCH_TYPE]
    return str(data["shown"]["sentence"])


@pytest.mark.stress
def test_a_second_view_beside_the_notebook_is_in_step(page: Page, lab: Lab, errors: list[str]) -> None:
    bench = open_bench(page, lab, "beside")
    bench.get_by_role("button", name="Open beside the notebook").click()
    beside = page.locator(".pbl-beside")
    second = beside.locator(".pbb-box")
    expect(second).to_be_visible(timeout=20_000)
    expect(beside.get_by_text("hello")).to_be_hidden()
    expect(second.get_by_role("button", name="Open beside the notebook")).to_be_hidden()
    cell, tab = bench.bounding_box(), second.bounding_box()
    assert cell
    assert tab
    assert cell["x"] + cell["width"] <= tab["x"], "one beside the other"

    set_first_layer(second, "float32")
    for view in (bench, second):
        expect(view.locator(".pbb-sentence")).to_contain_text("1 float, 1 int8")
        turn_to(view, "precision")
        expect(view.locator("tr[data-at='0']")).to_have_attribute("aria-selected", "true")
    bench.locator(".pbb-head").get_by_role("button", name="Undo").click()
    expect(second.locator(".pbb-sentence")).to_contain_text("2 int8")
    for theme, width in looks(page):
        shot(page, f"beside-{width}-{theme[-5:].strip()}")

    page.evaluate("() => window.jupyterapp.commands.execute('prepbench:open-beside')")
    expect(beside).to_have_count(1)
    page.locator(".lm-TabBar-tab", has_text="Bench · beside").locator(".lm-TabBar-tabCloseIcon").click()
    expect(beside).to_have_count(0)
    set_first_layer(bench, "float32")
    expect(bench.locator(".pbb-sentence")).to_contain_text("1 float, 1 int8")
    assert not errors, errors


def test_the_view_beside_comes_back_and_follows_its_cell(page: Page, lab: Lab, errors: list[str]) -> None:
    bench = open_bench(page, lab, "back")
    page.evaluate(f"() => {NOTEBOOK}.context.save()")
    with page.expect_request(remembers("prepbench-beside"), timeout=30_000):
        bench.get_by_role("button", name="Open beside the notebook").click()
    second = page.locator(".pbl-beside .pbb-box")
    expect(second).to_be_visible(timeout=20_000)
    page.reload()
    expect(second).to_be_visible(timeout=60_000)
    expect(bench).to_be_visible()
    set_first_layer(second, "float32")
    expect(bench.locator(".pbb-sentence")).to_contain_text("1 float, 1 int8")

    page.evaluate(f"() => window.jupyterapp.shell.activateById({NOTEBOOK}.id)")
    run_cell(page, 1)
    expect(second.locator(".pbb-sentence")).to_contain_text("2 int8", timeout=30_000)
    page.evaluate(f"() => {NOTEBOOK}.model.sharedModel.deleteCell(1)")
    expect(page.locator(".pbl-beside")).to_contain_text("The cell of this bench was deleted")
    page.evaluate(f"() => {{ {NOTEBOOK}.context.model.dirty = false; {NOTEBOOK}.dispose(); }}")
    expect(page.locator(".pbl-beside")).to_have_count(0)
    assert not errors, errors


def test_a_notebook_keeps_the_bench_as_it_stood_when_it_was_saved(page: Page, lab: Lab, errors: list[str]) -> None:
    bench = open_bench(page, lab, "kept")
    page.wait_for_timeout(2500)
    page.evaluate(f"() => {NOTEBOOK}.context.save()")
    page.wait_for_function(f"() => !{NOTEBOOK}.context.model.dirty")
    page.wait_for_timeout(2000)
    assert not is_dirty(page), "what is shown is what is saved"
    assert "2 int8" in saved_sentence(lab, "kept")

    view = bench.element_handle()
    picture = bench.locator(".pbd-canvas").element_handle()
    set_first_layer(bench, "float32")
    expect(bench.locator(".pbb-sentence")).to_contain_text("1 float, 1 int8")
    page.evaluate(f"() => {NOTEBOOK}.context.save()")  # at once: before Python was asked
    page.wait_for_timeout(4000)
    assert "1 float, 1 int8" in saved_sentence(lab, "kept")
    assert not is_dirty(page)
    assert page.evaluate("([view, picture]) => view.isConnected && picture.isConnected", [view, picture]), "the same"
    expect(bench.locator("tr[data-at='0']")).to_have_attribute("aria-selected", "true")

    page.evaluate(f"() => {NOTEBOOK}.sessionContext.shutdown()")
    expect(bench.locator(".pbb-lost")).to_contain_text("has ended")
    page.goto(f"{lab.url}/lab/tree/kept.ipynb?reset")
    page.locator(".jp-Dialog .jp-mod-reject").or_(page.locator(".pbl-bench")).first.wait_for(timeout=60_000)
    saved = page.locator(".pbl-bench-output .pbl-bench")
    expect(saved).to_be_visible(timeout=30_000)
    expect(saved).to_contain_text("1 float, 1 int8")
    assert not errors, errors


def test_a_restarted_kernel_is_told_with_what_still_works(page: Page, lab: Lab, errors: list[str]) -> None:
    bench = open_bench(page, lab, "restarted")
    page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart()")
    note = bench.locator(".pbb-lost")
    expect(note).to_contain_text("restarted", timeout=20_000)
    turn_to(bench, "precision")
    expect(bench.locator("tr[data-at]")).to_have_count(2)
    bench.get_by_role("searchbox", name="Filter layers").fill("2")
    expect(bench.locator("tr[data-at]")).to_have_count(1)
    turn_to(bench, "run")
    expect(bench.get_by_role("button", name="Compile", exact=True)).to_be_disabled()
    expect(note).to_be_visible()
    for theme, width in looks(page):
        shot(page, f"restarted-{width}-{theme[-5:].strip()}")
    page.evaluate(f"() => {NOTEBOOK}.context.save()")
    page.goto(f"{lab.url}/lab/tree/restarted.ipynb?reset")
    page.wait_for_function(READY, timeout=60_000)
    expect(page.locator(".pbl-bench-output .pbl-bench")).to_contain_text("need a kernel", timeout=30_000)
    run_cell(page, 0)
    run_cell(page, 1)
    expect(bench).to_be_visible(timeout=60_000)
    expect(note).to_be_empty()
    assert not errors, errors


@pytest.mark.stress
def test_the_panel_lists_the_runs_of_benches(page: Page, lab: Lab, errors: list[str]) -> None:
    run = "_ = bench.compile()\nbench.set_precision('0', 'float32')"
    open_notebook(page, lab, "runs", [MODEL + UNTIMED, BENCH, run])
    for cell in range(3):
        run_cell(page, cell)
    bench = page.locator(".jp-Notebook .pbb-box")
    page.evaluate("() => window.jupyterapp.commands.execute('prepbench:show-panel')")
    panel = page.locator("#prepbench-model-panel")
    row = panel.get_by_role("list", name="Runs of Sequential").get_by_role("listitem")
    expect(row).to_have_count(1, timeout=60_000)
    expect(row).to_contain_text("int8 ONNX Runtime")
    expect(row).to_contain_text("1 layer had another precision")
    for theme, width in looks(page):
        shot(page, f"panel-{width}-{theme[-5:].strip()}")
    page.set_viewport_size({"width": 1500, "height": 1000})
    row.get_by_role("button", name="Restore").click()
    expect(bench.locator(".pbb-sentence")).to_contain_text("2 int8")
    expect(row).not_to_contain_text("another precision")
    expect(row.get_by_role("button", name="Restore")).to_be_focused()
    row.get_by_role("button", name="int8 ONNX Runtime", exact=True).click()
    expect(row.locator("[aria-current]")).to_have_count(1)
    assert not errors, errors


HOSTILE = """
import time
loss = torch.nn.MSELoss()
evil = type("Net<img src=x onerror=alert(1)>", (torch.nn.Linear,), {})(4, 2)
bench, pb = "mine", "mine too"
_kept = 1
"""


def prepare(page: Page) -> Locator:
    page.evaluate("() => { void window.jupyterapp.commands.execute('prepbench:prepare-model') }")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_be_visible(timeout=40_000)
    return dialog


def test_a_model_of_the_kernel_gets_a_bench(page: Page, lab: Lab, errors: list[str]) -> None:
    open_notebook(page, lab, "prepared", [MODEL, HOSTILE, "", "In[-1], len(In), bench, pb, _kept"])
    dialog = prepare(page)
    expect(dialog).to_contain_text("No variable of this kernel is a torch.nn.Module")
    dialog.get_by_role("button", name="Ok").click()
    run_cell(page, 0)
    dialog = prepare(page)
    model, samples = dialog.get_by_label("Model"), dialog.get_by_label("Samples")
    expect(model.locator("option")).to_have_text(["net · Sequential · 58 parameters"])
    expect(samples.locator("option").first).to_contain_text("batches · list of 2")
    samples.select_option("-")
    expect(dialog.locator("pre")).to_contain_text("put here representative samples")
    samples.select_option("batches")
    for theme, width in looks(page):
        shot(page, f"prepare-{width}-{theme[-5:].strip()}")
    page.evaluate(f"() => {{ {NOTEBOOK}.content.activeCellIndex = 0; }}")
    dialog.get_by_role("button", name="Insert and run").click()
    expect(page.locator(".jp-Notebook .pbb-box .pbb-sentence")).to_contain_text("2 int8", timeout=60_000)
    source = page.evaluate(f"() => {NOTEBOOK}.content.widgets[1].model.sharedModel.getSource()")
    assert source == "import prepbench as pb\n\nbench = pb.Bench(net, calibration_inputs=batches)\nbench"

    run_cell(page, 2)
    dialog = prepare(page)
    expect(dialog.get_by_label("Model").locator("option")).to_have_text(
        ["net · Sequential · 58 parameters", "evil · Net<img src=x onerror=alert(1)> · 10 parameters",
         "loss · MSELoss · 0 parameters"]
    )  # fmt: skip
    assert dialog.locator("img").count() == 0
    expect(dialog.locator("pre")).to_contain_text("bench_2 = prepbench.Bench(net")
    dialog.get_by_role("button", name="Cancel").click()
    printed: Any = run_cell(page, 4)[0]
    assert printed["data"]["text/plain"].endswith(", 5, 'mine', 'mine too', 1)"), "nothing of ours is in the history"
    assert not errors, errors


@pytest.mark.stress
def test_preparing_says_why_there_is_nothing_to_prepare(page: Page, lab: Lab, errors: list[str]) -> None:
    open_notebook(page, lab, "unready", ["import time\ntime.sleep(20)"])
    page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-cell') }")
    expect(page.locator(".jp-InputPrompt")).to_have_text("[*]:")
    dialog = prepare(page)
    expect(dialog).to_contain_text("The kernel is busy")
    dialog.get_by_role("button", name="Ok").click()
    page.evaluate(f"() => {NOTEBOOK}.sessionContext.shutdown()")
    dialog = prepare(page)
    expect(dialog).to_contain_text("The notebook has no kernel")
    dialog.get_by_role("button", name="Ok").click()
    page.goto(f"{lab.url}/lab?reset")
    page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)", timeout=60_000)
    expect(prepare(page)).to_contain_text("Open the notebook")
    assert not errors, errors


def test_the_picture_stays_until_the_next_one_is_drawn(page: Page, lab: Lab, errors: list[str]) -> None:
    """A size that becomes dynamic captures the model again; who looks at the diagram sees no empty place."""
    open_notebook(page, lab, "stays.ipynb", [MODEL.replace("torch.randn(3, 4)", "torch.randn(2, 4)"), BENCH])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    expect(bench.locator(".pbd g.node").first).to_be_visible(timeout=60_000)
    turn_to(bench, "axes")
    page.evaluate(_WATCH)
    bench.locator(".pbb-axis").first.click()
    expect(bench.locator(".pbd-pane:not(.pbd-before)")).to_contain_text("B = input.shape[0]", timeout=60_000)
    expect(bench.locator(".pbd-before")).to_have_count(0)
    seen = page.evaluate("() => { cancelAnimationFrame(window.watches); return window.seen; }")
    assert min(seen) > 0, seen
    assert not errors, errors
