"""The answer to a click appears where somebody looks, in a real JupyterLab at three widths."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.system.browser.models import UNTIMED
from tests.system.browser.notebooks import open_notebook, run_cell
from tests.turns import in_turns

pytestmark = pytest.mark.timeout(600)

MODEL = f"""
import torch, prepbench as pb

torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(40)]).eval()
{UNTIMED}
data = [torch.randn(8, 16) for _ in range(2)]
bench = pb.Bench(net, tracing_inputs=[torch.randn(2, 16)], calibration_inputs=[torch.randn(2, 16)], data=data)
bench
"""
HEIGHT = 900
_VISIBLE = """(element) => {
  if (!element.isConnected) return [-2, -2]; // drawn anew meanwhile
  const box = element.getBoundingClientRect();
  const panel = element.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
  return [box.top - panel.top, panel.bottom - box.bottom];
}"""
_SCROLLERS = """(box) => [...box.querySelectorAll('*')]
  .filter((e) => e.closest('.pbb, .pbb-chart') && e.checkVisibility() && e.scrollHeight > e.clientHeight + 1)
  .filter((e) => /auto|scroll/.test(getComputedStyle(e).overflowY))
  .map((e) => e.className)"""


def is_in_view(part: Locator) -> bool:
    """Whether all of it is in the part of the window that shows the notebook."""
    above, below = part.evaluate(_VISIBLE)
    return bool(above >= -1 and below >= -1)


def is_soon_in_view(part: Locator) -> bool:
    """Whether it comes into view; scrolling is smooth, and slow on a busy machine."""
    for _ in range(30):
        if is_in_view(part):
            return True
        part.page.wait_for_timeout(100)
    return False


@pytest.mark.parametrize("width", in_turns([1440, 1100, 800], 2, 3))
def test_outcomes_are_in_view_after_the_click(page: Page, lab: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": HEIGHT})
    open_notebook(page, lab, f"outcomes{width}", [MODEL])
    run_cell(page, 0)
    bench = page.locator(".pbb-box")
    bench.scroll_into_view_if_needed()

    bench.locator("[data-step='run']").click()
    start = bench.get_by_role("button", name="Compile", exact=True)
    start.click()
    error = bench.locator(".pbb-run").get_by_role("alert")  # a large diagram that is being drawn says so, too
    expect(error).to_contain_text("the axes fix it at 2", timeout=60_000)
    assert is_in_view(error)
    assert error.bounding_box()["y"] - start.bounding_box()["y"] < 80, "directly under its button"  # type: ignore[index]

    error.get_by_role("button", name="Make the batch dynamic and compile").click()
    expect(bench.locator(".pbb-running")).to_be_visible()
    done = bench.locator(".pbb-info")
    expect(done).to_contain_text("is ready", timeout=180_000)
    assert is_in_view(done)
    assert done.bounding_box()["y"] - start.bounding_box()["y"] < 80  # type: ignore[index]
    tops = done.locator(".pbb-facts > div").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    assert len(tops) > 1, "the card has numbers"
    assert width < 1000 or len(set(tops)) == 1, "they stand side by side"

    bench.locator("[data-step='precision']").click()
    bench.get_by_role("radio", name="float").click()
    bench.locator("[data-step='run']").click()
    start.click()
    expect(done).to_contain_text("float32 ONNX Runtime is ready", timeout=180_000)
    done.get_by_role("button", name="See results").click()
    runs = bench.locator(".pbb-runs tr[data-run]")
    expect(runs).to_have_count(2)
    for at in range(2):
        runs.nth(at).get_by_role("checkbox").click()
    first = bench.locator(".pbb-compare h4")
    expect(first).to_contain_text("against")
    assert is_soon_in_view(first)
    assert is_in_view(bench.locator(".pbb-rail")), "the steps stay in the window"
    if width == 1440:
        assert is_in_view(bench.locator(".pbb-picture")), "so does the diagram"
    assert bench.evaluate(_SCROLLERS) == [], "nothing scrolls inside the bench"

    export = bench.get_by_role("button", name="Export ONNX")
    export.click()
    said = bench.get_by_role("region", name="Take away").get_by_role("status")
    expect(said).to_contain_text("Written to", timeout=30_000)
    assert is_soon_in_view(said)
