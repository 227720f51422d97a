"""The whole way through the bench in a real JupyterLab, in few clicks and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.lab import watch
from tests.system.browser.models import GATE, UNTIMED
from tests.system.browser.notebooks import open_notebook, run_cell

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

MODEL = f"""{GATE}
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, torch.nn.Linear(32, 32))

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(torch.nn.functional.scaled_dot_product_attention(q, k, v))

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(torch.relu(self.up(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(2))
        self.gate = Gate()
        self.head = torch.nn.Linear(32, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(self.gate(x))

torch.manual_seed(0)
net = Net().eval()
batches = [torch.randn(2, 6, 32) for _ in range(4)]
{UNTIMED}"""
BENCH = "bench = pb.Bench(net, calibration_inputs=batches)\nbench"
SAME = """
restored = next(run for run in bench.runs if run.name.startswith("int8 ONNX"))
facts = lambda layers: [(row.fqn, row.weights_bits, row.activations_bits, row.block_size, row.sqnr) for row in layers]
again = next(model for name, model in compiled.items() if name.startswith("int8 ONNX"))  # restored with both targets
print("same" if facts(again.report.layers) == facts(restored.report) else "another")
"""
BUDGET = 25


class Hand:
    """A person, whose clicks and keys are counted."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.count = 0

    def click(self, control: Locator, **how: Any) -> None:
        """One click, also with a key held."""
        self.count += 1
        control.click(**how)

    def choose(self, control: Locator, option: str) -> None:
        """A choice from a list: a click that opens it, and one on the option."""
        self.count += 2
        control.select_option(option)

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
    hand = Hand(page)

    page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()  # where the person has just typed
    hand.key("Control+Enter")
    bench = page.locator(".pbb-box")
    failure = bench.locator(".pbb-card")
    expect(failure).to_have_attribute("data-state", "failed", timeout=60_000)
    step = lambda name: hand.click(bench.locator(f"[data-step='{name}']"))  # noqa: E731

    hand.click(failure.get_by_role("button", name="Apply fix"))
    expect(failure).to_have_attribute("data-state", "fixed", timeout=60_000)

    step("axes")
    batch = bench.locator("[aria-label^='x dim 0:']")
    expect(batch).to_have_attribute("aria-pressed", "false")
    hand.click(batch)
    expect(batch).to_have_attribute("aria-pressed", "true", timeout=60_000)

    step("run")
    hand.click(bench.get_by_role("checkbox", name="OpenVINO"))
    expect(bench.get_by_role("checkbox", name="OpenVINO")).to_be_checked()
    hand.click(bench.get_by_role("button", name="Compile for 2 targets"))
    expect(bench.locator(".pbb-info")).to_contain_text("OpenVINO", timeout=180_000)

    step("precision")
    hand.choose(bench.get_by_label("Rows"), "By role")
    rows = bench.locator(".pbb-layers tr[data-at]")
    expect(rows).to_have_count(7)
    hand.click(rows.nth(0))
    hand.click(rows.nth(3), modifiers=["Shift"])
    expect(bench.locator(".pbb-editor")).to_contain_text("8 layers")
    hand.click(bench.get_by_role("radio", name="int4 weights"))
    rules = bench.locator(".pbb-rule-chip code")
    expect(rules.filter(has_text="attention.*")).to_have_count(2)  # eight layers by the blocks they lie in
    expect(rules.first).to_be_visible()

    step("run")
    hand.click(bench.get_by_role("button", name="Compile for 2 targets"))
    step("results")
    runs = bench.locator(".pbb-runs tr[data-run]")
    expect(runs).to_have_count(4, timeout=180_000)
    expect(bench.locator(".pbb-running")).to_have_count(0, timeout=60_000)
    expect(page.locator(".js-plotly-plot").last).to_be_visible(timeout=30_000)
    shown = [row.locator(".pbb-link").inner_text() for row in runs.all()]
    first = shown.index(next(name for name in shown if name.startswith("int8 ONNX")))
    other = next(at for at, name in enumerate(shown) if "ONNX" in name and at != first)
    for at in (first, other):
        hand.click(runs.nth(at).get_by_role("checkbox"))
    expect(bench.locator(".pbb-compare")).to_contain_text("q_proj")
    better = max((first, other), key=lambda at: _score(runs.nth(at)))
    assert better == first, shown
    hand.click(runs.nth(better).locator(".pbb-link"))
    hand.click(bench.get_by_role("button", name="Restore"))
    expect(bench.locator(".pbb-run-details .pbb-old")).to_have_count(0)
    expect(rules.filter(has_text="_proj")).to_have_count(0)

    hand.click(bench.get_by_role("button", name="Export ONNX"))
    expect(bench.get_by_role("region", name="Take away")).to_contain_text("Written to", timeout=30_000)
    assert list(Path(lab.folder).glob("*.onnx"))

    hand.click(bench.get_by_role("button", name="Code", exact=True))
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    count = cells.count()
    hand.click(page.get_by_role("button", name="Insert below"))
    expect(cells).to_have_count(count + 1)
    print(f"\n{hand.count} clicks and keys")  # noqa: T201
    assert hand.count <= BUDGET

    assert not [each for each in run_cell(page, 2) if each["output_type"] == "error"]
    printed: Any = run_cell(page, 3)[0]
    assert printed.get("text", "").strip() == "same", printed
    assert not problems, problems
    assert not outside, outside


def _score(row: Locator) -> float:
    """In dB."""
    return float(row.locator("td").nth(1).inner_text().split()[0])
