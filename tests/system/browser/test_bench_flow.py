"""The whole way through the bench in a real JupyterLab, in few clicks and keys."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.lab import watch
from tests.system.browser.models import GATE
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = pytest.mark.timeout(600)

MODEL = f"""{GATE}
def normed(inputs, outputs, stride=1):
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()
    )

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow, self.middle, self.wide = (normed(width, width) for _ in range(3))

    def forward(self, x):
        return x + self.wide(self.middle(self.narrow(x)))

class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = normed(3, 16, 2)
        self.blocks = torch.nn.Sequential(*(Block(16) for _ in range(12)))
        self.gate = Gate()
        self.neck = normed(16, 24, 2)
        self.scores, self.sides = torch.nn.Conv2d(24, 3, 1), torch.nn.Conv2d(24, 4, 1)

    def forward(self, x):
        found = self.neck(self.gate(self.blocks(self.stem(x))))
        return self.scores(found).flatten(2), self.sides(found).flatten(2)

torch.manual_seed(0)
net = Detector().eval()
batches = [torch.rand(2, 3, 32, 32) for _ in range(4)]
"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"
SAME = """
restored = next(run for run in bench.runs if "ONNX" in run.name)
facts = lambda layers: [(row.fqn, row.weights_bits, row.activations_bits, row.block_size, row.sqnr) for row in layers]
again = next(model for name, model in compiled.items() if "ONNX" in name)
print("same" if facts(again.report.layers) == facts(restored.report) else "another")
"""
CLICKS = 14


class Hand:
    """A person, whose clicks and keys are counted."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.count = 0

    def click(self, control: Locator, **how: Any) -> None:
        """One click, also with a key held."""
        self.count += 1
        control.click(**how)

    def key(self, key: str) -> None:
        """One key, or one with others held."""
        self.count += 1
        self._page.keyboard.press(key)


def test_from_a_failure_to_code_that_runs(page: Page, lab: Any) -> None:
    problems, outside = watch(page, lab.url)
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    open_notebook(page, lab, "flow", [MODEL, BENCH, SAME])
    run_cell(page, 0)
    problems.clear()  # what JupyterLab says while it starts
    hand, begun = Hand(page), time.monotonic()

    page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()  # where the person has just typed
    hand.key("Control+Enter")
    bench = page.locator(".pbb-box")
    failure = bench.locator(".pbb-card")
    expect(failure).to_have_attribute("data-state", "failed", timeout=60_000)
    step = lambda name: hand.click(bench.locator(f"[data-step='{name}']"))  # noqa: E731

    hand.click(failure.get_by_role("button", name="Apply fix"))
    expect(failure).to_have_attribute("data-state", "fixed", timeout=60_000)
    expect(bench.locator(".pbd-pane:not(.pbd-before) .pbd-bar select")).to_have_value(
        "precision"
    )  # the new graph has the colours of the old

    step("axes")
    batch = bench.locator("[aria-label^='x dim 0:']")
    expect(batch).to_have_attribute("aria-pressed", "false")
    hand.click(batch)
    expect(batch).to_have_attribute("aria-pressed", "true", timeout=60_000)

    step("precision")
    group = bench.locator(".pbb-layers tr[data-at]").filter(has_text="middle")
    expect(group).to_contain_text("12")  # alike layers of a deep network are one row from the start
    hand.click(group)
    hand.click(bench.get_by_role("radio", name="int4 weights"))
    expect(bench.locator(".pbb-rule-chip code").last).to_contain_text("middle")

    step("run")
    hand.click(bench.get_by_role("checkbox", name="OpenVINO"))
    hand.click(bench.get_by_role("button", name="Compile for 2 targets"))
    card = bench.locator(".pbb-message.pbb-info")
    hand.click(card.get_by_role("button", name="Compare them"), timeout=180_000)
    runs = bench.locator(".pbb-runs tr[data-run]")
    expect(runs).to_have_count(2)
    expect(bench.locator(".pbb-runs input:checked")).to_have_count(2)
    compared = bench.locator(".pbb-compare")
    expect(compared).to_contain_text("against", timeout=60_000)
    expect(compared).to_be_in_viewport()
    expect(page.locator(".js-plotly-plot").last).to_be_visible(timeout=30_000)

    hand.click(bench.get_by_role("button", name="Export ONNX"))
    expect(bench.get_by_role("region", name="Take away")).to_contain_text("Written to", timeout=30_000)
    assert list(Path(lab.folder).glob("*.onnx"))

    hand.click(bench.get_by_role("button", name="Code", exact=True))
    insert = page.get_by_role("button", name="Insert below")
    expect(insert).to_be_visible()
    print(f"\n{hand.count} clicks and keys, {time.monotonic() - begun:.0f} s")  # noqa: T201
    assert hand.count <= CLICKS

    cells = page.locator(".jp-Notebook .jp-CodeCell")
    count = cells.count()
    insert.click()
    expect(cells).to_have_count(count + 1)
    assert not [each for each in run_cell(page, 2) if each["output_type"] == "error"]
    printed: Any = run_cell(page, 3)[0]
    assert printed.get("text", "").strip() == "same", printed
    assert not problems, problems
    assert not outside, outside
