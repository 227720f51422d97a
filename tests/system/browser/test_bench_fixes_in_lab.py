"""Fixes, drafts and files in a real JupyterLab: from the panel, from the diagram, in cells, through the browser."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.lab import Lab, watch
from tests.system.browser.measures import turn_to
from tests.system.browser.models import GATE, UNTIMED
from tests.system.browser.notebooks import open_notebook, outputs_of, run_cell

pytestmark = pytest.mark.timeout(300)

FILE = f"""{GATE}
class Never(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0 and x.sum() < 0:
            return x + 1
        return x
"""
LINE = next(number for number, line in enumerate(FILE.splitlines(), 1) if "x.sum() < 0" in line)
MODEL = f"""
import torch, prepbench as pb
from lab_model import Gate, Never

class Wide(Gate):
    def forward(self, x):
        if x.mean() > 0.5:
            return x + 3
        return x

torch.manual_seed(0)
net = torch.nn.Sequential(Gate(), torch.nn.Linear(512, 2048), Wide(), Never()).eval()
samples = [torch.rand(2, 512), -torch.rand(3, 512), torch.rand(4, 512) + 3]
{UNTIMED}"""
BENCH = "bench = pb.Bench(net, tracing_inputs=samples, calibration_inputs=samples)\nbench"
CHECK = """
import pathlib
found = {path.suffix for path in pathlib.Path('taken').iterdir()}
here = bench.results[bench.runs[-1].name](samples[0])
print(sorted(found), torch.equal(pb.load_compiled('taken/net')(samples[0]), here))
"""
AT_LINE = """line => {
  const editor = window.jupyterapp.shell.currentWidget.content.editor;
  return editor?.getCursorPosition().line === line - 1;
}"""
PANEL = "() => window.jupyterapp.commands.execute('prepbench:show-panel')"
BACK = "() => window.jupyterapp.commands.execute('docmanager:open', {path: 'fixes.ipynb'})"


@pytest.mark.stress
def test_from_failures_to_files(page: Page, lab: Lab) -> None:
    problems, outside = watch(page, lab.url)
    page.set_viewport_size({"width": 1600, "height": 1000})
    (lab.folder / "lab_model.py").write_text(FILE)
    (lab.folder / "taken").mkdir()
    open_notebook(page, lab, "fixes", [MODEL, BENCH, CHECK])
    run_cell(page, 0)
    run_cell(page, 1)
    bench = page.locator(".jp-Notebook .pbb-box")
    cards = bench.locator(".pbb-card")
    expect(bench.get_by_role("button", name="Apply all 2 fixes")).to_be_visible(timeout=90_000)

    page.evaluate(PANEL)
    failures = page.locator(".pbl-failures .pbl-failure")
    expect(failures).to_have_count(3, timeout=30_000)
    failures.nth(2).get_by_role("button", name="Open line").click()
    page.wait_for_function(AT_LINE, arg=LINE, timeout=20_000)
    page.evaluate(BACK)
    expect(failures.get_by_role("button", name="Apply fix to")).to_have_count(2)
    failures.get_by_role("button", name="Apply fix to 0", exact=True).click()
    expect(cards.nth(0)).to_have_attribute("data-state", "fixed", timeout=30_000)
    expect(failures).to_have_count(2, timeout=30_000)

    _fix_on_the_diagram(bench, "2")
    expect(cards.nth(1)).to_have_attribute("data-state", "fixed", timeout=30_000)

    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cards.nth(2).get_by_role("button", name="Edit in a cell below").click()
    expect(cells).to_have_count(4)
    assert not [output for output in run_cell(page, 2) if output["output_type"] == "error"]
    bench.locator(".pbb-head").get_by_role("button", name="Undo").click(click_count=2, delay=50)
    bench.get_by_role("button", name="Capture again").click()
    expect(cards).to_have_count(2, timeout=60_000)  # the draft is the model's own code now
    bench.get_by_role("button", name="Apply all 2 fixes").click(timeout=90_000)
    expect(bench.locator(".pbb-capture")).to_contain_text("dealt with")

    turn_to(bench, "run")
    bench.get_by_role("button", name="Compile", exact=True).click()
    expect(bench.locator(".pbb-info")).to_contain_text("int8 ONNX Runtime", timeout=120_000)
    turn_to(bench, "results")
    _take_all(page, bench.get_by_role("region", name="Take away"))
    assert not [output for output in run_cell(page, 3) if output["output_type"] == "error"]
    printed: Any = outputs_of(page, 3)[0]
    assert printed["text"].strip() == "['', '.html', '.json', '.onnx', '.sqlite'] True"
    assert not problems, problems
    assert not outside, outside


def _fix_on_the_diagram(bench: Locator, fqn: str) -> None:
    if (strip := bench.locator(".pbb-strip")).is_visible():  # the panel leaves the bench little room
        strip.click()
    diagram = bench.locator(".pbd")
    diagram.locator(f"g.node.failed[aria-label^='{fqn},']").click(timeout=30_000)
    side = diagram.locator(".pbd-side")
    expect(side.get_by_role("button", name="Open line")).to_be_visible()
    side.get_by_role("button", name="Apply fix").click()


def _take_all(page: Page, away: Locator) -> None:
    """Press each button; each gives a file."""
    away.get_by_role("textbox", name="File name").fill("taken/net")
    for button, name in (("Save bench", "net.bench.json"), ("Save model", "net"), ("Export ONNX", "net.onnx"),
                         ("Report", "net.html")):  # fmt: skip
        away.get_by_role("button", name=button, exact=True).click()
        expect(away).to_contain_text(f"Written to taken/{name}.", timeout=60_000)
    starts = {
        "Download model": b"PK",
        "Download ONNX": b"\x08",
        "Download report": b"<!doctype",
        "Download code": b"import",
    }
    for button, start in starts.items():
        with page.expect_download(timeout=60_000) as download:
            away.get_by_role("button", name=button).click()
        file = Path(download.value.path())
        assert file.read_bytes().startswith(start), button
        if button == "Download model":
            assert zipfile.ZipFile(file).testzip() is None
            assert file.stat().st_size > 1_000_000
